"""PG: off-policy REINFORCE with top-K correction (Chen et al. 2019).

    L = −sg[min(π/π̂_b, c) · K(1−π)^(K−1)] · G · log π(a|s)        π, π̂_b of the logged item; G: its return

π̂_b is fitted by SL before training, read from the log, or, as in Chen et al., a second head on the policy's detached
state:

    L_b = −log π̂_b(a|sg[s])
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from offrec import losses
from offrec.algorithms.record import EARNING, SEARCH_GAMMA, LearnerRecord
from offrec.algorithms.symbols import LossTerms, Needs, Symbols
from offrec.catalogue import log_prob
from offrec.plugins import Range, option


@dataclass(frozen=True)
class PolicyGradient:
    k: int = option(1, minimum=1)
    """K: the policy is rewarded for a good item among K samples; 1 is plain REINFORCE."""
    cap: float = option(10.0, above=0.0)
    """c: upper limit of the importance weights."""
    self_normalised: bool = False
    """Divide the importance weights by their mean over the batch."""
    logging: Literal["fitted", "own", "logged"] = "fitted"
    """Source of π̂_b: fitted by SL before training, a second head on the policy's detached state, or the propensities in
    the log (only for lists of one item)."""
    start: Literal["fresh", "supervised"] = "fresh"
    """Start from random weights or from the weights of the fitted π̂_b."""

    needs_reward = True

    @property
    def needs(self) -> Needs:
        sources: dict[str, Literal["own", "logged", "values"]] = {"own": "own", "logged": "logged", "fitted": "values"}
        return Needs(logging=sources[self.logging], start=self.start == "supervised")

    def loss(self, x: Symbols) -> LossTerms:
        return self.logged_terms(x, log_prob(x.pi, x.logged)[:, 0])

    def logged_terms(self, x: Symbols, log_pi: Tensor) -> LossTerms:
        """Return the loss terms, given log π(a|s) [B] of the logged items."""
        log_b = log_prob(x.b, x.logged)[:, 0] if self.logging == "own" else x.log_b
        importance = losses.importance_weight(log_pi, log_b, self.cap)
        if self.self_normalised:
            importance = losses.divide_by_mean(importance, x.weight)
        weight = importance * losses.top_k_factor(log_pi, self.k) * x.return_to_go
        terms = {"actor": losses.weighted_likelihood(log_pi, weight)}
        return (
            terms if self.logging != "own" else terms | {"logging_cross_entropy": losses.negative_log_likelihood(log_b)}
        )


RECORD = LearnerRecord(
    name="pg",
    label="PG",
    learner=PolicyGradient,
    help="Off-policy policy gradient (REINFORCE) with top-K correction.",
    family="unconstrained",
    presets={"strong": EARNING},
    search={**SEARCH_GAMMA, "algorithm.cap": Range(1.0, 30.0), "algorithm.k": Range(1, 20, whole=True)},
)
