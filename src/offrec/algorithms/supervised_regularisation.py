"""SR: SDAC, and stay likely under the log.

    actor    SDAC's + β · (−log π(a|s))                      paper, Eq. (Rsr)
    β fixed, or by dual ascent        β ← max(0, β + η (KL − ε))        paper, Eq. (ac) and what follows

Unlike the paper: its two forms of the Lagrangian differ by a factor α; β multiplies the one with log π − Q/α.
"""

from dataclasses import dataclass, replace
from typing import Literal

from offrec import losses
from offrec.algorithms.actor_critic import ActorCritic
from offrec.algorithms.checks import at_least
from offrec.algorithms.symbols import LossTerms, Multiplier, Needs, Symbols
from offrec.catalogue import log_prob


@dataclass(frozen=True)
class SupervisedRegularisation(ActorCritic):
    beta: float = 1.0
    """Weight of the likelihood; where it adapts, its first value."""
    adaptive: bool = False
    """Adapt β by dual ascent, so that KL(π_b‖π) ≤ ε."""
    epsilon: float = 1.0
    """ε, in nats."""
    rate: float = 0.001
    """η: how far β moves in an update for each nat of violation."""
    kl: Literal["ratio", "likelihood"] = "ratio"
    """The KL as the mean of log π̂_b − log π, or as the paper's mean of −log π, which takes π_b to have no entropy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0.0, self, "beta", "epsilon", "rate")

    @property
    def needs(self) -> Needs:
        needs = super().needs
        if self.adaptive:
            needs = replace(needs, multiplier=Multiplier("~kl", self.epsilon, self.beta, self.rate))
        return replace(needs, logging="values") if self.adaptive and self.kl == "ratio" else needs

    def loss(self, x: Symbols) -> LossTerms:
        terms = super().loss(x)
        log_pi = log_prob(x.pi, x.logged)[:, 0]
        beta = x.multiplier.detach() if self.adaptive else self.beta
        terms["supervised"] = beta * losses.negative_log_likelihood(log_pi)
        if self.adaptive:
            terms["~kl"] = losses.forward_kl(log_pi, x.log_b if self.kl == "ratio" else None).detach()
        return terms
