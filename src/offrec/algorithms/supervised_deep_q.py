"""SL+DQN: two heads on one backbone (Xin et al. 2020, "SQN"). The policy's head ranks the items.

L = −log π(a|s) + w · (Q(s,a) − sg[r + discount · max Q̄(s′,·)])²
"""

from dataclasses import dataclass

from offrec import losses
from offrec.algorithms.deep_q import q_learning
from offrec.algorithms.record import MYOPIC, SEARCH_GAMMA, LearnerRecord
from offrec.algorithms.symbols import LossTerms, Needs, Symbols
from offrec.catalogue import log_prob
from offrec.plugins import Range, option


@dataclass(frozen=True)
class SupervisedDeepQ:
    double: bool = False
    """Double Q-learning, as in Xin et al.: the critic selects the next item and the target network evaluates it."""
    weight: float = option(1.0, minimum=0.0)
    """w: weight of the Q-learning loss."""

    needs_reward = True

    @property
    def needs(self) -> Needs:
        return Needs(critic="shared", online_next=self.double)

    def loss(self, x: Symbols) -> LossTerms:
        return {
            "cross_entropy": losses.negative_log_likelihood(log_prob(x.pi, x.logged)[:, 0]),
            "critic": self.weight * q_learning(x, self.double),
        }


# Options of the critic that have no effect, because it is a second head on the policy's backbone.
SHARED_BACKBONE = {
    f"critic.{name}": f"its critic is a second head on the policy's backbone; set network.{name}"
    for name in ("backbone", "width", "layers", "dropout", "repeat")
}

RECORD = LearnerRecord(
    name="sl+dqn",
    label="SL+DQN",
    learner=SupervisedDeepQ,
    help="SL and DQN as two heads on one backbone; SL's head ranks.",
    family="mixed",
    # Items are ranked by the head that imitates the log, so NDCG can select the checkpoint.
    presets={"paper": {"algorithm.double": True}, "strong": {"gamma": 0.9, "critic.returns": 0.5}},
    search={**SEARCH_GAMMA, "algorithm.weight": Range(0.03, 10.0)},
    myopic=MYOPIC,
    ignored=SHARED_BACKBONE,
)
