"""DQN: learn the value of the best item.

    L = (Q(s,a) − sg[r + discount · max Q̄(s′,·)])²        paper, L_Q of §Q-learning

The target of an unlogged item a⁻, if the critic is grounded, is sg[r⁻ + γ max Q̄(s,·)].
Unlike the paper: DQN ranks by Q. The paper prints "softmax of Q" as Q / ΣQ, which is not a distribution if Q < 0.
"""

from dataclasses import dataclass

from torch import Tensor

from offrec import losses
from offrec.algorithms.record import EARNING_WITH_RETURNS, MYOPIC, SEARCH_GAMMA, LearnerRecord
from offrec.algorithms.symbols import LossTerms, Needs, Symbols
from offrec.plugins import option


@dataclass(frozen=True)
class DeepQ:
    double: bool = False
    """Double Q-learning: the critic selects the next item and the target network evaluates it."""
    delta: float = option(0.0, minimum=0.0)
    """Rank only items with at least this probability under the logging policy (the δ-behaviour policy); 0 ranks all."""

    needs_reward = True

    @property
    def needs(self) -> Needs:
        return Needs(actor=False, critic="own", online_next=self.double, ranks="critic", min_probability=self.delta)

    def loss(self, x: Symbols) -> LossTerms:
        return {"critic": q_learning(x, self.double)}


def q_learning(x: Symbols, double: bool) -> Tensor:
    """Return the Q-learning loss [B]."""
    next_value = losses.greedy_value(x.next_q, x.next_online_q if double else None)
    next_value = losses.mix_logged_return(next_value, x.next_return_to_go, x.returns)
    value_if_ignored = losses.greedy_value(x.target_q, x.q.detach() if double else None) if x.grounded else None
    errors = losses.td(x.q.at(x.actions), x.rewards, x.discounts, next_value, value_if_ignored)
    return losses.grounded(errors, x.ground_weight)


RECORD = LearnerRecord(
    name="dqn",
    label="DQN",
    learner=DeepQ,
    help="Deep Q-learning: rank by the learned value Q.",
    family="unconstrained",
    presets={"strong": EARNING_WITH_RETURNS},
    search={**SEARCH_GAMMA, "algorithm.double": (False, True)},
    myopic=MYOPIC,
)
