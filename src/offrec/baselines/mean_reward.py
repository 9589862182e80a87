"""Rank items by the immediate reward of their training events. No personalisation and no look-ahead."""

from collections.abc import Mapping

import numpy as np
import torch

from offrec.baselines.record import BaselineRecord
from offrec.catalogue import Head
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards, split_rewards
from offrec.policy import Policy
from offrec.types import Batch, Doubles, Longs

TIE = 1e-6  # the weight of popularity, which orders items with equal scores


class ItemReward(Policy):
    """Rank items by a score that depends only on their events and rewards in training, for every history.

    Subclasses implement `scores`. Ties are broken by popularity.

    Args:
        dataset: The dataset; only its train split is read.
        history: The longest history that the policy reads.
        device: The device that scores are computed on.
        rewards: The reward per behaviour, in addition to the defaults.
    """

    def __init__(
        self, dataset: Dataset, history: int, device: torch.device, rewards: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(dataset.vocabulary, history, device, dataset.meta["data_hash"])
        self.source_shop = dataset.meta.get("shop")
        total, count = self.totals(dataset, rewards or {})
        share = count / max(1, int(count.sum()))
        self.bias = torch.tensor(self.scores(total, count) + TIE * share, dtype=torch.double, device=device)
        self.table = torch.zeros(dataset.n_items, 0, dtype=torch.double, device=device)

    def totals(self, dataset: Dataset, rewards: Mapping[str, float]) -> tuple[Doubles, Longs]:
        """Return the sum of rewards [A] and the number of training events [A] of each item."""
        return reward_totals(dataset, rewards)

    def scores(self, total: Doubles, count: Longs) -> Doubles:
        """Return scores [A] from the results of `totals`."""
        raise NotImplementedError

    def head(self, batch: Batch) -> Head:
        state = torch.zeros(len(batch), 0, dtype=torch.double, device=self.device)
        return Head(state, self.table, self.bias)


class MeanReward(ItemReward):
    """Rank items by their mean reward in training.

        score(a) = (Σ reward of a's events + m · μ) / (number of a's events + m)

    μ is the mean reward of a training event, and m is the number of pseudo-events. Pseudo-events shrink the score of an
    item with few events towards the mean. If all events have the same reward, this is the popularity ranking.

    Args:
        dataset, history, device, rewards: See `ItemReward`.
        pseudo_events: m, the strength of the shrinkage towards μ.
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
    ) -> None:
        self.pseudo_events = pseudo_events
        super().__init__(dataset, history, device, rewards)

    def scores(self, total: Doubles, count: Longs) -> Doubles:
        mean = float(total.sum()) / max(1, int(count.sum()))
        shrunk: Doubles = (total + self.pseudo_events * mean) / (count + self.pseudo_events)
        return shrunk


class TotalReward(ItemReward):
    """Rank items by the sum of their rewards in training: popularity, weighted by reward.

        score(a) = Σ reward of a's events

    The sum is not shrunk: an item with few events has a small sum.
    """

    name = "total-reward"

    def scores(self, total: Doubles, count: Longs) -> Doubles:
        return total


def reward_totals(dataset: Dataset, rewards: Mapping[str, float]) -> tuple[Doubles, Longs]:
    """Return the sum of rewards [A] and the number of training events [A] of each item."""
    train = dataset.split("train")
    items = np.asarray(train.items[int(train.offsets[0]) : int(train.offsets[-1])])
    total = np.bincount(items, split_rewards(train, event_rewards(dataset, rewards)), minlength=dataset.n_items)
    return total.astype(np.float64), dataset.train_counts


# In the simulated shop, visitors tire of what they have just picked, and a fixed ranking would show it again.
SKIP_RECENT = 8
RECORDS = (
    BaselineRecord(
        "mean-reward",
        "Mean reward per item",
        MeanReward,
        "The items with the largest mean reward.",
        "Mean reward",
        skip_recent=SKIP_RECENT,
    ),
    BaselineRecord(
        "total-reward",
        "Total reward per item",
        TotalReward,
        "The items with the largest sum of rewards.",
        "Total reward",
        skip_recent=SKIP_RECENT,
    ),
)
