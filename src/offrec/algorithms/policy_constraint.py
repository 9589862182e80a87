"""PC: imitate logged items, with larger weights for better items.

    critic   SDAC's                                                    (the paper does not specify one)
    actor    −sg[w] log π(a|s),   w = min(exp((Q(s,a) − V(s))/β), cap)        paper, §Policy Constraints: exp(Q/β)

The paper drops the normaliser E_b[exp(Q/β)] of each state. Two options replace it: subtracting V(s), and dividing w by
its mean over the batch.
"""

from dataclasses import dataclass

from offrec import losses
from offrec.algorithms.actor_critic import ActorCritic
from offrec.algorithms.record import EARNING, MYOPIC, PAPER_ACTOR_CRITIC, SEARCH_SOFT, LearnerRecord
from offrec.algorithms.symbols import LossTerms, Symbols
from offrec.catalogue import log_prob
from offrec.plugins import Range, option


@dataclass(frozen=True)
class PolicyConstraint(ActorCritic):
    beta: float = option(1.0, above=0.0)
    """Temperature of the weights, in units of reward; lower is greedier."""
    cap: float = option(20.0, above=0.0)
    """Upper limit of the weights."""
    baseline: bool = True
    """Subtract V(s) from Q, so that a weight depends on the item and not on the state."""
    normalised: bool = True
    """Divide the weights by their mean over the batch."""

    def loss(self, x: Symbols) -> LossTerms:
        q = x.q.detach()
        value = None
        if self.baseline:
            value = losses.soft_value(x.pi.detach(), q, self.alpha, self._prior, self.target_sample(x.noise))
        weight = losses.exponential_weight(q.at(x.logged)[:, 0], self.beta, self.cap, value)
        if self.normalised:
            weight = losses.divide_by_mean(weight, x.weight)
        log_pi = log_prob(x.pi, x.logged)[:, 0]
        return {"critic": self.critic(x), "actor": losses.weighted_likelihood(log_pi, weight)}


_NO_SAMPLE = "its actor imitates logged items and does not sample"

RECORD = LearnerRecord(
    name="pc",
    label="PC",
    learner=PolicyConstraint,
    help="Imitate the log with weights that grow exponentially with Q.",
    family="constrained",
    presets={
        "paper": {
            **PAPER_ACTOR_CRITIC,
            "algorithm.beta": 1.0,
            "algorithm.baseline": False,
            "algorithm.normalised": False,
        },
        # critic.returns is left at 0: the weights need differences in Q, which logged returns reduce.
        "strong": {**EARNING, "algorithm.alpha": 0.02, "algorithm.beta": 0.03},
    },
    search={**SEARCH_SOFT, "algorithm.beta": Range(0.01, 10.0)},
    ignored={"algorithm.gumbel_temperature": _NO_SAMPLE, "algorithm.straight_through": _NO_SAMPLE},
    myopic=MYOPIC,
)
