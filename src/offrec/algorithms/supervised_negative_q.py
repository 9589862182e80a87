"""SNQN: SL+DQN whose Q head also learns from sampled items that were not logged (Xin et al. 2022).

    L = −log π(a|s) + w · [(Q(s,a) − sg[r + discount · max Q̄(s′,·)])² + Σ_{a⁻} (Q(s,a⁻) − sg[r⁻ + γ max Q̄(s,·)])²]

The sampled items are those of grounding: `critic.ground` is their number and r⁻ is `critic.ground_reward`. SNQN adds up
their errors, whereas the other learners use the mean, so its `critic.ground_weight` is the number of items. SNQN with
`critic.ground` = 0 is SL+DQN.
"""

from dataclasses import dataclass

from offrec.algorithms.record import MYOPIC, SEARCH_GAMMA, LearnerRecord
from offrec.algorithms.supervised_deep_q import SHARED_BACKBONE, SupervisedDeepQ
from offrec.plugins import Range, Settings

PAPER_NEGATIVES: Settings = {"algorithm.double": True, "critic.ground": 10, "critic.ground_weight": 10.0}
STRONG_NEGATIVES: Settings = {"gamma": 0.9, "critic.returns": 0.5, "critic.ground": 8, "critic.ground_weight": 8.0}


@dataclass(frozen=True)
class SupervisedNegativeQ(SupervisedDeepQ):
    pass


RECORD = LearnerRecord(
    name="snqn",
    label="SNQN",
    learner=SupervisedNegativeQ,
    help="SL+DQN with negative sampling in the Q head; SL's head ranks.",
    family="mixed",
    presets={"paper": PAPER_NEGATIVES, "strong": STRONG_NEGATIVES},
    search={**SEARCH_GAMMA, "algorithm.weight": Range(0.03, 10.0)},
    ignored=SHARED_BACKBONE,
    myopic=MYOPIC,
)
