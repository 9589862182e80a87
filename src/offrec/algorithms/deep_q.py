"""DQN: the value of the best item.

    L = (Q(s,a) − sg[r + discount · max Q̄(s′,·)])²        paper, L_Q of §Q-learning

An unlogged item a⁻, where the critic is grounded, is worth sg[r⁻ + γ max Q̄(s,·)].
Unlike the paper: it ranks by Q; "softmax of Q" is printed there as Q / ΣQ, which is no distribution where Q < 0.
"""

from dataclasses import dataclass

from torch import Tensor

from offrec import losses
from offrec.algorithms.record import EARNING_WITH_RETURNS, SEARCH_GAMMA, LearnerRecord
from offrec.algorithms.symbols import LossTerms, Needs, Symbols
from offrec.plugins import option


@dataclass(frozen=True)
class DeepQ:
    double: bool = False
    """Double Q: the critic picks the next item, its target network says what it is worth."""
    delta: float = option(0.0, minimum=0.0)
    """Rank only items that the logging policy takes with at least this probability (0: all). The δ-behaviour policy."""

    needs_reward = True

    @property
    def needs(self) -> Needs:
        return Needs(actor=False, critic="own", online_next=self.double, ranks="critic", within=self.delta)

    def loss(self, x: Symbols) -> LossTerms:
        return {"critic": q_learning(x, self.double)}


def q_learning(x: Symbols, double: bool) -> Tensor:
    next_value = losses.greedy_value(x.next_q, x.next_online_q if double else None)
    next_value = losses.part_logged(next_value, x.next_return_to_go, x.returns)
    value_if_ignored = losses.greedy_value(x.q_if_ignored) if x.grounded else None
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
)
