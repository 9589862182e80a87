"""The ranks of logged items, from which metrics are computed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offrec.evaluation.metrics import MetricValues, compute_metrics, ndcg
from offrec.types import Bytes, Floats, Longs

KS = (5, 10, 20)
MISS = 1 << 53  # rank of an item that cannot be recommended: beyond any list, and exact as a float


@dataclass(frozen=True)
class Ranks:
    """The ranks of the scored events of a split, in the order of the log."""

    event: Longs  # [N] index of the event in the log
    behaviour: Bytes  # [N]
    rank: Longs  # [N] 1 is best; ties and NaN scores count against the policy; MISS if it cannot be recommended

    def metrics(self, ks: Sequence[int] = KS, more: dict[str, float] | None = None) -> MetricValues:
        """Compute every registered metric; `more` contains values that were computed elsewhere."""
        return compute_metrics(self.rank, ks, more)

    def reward_ndcg(self, rewards: Floats, k: int) -> float:
        """Compute NDCG@k with each event weighted by its reward. In [0, 1] unless a reward is negative.

        Args:
            rewards: Reward of every event of the dataset; see `event_rewards`.
            k: Length of the list.
        """
        reward = rewards[self.event].astype(np.float64)
        if not len(reward):
            return 0.0
        return float((reward * ndcg(self.rank, k)).mean() / max(np.abs(reward).mean(), np.finfo(np.float64).tiny))

    def rewards(self, rewards: Floats | None, ks: Sequence[int]) -> dict[str, float]:
        """Return reward@k for every k; nothing if the rewards are unknown."""
        return {} if rewards is None else {f"reward@{k}": self.reward_ndcg(rewards, k) for k in ks}

    def for_behaviour(self, behaviour: int) -> "Ranks":
        """Return the ranks of the events of one behaviour."""
        selected = self.behaviour == behaviour
        return Ranks(self.event[selected], self.behaviour[selected], self.rank[selected])
