"""The built-in learners and their registry."""

from offrec.algorithms import (
    actor_critic,
    deep_q,
    dual_constraint,
    policy_constraint,
    policy_gradient,
    reward_extrapolation,
    supervised,
    supervised_advantage,
    supervised_deep_q,
    supervised_negative_q,
    supervised_policy_gradient,
    supervised_regularisation,
    support_constraint,
    user_model,
)
from offrec.algorithms.record import LEARNERS, LearnerRecord, register_learner
from offrec.algorithms.symbols import ABSENT, Learner, LossTerms, Multiplier, Needs, NeighbourMasses, Symbols

# Register the learners in the paper's order, then others; tables list them in this order.
for _module in (
    supervised,
    deep_q,
    policy_gradient,
    supervised_deep_q,
    supervised_policy_gradient,
    actor_critic,
    support_constraint,
    supervised_regularisation,
    policy_constraint,
    dual_constraint,
    reward_extrapolation,
    supervised_negative_q,
    supervised_advantage,
    user_model,
):
    register_learner(_module.RECORD)

__all__ = [
    "ABSENT",
    "LEARNERS",
    "Learner",
    "LearnerRecord",
    "LossTerms",
    "Multiplier",
    "Needs",
    "NeighbourMasses",
    "Symbols",
    "register_learner",
]
