"""Policies that score a few items per history and order all others by popularity."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from offrec.baselines.mean_reward import TIE
from offrec.catalogue import Head
from offrec.data.dataset import Dataset
from offrec.policy import Policy
from offrec.types import Batch, Longs


class SparsePolicy(Policy):
    """z(a) = TIE · share(a), plus TIE + score(a) if the item has a score.

    share(a) ≤ 1 is the item's share of the training events, so items with a score rank above all others. Double
    precision is needed to distinguish the two scales.
    """

    def __init__(self, dataset: Dataset, history: int, device: torch.device) -> None:
        super().__init__(dataset.vocabulary, history, device, dataset.meta["data_hash"])
        self.source_shop = dataset.meta.get("shop")
        counts = torch.tensor(np.asarray(dataset.train_counts), dtype=torch.double, device=device)
        self.bias = TIE * counts / counts.sum().clamp(min=1)
        self.table = torch.zeros(dataset.n_items, 0, dtype=torch.double, device=device)

    def scores(self, recent: Longs) -> csr_array:
        """Return positive scores [B, A] for histories [B, H], which are most recent first and padded with n_items."""
        raise NotImplementedError

    def head(self, batch: Batch) -> Head:
        corrections = padded(self.scores(batch.recent.cpu().numpy()), self.n_items)
        items, values = (torch.from_numpy(array).to(self.device) for array in corrections)
        state = torch.zeros(len(batch), 0, dtype=torch.double, device=self.device)
        return Head(state, self.table, self.bias, items, values)


def padded(scores: csr_array, n_items: int) -> tuple[Longs, NDArray[np.float64]]:
    """Return the stored entries of each row as items [B, C], padded with n_items, and values [B, C]."""
    length = np.diff(scores.indptr)
    inside = np.arange(length.max(initial=0)) < length[:, None]
    items = np.full(inside.shape, n_items, dtype=np.int64)
    values = np.zeros(inside.shape)
    items[inside], values[inside] = scores.indices, TIE + scores.data
    return items, values


def latest(recent: Longs, n_items: int) -> tuple[Longs, Longs, Longs]:
    """Return the distinct items of each history at their latest position: (row, item, steps back), [n] each."""
    row, step = np.nonzero(recent < n_items)
    item = recent[row, step]
    _, first = np.unique(row * n_items + item, return_index=True)
    return row[first], item[first], step[first]
