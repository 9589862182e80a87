"""SL+PG: imitation and policy gradient on one policy (Gong et al. 2019).

L = −log π(a|s) + w · L_PG
"""

from dataclasses import dataclass

from offrec import losses
from offrec.algorithms.policy_gradient import PolicyGradient
from offrec.algorithms.record import SEARCH_GAMMA, LearnerRecord
from offrec.algorithms.symbols import LossTerms, Symbols
from offrec.catalogue import log_prob
from offrec.plugins import Range, option


@dataclass(frozen=True)
class SupervisedPolicyGradient(PolicyGradient):
    weight: float = option(1.0, minimum=0.0)
    """w: weight of the policy gradient."""

    def loss(self, x: Symbols) -> LossTerms:
        log_pi = log_prob(x.pi, x.logged)[:, 0]
        terms = self.logged_terms(x, log_pi)
        likelihood = losses.negative_log_likelihood(log_pi)
        return terms | {"actor": self.weight * terms["actor"], "cross_entropy": likelihood}


RECORD = LearnerRecord(
    name="sl+pg",
    label="SL+PG",
    learner=SupervisedPolicyGradient,
    help="SL plus a weighted PG loss on one policy.",
    family="mixed",
    presets={"strong": {"gamma": 0.9}},  # SL+PG also imitates the log, so NDCG can select the checkpoint
    search={**SEARCH_GAMMA, "algorithm.weight": Range(0.03, 10.0)},
)
