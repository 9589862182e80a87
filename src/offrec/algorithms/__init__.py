"""The learners, by the names the command line knows."""

from offrec.algorithms.actor_critic import ActorCritic
from offrec.algorithms.deep_q import DeepQ
from offrec.algorithms.dual_constraint import DualConstraint
from offrec.algorithms.policy_constraint import PolicyConstraint
from offrec.algorithms.policy_gradient import PolicyGradient
from offrec.algorithms.reward_extrapolation import RewardExtrapolation
from offrec.algorithms.supervised import Supervised
from offrec.algorithms.supervised_deep_q import SupervisedDeepQ
from offrec.algorithms.supervised_policy_gradient import SupervisedPolicyGradient
from offrec.algorithms.supervised_regularisation import SupervisedRegularisation
from offrec.algorithms.support_constraint import SupportConstraint
from offrec.algorithms.symbols import ABSENT, Learner, LossTerms, Multiplier, Needs, Symbols

ALGORITHMS: dict[str, type[Learner]] = {
    "sl": Supervised,
    "dqn": DeepQ,
    "pg": PolicyGradient,
    "sl+dqn": SupervisedDeepQ,
    "sl+pg": SupervisedPolicyGradient,
    "sdac": ActorCritic,
    "sc": SupportConstraint,
    "sr": SupervisedRegularisation,
    "pc": PolicyConstraint,
    "dc": DualConstraint,
    "re": RewardExtrapolation,
}

__all__ = ["ABSENT", "ALGORITHMS", "Learner", "LossTerms", "Multiplier", "Needs", "Symbols"]
