"""DC: use the logging policy as a prior in the critic's target and in the actor.

    V(s) = E_π[Q̄(s,a) − α (log π(a|s) − log π̂_b(a|s))]
    critic   ½ (Q(s,a) − sg[r + discount · V(s′)])²                           paper, Eq. (DC)
    actor    E_π[log(π(a|s)/π̂_b(a|s)) − sg[Q(s,a)]/α]                         paper, Eq. (DCPi)

The target of an unlogged item a⁻, if the critic is grounded, is sg[r⁻ + γ V(s)]. With `critic.returns` = λ, V(s′) in a
target becomes (1 − λ) V(s′) + λ · (logged return from s′). The preset `strong` sets λ = .5 and ranks by the policy that
the critic implies, π̂_b exp(Q/α), instead of by π (`algorithm.ranks`).

Unlike the paper: it does not say how π̂_b is fitted. Here π̂_b is fitted to the same training sessions (in-sample). PG
and SR use cross-fitted values: the model that scores a session was fitted without it.
"""

from dataclasses import dataclass, replace

from offrec import losses
from offrec.algorithms.record import EARNING_WITH_RETURNS, MYOPIC, PAPER_SOFT, SEARCH_SOFT, LearnerRecord
from offrec.algorithms.soft import Soft
from offrec.algorithms.symbols import LossTerms, Needs, Symbols


@dataclass(frozen=True)
class DualConstraint(Soft):
    @property
    def needs(self) -> Needs:
        return replace(super().needs, logging="next", with_prior=True)

    def loss(self, x: Symbols) -> LossTerms:
        next_value, (value, value_if_ignored) = x.scheduler.run_concurrently(
            lambda: losses.soft_value(x.next_pi, x.next_q, self.alpha, x.next_b, self.target_sample(x.next_noise)),
            lambda: self.values(x, x.b),
        )
        return {"critic": self.td_loss(x, x.rewards, next_value, value_if_ignored), "actor": -value / self.alpha}


RECORD = LearnerRecord(
    name="dc",
    label="DC",
    learner=DualConstraint,
    help="Actor-critic with the logging policy as prior in critic and actor.",
    family="constrained",
    presets={
        "paper": PAPER_SOFT,
        "strong": {**EARNING_WITH_RETURNS, "algorithm.alpha": 0.02, "algorithm.ranks": "critic"},
    },
    search=SEARCH_SOFT,
    myopic=MYOPIC,
)
