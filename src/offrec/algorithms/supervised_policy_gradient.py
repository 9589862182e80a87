"""SL+PG: imitation and policy gradient on one policy (Gong et al. 2019).

L = −log π(a|s) + w · L_PG
"""

from dataclasses import dataclass

from offrec import losses
from offrec.algorithms.checks import at_least
from offrec.algorithms.policy_gradient import PolicyGradient
from offrec.algorithms.symbols import LossTerms, Symbols
from offrec.catalogue import log_prob


@dataclass(frozen=True)
class SupervisedPolicyGradient(PolicyGradient):
    weight: float = 1.0
    """w, of the policy gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0.0, self, "weight")

    def loss(self, x: Symbols) -> LossTerms:
        log_pi = log_prob(x.pi, x.logged)[:, 0]
        terms = self.of_logged(x, log_pi)
        likelihood = losses.negative_log_likelihood(log_pi)
        return terms | {"actor": self.weight * terms["actor"], "supervised": likelihood}
