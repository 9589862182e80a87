"""PC: imitate the log, the more so the better an event was.

    critic   SDAC's                                                    (the paper names none)
    actor    −sg[w] log π(a|s),   w = min(exp((Q(s,a) − V(s))/β), cap)        paper, §Policy Constraints: exp(Q/β)

V(s) and dividing w by its mean over the batch are options in place of the normaliser E_b[exp(Q/β)] of each state, which
the paper drops.
"""

from dataclasses import dataclass

from offrec import losses
from offrec.algorithms.actor_critic import ActorCritic
from offrec.algorithms.checks import above
from offrec.algorithms.symbols import LossTerms, Symbols
from offrec.catalogue import log_prob


@dataclass(frozen=True)
class PolicyConstraint(ActorCritic):
    beta: float = 1.0
    """Temperature of the weights, in units of reward: the lower, the greedier."""
    cap: float = 20.0
    """No weight is larger."""
    baseline: bool = True
    """Subtract V(s) from Q: then a weight says how good the item was, not how good the state."""
    normalised: bool = True
    """Divide the weights by their mean over the batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        above(0.0, self, "beta", "cap")

    def loss(self, x: Symbols) -> LossTerms:
        q = x.q.detach()
        value = None
        if self.baseline:
            value = losses.soft_value(x.pi.detach(), q, self.alpha, self._prior, self.drawn(x.noise))
        weight = losses.exponential_weight(q.at(x.logged)[:, 0], self.beta, self.cap, value)
        if self.normalised:
            weight = losses.normalised(weight, x.weight)
        log_pi = log_prob(x.pi, x.logged)[:, 0]
        return {"critic": self.critic(x), "actor": losses.weighted_likelihood(log_pi, weight)}
