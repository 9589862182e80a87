"""SL: predict the next logged item.

L = −w log π(a|s)        paper, Eq. (S), with w = 1
"""

from dataclasses import dataclass
from typing import Literal

from offrec import losses
from offrec.algorithms.record import LearnerRecord
from offrec.algorithms.symbols import LossTerms, Needs, Symbols
from offrec.catalogue import log_prob


@dataclass(frozen=True)
class Supervised:
    weight: Literal["equal", "reward"] = "equal"
    """Weight all events equally, or in proportion to their rewards: a rare purchase then counts more than a click."""

    @property
    def needs(self) -> Needs:
        """An actor; with rewards as weights, rewards that are not negative."""
        return Needs(weights_by_reward=self.weight == "reward")

    @property
    def needs_reward(self) -> bool:
        """Whether the loss reads rewards."""
        return self.weight == "reward"

    def loss(self, x: Symbols) -> LossTerms:
        loss = losses.negative_log_likelihood(log_prob(x.pi, x.logged)[:, 0])
        if self.weight == "reward":
            # Unlike the paper: divide r by its mean over the batch; the loss is independent of the unit of rewards.
            loss = loss * losses.divide_by_mean(x.rewards[:, 0], x.weight)
        return {"cross_entropy": loss}


RECORD = LearnerRecord(
    name="sl",
    label="SL",
    learner=Supervised,
    help="Supervised learning: predict the next logged item.",
    family="imitation",
    search={"network.repeat": ("off", "bonus", "instead")},
)
