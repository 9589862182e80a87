"""SR: SDAC with a cross-entropy term that keeps π close to the log.

    actor    SDAC's + β · (−log π(a|s))                      paper, Eq. (Rsr)
    β fixed, or by dual ascent        β ← max(0, β + η (KL − ε))        paper, Eq. (ac) and below

Unlike the paper: its two forms of the Lagrangian differ by a factor α; offrec uses the form with log π − Q/α.
Unlike the paper: it specifies neither the initial β nor the step size; offrec uses β = 1 and η = 0.001.
"""

from dataclasses import dataclass, replace
from typing import Literal

from offrec import losses
from offrec.algorithms.actor_critic import ActorCritic
from offrec.algorithms.record import EARNING_WITH_RETURNS, MYOPIC, PAPER_ACTOR_CRITIC, SEARCH_SOFT, LearnerRecord
from offrec.algorithms.symbols import LossTerms, Multiplier, Needs, Symbols
from offrec.catalogue import log_prob
from offrec.plugins import Range, option


@dataclass(frozen=True)
class SupervisedRegularisation(ActorCritic):
    beta: float = option(1.0, minimum=0.0)
    """β: weight of the cross-entropy term, or its initial value if adaptive."""
    adaptive: bool = False
    """Adapt β by dual ascent, so that KL(π_b‖π) ≤ ε."""
    epsilon: float = option(1.0, minimum=0.0)
    """ε: bound on the KL divergence, in nats."""
    rate: float = option(0.001, minimum=0.0)
    """η: step size of β, per update and per nat of violation."""
    kl: Literal["ratio", "likelihood"] = "ratio"
    """Estimate the KL by the mean of log π̂_b − log π (ratio), or of −log π as in the paper (likelihood). The latter
    assumes that π_b has no entropy."""

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
        terms["cross_entropy"] = beta * losses.negative_log_likelihood(log_pi)
        if self.adaptive:
            terms["~kl"] = losses.forward_kl(log_pi, x.log_b if self.kl == "ratio" else None).detach()
        return terms


RECORD = LearnerRecord(
    name="sr",
    label="SR",
    learner=SupervisedRegularisation,
    help="SDAC plus a weighted SL loss in the actor.",
    family="constrained",
    presets={
        # The paper finds that the adaptive β "consistently achieves the best performance" (RQ3), with ε = 1.
        "paper": {
            **PAPER_ACTOR_CRITIC,
            "algorithm.beta": 1.0,
            "algorithm.adaptive": True,
            "algorithm.epsilon": 1.0,
            "algorithm.kl": "likelihood",
        },
        "strong": {**EARNING_WITH_RETURNS, "algorithm.alpha": 0.1, "algorithm.beta": 0.1},
    },
    search={**SEARCH_SOFT, "algorithm.beta": Range(0.01, 30.0)},
    myopic=MYOPIC,
)
