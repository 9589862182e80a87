"""RE: add the logging policy to the reward. The posterior is that of DC, with Q_RE = Q_DC + α log π̂_b.

    V(s) = E_π[Q̄(s,a) − α log π(a|s)]
    critic   ½ (Q(s,a) − sg[r + α log π̂_b(a|s) + discount · V(s′)])²          paper, §Reward Extrapolation
    actor    E_π[log π(a|s) − sg[Q(s,a)]/α]

The target of an unlogged item a⁻, if the critic is grounded, is sg[r⁻ + α log π̂_b(a⁻|s) + γ V(s)]. Q already
contains the prior, so V needs no prior term and equals the V of DC.

Unlike the paper: it does not say how π̂_b is fitted. Here π̂_b is fitted to the same training sessions (in-sample). PG
and SR use cross-fitted values: the model that scores a session was fitted without it.
"""

from dataclasses import dataclass, replace
from typing import Literal

from offrec import losses
from offrec.algorithms.record import EARNING_WITH_RETURNS, MYOPIC, PAPER_SOFT, SEARCH_SOFT, LearnerRecord
from offrec.algorithms.soft import Soft
from offrec.algorithms.symbols import LossTerms, Needs, Symbols
from offrec.catalogue import log_prob


@dataclass(frozen=True)
class RewardExtrapolation(Soft):
    critic_start: Literal["fresh", "supervised"] = "fresh"
    """Start the critic from random weights, or from Q without rewards: α log π̂_b up to a constant per state. The latter
    needs a critic of the same shape as π̂_b (critic.repeat=instead)."""

    @property
    def needs(self) -> Needs:
        factor = self.alpha if self.critic_start == "supervised" else 0.0
        return replace(super().needs, logging="here", critic_start=factor)

    def loss(self, x: Symbols) -> LossTerms:
        rewards = losses.extrapolated_reward(x.rewards, log_prob(x.b, x.actions), self.alpha)
        next_value, (value, value_if_ignored) = x.scheduler.run_concurrently(
            lambda: losses.soft_value(x.next_pi, x.next_q, self.alpha, None, self.target_sample(x.next_noise)),
            lambda: self.values(x, None),
        )
        return {"critic": self.td_loss(x, rewards, next_value, value_if_ignored), "actor": -value / self.alpha}


RECORD = LearnerRecord(
    name="re",
    label="RE",
    learner=RewardExtrapolation,
    help="Actor-critic with the log-probability of the logging policy added to the reward.",
    family="constrained",
    presets={
        "paper": PAPER_SOFT,
        "strong": {**EARNING_WITH_RETURNS, "algorithm.alpha": 0.03, "algorithm.ranks": "critic"},
    },
    search=SEARCH_SOFT,
    myopic=MYOPIC,
)
