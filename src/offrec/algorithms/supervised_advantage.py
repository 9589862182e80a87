"""SA2C: SNQN whose likelihood is weighted by the advantage of the logged item (Xin et al. 2022).

    A(s,a) = Q(s,a) − mean of Q over a and the sampled items
    L = −sg[ρ · A(s,a)] log π(a|s) + w · L_Q        L_Q: the Q head's loss in SNQN

During the first `warmup` updates the weight ρ · A is 1, which is SNQN. ρ = clip(π/π̂_b, .1, 10)^smooth corrects for the
logging policy; with `smooth` = 0 there is no correction and no π̂_b.

Unlike Xin et al.: by default a negative advantage has weight 0, because its loss has no lower bound, and weights are
divided by their mean over the batch, because advantages are small compared with Q's errors.
"""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from offrec import losses
from offrec.algorithms.deep_q import q_learning
from offrec.algorithms.record import MYOPIC, SEARCH_GAMMA, LearnerRecord
from offrec.algorithms.supervised_deep_q import SHARED_BACKBONE, SupervisedDeepQ
from offrec.algorithms.supervised_negative_q import PAPER_NEGATIVES, STRONG_NEGATIVES
from offrec.algorithms.symbols import LossTerms, Needs, Symbols
from offrec.catalogue import log_prob
from offrec.plugins import Range, option


@dataclass(frozen=True)
class SupervisedAdvantage(SupervisedDeepQ):
    warmup: int = option(1000, minimum=0)
    """Number of updates in which the likelihood is not weighted."""
    smooth: float = option(0.0, minimum=0.0, maximum=1.0)
    """Exponent of the importance weights π/π̂_b; 0 turns them off."""
    negative: bool = False
    """Let negative advantages make logged items less likely, as in Xin et al."""
    normalised: bool = True
    """Divide the weights by their mean over the batch."""

    @property
    def needs(self) -> Needs:
        logging: Literal["values", "none"] = "values" if self.smooth > 0 else "none"
        return replace(super().needs, unlogged=True, updates=True, logging=logging)

    def loss(self, x: Symbols) -> LossTerms:
        log_pi = log_prob(x.pi, x.logged)[:, 0]
        weight = self._weight(x, log_pi).where(x.updates >= self.warmup, 1.0)
        return {
            "cross_entropy": losses.weighted_likelihood(log_pi, weight),
            "critic": self.weight * q_learning(x, self.double),
        }

    def _weight(self, x: Symbols, log_pi: Tensor) -> Tensor:
        weight = losses.advantage(x.q.at(x.actions))
        weight = weight if self.negative else weight.clamp(min=0.0)
        if self.smooth > 0:
            weight = weight * losses.smooth_importance(log_pi, x.log_b, self.smooth)
        return losses.divide_by_mean(weight, x.weight) if self.normalised else weight


RECORD = LearnerRecord(
    name="sa2c",
    label="SA2C",
    learner=SupervisedAdvantage,
    help="SNQN with a likelihood weighted by the advantage of the logged item.",
    family="mixed",
    presets={
        "paper": {**PAPER_NEGATIVES, "algorithm.negative": True, "algorithm.normalised": False},
        "strong": STRONG_NEGATIVES,
    },
    search={**SEARCH_GAMMA, "algorithm.weight": Range(0.03, 10.0)},
    ignored=SHARED_BACKBONE,
    myopic=MYOPIC,
)
