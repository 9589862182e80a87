"""SC: SDAC with a penalty on items outside the support of the logging policy.

    actor    SDAC's + β · Σ_{a: π̂_b(a|s) ≤ δ} π(a|s)        paper, Eq. (SC), where the minus sign is a misprint

With δ = 0, SC equals SDAC and needs no π̂_b.
"""

from dataclasses import dataclass, replace

from offrec import losses
from offrec.algorithms.actor_critic import ActorCritic
from offrec.algorithms.record import EARNING_WITH_RETURNS, MYOPIC, PAPER_ACTOR_CRITIC, SEARCH_SOFT, LearnerRecord
from offrec.algorithms.symbols import LossTerms, Needs, Symbols
from offrec.plugins import Range, option


@dataclass(frozen=True)
class SupportConstraint(ActorCritic):
    beta: float = option(10.0, minimum=0.0)
    """β: weight of the penalty, in nats of the actor's objective."""
    delta: float = option(0.001, minimum=0.0)
    """δ: items whose π̂_b is at most δ are outside the support."""

    @property
    def needs(self) -> Needs:
        return replace(super().needs, logging="here") if self.delta > 0 else super().needs

    def loss(self, x: Symbols) -> LossTerms:
        terms = super().loss(x)
        if self.delta > 0:
            terms["support"] = self.beta * losses.outside_support(x.pi, x.b, self.delta)
        return terms


RECORD = LearnerRecord(
    name="sc",
    label="SC",
    learner=SupportConstraint,
    help="SDAC with a penalty on items that the logging policy rarely shows.",
    family="constrained",
    presets={
        "paper": {**PAPER_ACTOR_CRITIC, "algorithm.beta": 1.0, "algorithm.delta": 0.01},
        "strong": {**EARNING_WITH_RETURNS, "algorithm.alpha": 0.05},
    },
    search={**SEARCH_SOFT, "algorithm.beta": Range(0.3, 100.0), "algorithm.delta": Range(1e-5, 0.1)},
    myopic=MYOPIC,
)
