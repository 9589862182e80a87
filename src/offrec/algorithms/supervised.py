"""SL: predict the next logged item.

L = −w log π(a|s)        paper, Eq. (S), with w = 1

Unlike the paper: in `strong`, π also contains the items that occurred near the last items of the history in other
sessions (`models/neighbours.py`).
"""

from dataclasses import dataclass
from typing import Literal

from offrec import losses
from offrec.algorithms.record import LearnerRecord
from offrec.algorithms.symbols import LossTerms, Needs, Symbols
from offrec.catalogue import log_prob
from offrec.plugins import option


@dataclass(frozen=True)
class Supervised:
    weight: Literal["equal", "reward"] = "equal"
    """Weight all events equally, or in proportion to their rewards: a rare purchase then counts more than a click."""

    neighbours: int = option(0, minimum=0, maximum=10_000)
    """Number of neighbours per item that are counted in the log and added to the policy; 0 adds none."""

    @property
    def needs(self) -> Needs:
        """An actor with neighbours; with rewards as weights, rewards that are not negative."""
        return Needs(weights_by_reward=self.weight == "reward", neighbours=self.neighbours)

    @property
    def needs_reward(self) -> bool:
        """Whether the loss reads rewards."""
        return self.weight == "reward"

    def loss(self, x: Symbols) -> LossTerms:
        log_pi = log_prob(x.pi, x.logged)[:, 0]
        terms = {"cross_entropy": losses.negative_log_likelihood(log_pi)}
        if self.neighbours:
            mixed = losses.add_mass(log_pi, x.neighbours.logged, x.neighbours.total)
            terms = {
                "cross_entropy": losses.negative_log_likelihood(mixed),
                # Without this term, the network would learn little from the events that neighbours explain.
                "without_neighbours": losses.negative_log_likelihood(log_pi),
            }
        if self.weight == "reward":
            # Unlike the paper: divide r by its mean over the batch; the loss is independent of the unit of rewards.
            weight = losses.divide_by_mean(x.rewards[:, 0], x.weight)
            terms = {name: weight * term for name, term in terms.items()}
        return terms


RECORD = LearnerRecord(
    name="sl",
    label="SL",
    learner=Supervised,
    help="Supervised learning: predict the next logged item.",
    family="imitation",
    presets={"strong": {"algorithm.neighbours": 50}},
    search={"network.repeat": ("off", "bonus", "instead")},
)
