"""SDAC: the stochastic discrete actor-critic, on which the constrained learners build.

    V(s) = E_π[Q̄(s,a) − α (log π(a|s) − log 1/|A|)]                          the last term only if the prior is kept
    critic   ½ (Q(s,a) − sg[r + discount · V(s′)])²                           paper, Eq. (SQ)
    actor    E_π[log π(a|s) − sg[Q(s,a)]/α] + constant                        paper, Eq. (pi)

An unlogged item a⁻, where the critic is grounded, is worth sg[r⁻ + γ V(s)], with the prior kept in any case.
"""

from dataclasses import dataclass

from torch import Tensor

from offrec import losses
from offrec.algorithms.record import EARNING_WITH_RETURNS, PAPER_ACTOR_CRITIC, SEARCH_SOFT, LearnerRecord
from offrec.algorithms.soft import Soft
from offrec.algorithms.symbols import LossTerms, Symbols


@dataclass(frozen=True)
class ActorCritic(Soft):
    uniform_prior: bool = True
    """Keep the uniform action prior. The paper drops it, and each further step of a session earns α log|A|."""

    def loss(self, x: Symbols) -> LossTerms:
        value = losses.soft_value(x.pi, x.q.detach(), self.alpha, self._prior, self.relaxed(x.noise))
        return {"critic": self.critic(x), "actor": -value / self.alpha}

    def critic(self, x: Symbols) -> Tensor:
        next_value = losses.soft_value(x.next_pi, x.next_q, self.alpha, self._prior, self.drawn(x.next_noise))
        value_if_ignored = None
        if x.grounded:  # a bonus for entropy would feed back on itself here: γ V(s) is worth of s itself
            value_if_ignored = losses.soft_value(
                x.pi.detach(), x.q_if_ignored, self.alpha, "uniform", self.drawn(x.noise)
            )
        return self.squared(x, x.rewards, next_value, value_if_ignored)

    @property
    def _prior(self) -> losses.Prior:
        return "uniform" if self.uniform_prior else None


RECORD = LearnerRecord(
    name="sdac",
    label="SDAC",
    learner=ActorCritic,
    help="Stochastic discrete actor-critic, without a constraint.",
    family="unconstrained",
    presets={"paper": PAPER_ACTOR_CRITIC, "strong": {**EARNING_WITH_RETURNS, "algorithm.alpha": 0.05}},
    search=SEARCH_SOFT,
)
