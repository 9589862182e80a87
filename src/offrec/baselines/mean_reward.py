"""Rank items by the mean immediate reward of their training events. No personalisation and no look-ahead."""

from collections.abc import Mapping

import numpy as np
import torch

from offrec.baselines.record import BaselineRecord
from offrec.baselines.sparse import TIE
from offrec.catalogue import Head
from offrec.data.dataset import Dataset
from offrec.data.transitions import reward_vector
from offrec.policy import Policy
from offrec.types import Batch, Doubles


class MeanReward(Policy):
    """Rank items by their mean reward in training, but rank the visitor's last picks below all other items.

        score(a) = (Σ reward of a's events + m · μ) / (number of a's events + m)

    μ is the mean reward of a training event, and m is the number of pseudo-events. Pseudo-events shrink the score of an
    item with few events towards the mean. Ties are broken by popularity. If all events have the same reward, this is
    the popularity ranking.

    Args:
        dataset: The dataset; only its train split is read.
        history: The longest history that the policy reads.
        device: The device that scores are computed on.
        rewards: The reward per behaviour, in addition to the defaults.
        pseudo_events: m, the strength of the shrinkage towards μ.
        skip_recent: How many of the last picks are ranked last; 0 ranks every item by its score alone.
    """

    name = "mean-reward"

    def __init__(
        self,
        dataset: Dataset,
        history: int,
        device: torch.device,
        rewards: Mapping[str, float] | None = None,
        *,
        pseudo_events: float = 20.0,
        skip_recent: int = 8,
    ) -> None:
        super().__init__(dataset.vocabulary, history, device, dataset.meta["data_hash"])
        self.source_shop, self.skip_recent = dataset.meta.get("shop"), skip_recent
        means = shrunk_means(dataset, rewards or {}, pseudo_events)
        share = np.asarray(dataset.train_counts) / max(1, int(np.sum(dataset.train_counts)))
        self.bias = torch.tensor(means + TIE * share, dtype=torch.double, device=device)
        self.table = torch.zeros(dataset.n_items, 0, dtype=torch.double, device=device)
        # This shift ranks the last picks below all other items and preserves the order among them.
        self.penalty = float(self.bias.max() - self.bias.min()) + 1.0

    def head(self, batch: Batch) -> Head:
        recent = batch.recent[:, : self.skip_recent]
        repeated = (recent[:, :, None] == recent[:, None, :]).tril(-1).any(2)
        items = recent.masked_fill(repeated, self.n_items)  # the corrections of repeated items would add up
        values = torch.full(items.shape, -self.penalty, dtype=torch.double, device=self.device)
        state = torch.zeros(len(batch), 0, dtype=torch.double, device=self.device)
        return Head(state, self.table, self.bias, items, values)


def shrunk_means(dataset: Dataset, rewards: Mapping[str, float], pseudo_events: float) -> Doubles:
    """[A] mean reward of each item's training events, shrunk towards the mean over all training events."""
    train = dataset.split("train")
    events = slice(int(train.offsets[0]), int(train.offsets[-1]))
    reward = reward_vector(dataset.behaviours, dict(rewards)).astype(np.float64)[np.asarray(train.behaviours[events])]
    total = np.bincount(np.asarray(train.items[events]), weights=reward, minlength=dataset.n_items)
    count = np.bincount(np.asarray(train.items[events]), minlength=dataset.n_items)
    mean = float(reward.mean()) if len(reward) else 0.0
    shrunk: Doubles = (total + pseudo_events * mean) / (count + pseudo_events)
    return shrunk


RECORD = BaselineRecord(
    "mean-reward",
    "Mean reward per item",
    MeanReward,
    "The items with the largest mean reward; the visitor's last picks come last.",
    "Mean reward",
)
