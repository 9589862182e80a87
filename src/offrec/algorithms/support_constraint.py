"""SC: SDAC, and a price on what the logging policy hardly ever does.

    actor    SDAC's + β · Σ_{a: π̂_b(a|s) ≤ δ} π(a|s)        paper, Eq. (SC), whose minus is a misprint

δ = 0 is SDAC, and needs no π̂_b.
"""

from dataclasses import dataclass, replace

from offrec import losses
from offrec.algorithms.actor_critic import ActorCritic
from offrec.algorithms.checks import at_least
from offrec.algorithms.symbols import LossTerms, Needs, Symbols


@dataclass(frozen=True)
class SupportConstraint(ActorCritic):
    beta: float = 10.0
    """The price, in nats of the actor's objective."""
    delta: float = 0.001
    """Items with this π̂_b or a lower one are outside of the support."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0.0, self, "beta", "delta")

    @property
    def needs(self) -> Needs:
        return replace(super().needs, logging="here") if self.delta > 0 else super().needs

    def loss(self, x: Symbols) -> LossTerms:
        terms = super().loss(x)
        if self.delta > 0:
            terms["support"] = self.beta * losses.outside_support(x.pi, x.b, self.delta)
        return terms
