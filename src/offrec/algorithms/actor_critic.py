"""SDAC: the stochastic discrete actor-critic, on which the constrained learners are based.

    V(s) = E_π[Q̄(s,a) − α (log π(a|s) − log 1/|A|)]                          log 1/|A| only with uniform_prior
    critic   ½ (Q(s,a) − sg[r + discount · V(s′)])²                           paper, Eq. (SQ)
    actor    E_π[log π(a|s) − sg[Q(s,a)]/α] + constant                        paper, Eq. (pi)

The target of an unlogged item a⁻, if the critic is grounded, is sg[r⁻ + γ V(s)], always with the uniform prior.
"""

from dataclasses import dataclass

from torch import Tensor

from offrec import losses
from offrec.algorithms.record import EARNING_WITH_RETURNS, MYOPIC, PAPER_ACTOR_CRITIC, SEARCH_SOFT, LearnerRecord
from offrec.algorithms.soft import Soft
from offrec.algorithms.symbols import LossTerms, Symbols


@dataclass(frozen=True)
class ActorCritic(Soft):
    uniform_prior: bool = True
    """Keep the uniform action prior. The paper drops it; every further step of a session then earns α log|A|."""

    def loss(self, x: Symbols) -> LossTerms:
        value = losses.soft_value(x.pi, x.q.detach(), self.alpha, self._prior, self.relaxed_sample(x.noise))
        return {"critic": self.critic(x), "actor": -value / self.alpha}

    def critic(self, x: Symbols) -> Tensor:
        """Return the critic's loss [B]."""
        next_value = losses.soft_value(x.next_pi, x.next_q, self.alpha, self._prior, self.target_sample(x.next_noise))
        value_if_ignored = None
        if x.grounded:
            # V(s) is part of its own target: without a prior, the entropy bonus would accumulate.
            value_if_ignored = losses.soft_value(
                x.pi.detach(), x.target_q, self.alpha, "uniform", self.target_sample(x.noise)
            )
        return self.td_loss(x, x.rewards, next_value, value_if_ignored)

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
    myopic=MYOPIC,
)
