"""SL+DQN: one backbone, two heads (Xin et al. 2020, "SQN"). The policy's head ranks.

L = −log π(a|s) + w · (Q(s,a) − sg[r + discount · max Q̄(s′,·)])²
"""

from dataclasses import dataclass

from offrec import losses
from offrec.algorithms.checks import at_least
from offrec.algorithms.deep_q import q_learning
from offrec.algorithms.symbols import LossTerms, Needs, Symbols
from offrec.catalogue import log_prob


@dataclass(frozen=True)
class SupervisedDeepQ:
    double: bool = False
    """Double Q: the critic picks the next item, its target network says what it is worth. (Xin et al. do.)"""
    weight: float = 1.0
    """w, of the Q-learning loss."""

    needs_reward = True

    def __post_init__(self) -> None:
        at_least(0.0, self, "weight")

    @property
    def needs(self) -> Needs:
        return Needs(critic="shared", online_next=self.double)

    def loss(self, x: Symbols) -> LossTerms:
        return {
            "actor": losses.negative_log_likelihood(log_prob(x.pi, x.logged)[:, 0]),
            "critic": self.weight * q_learning(x, self.double),
        }
