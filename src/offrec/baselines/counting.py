"""Baselines that count how often an item occurs, when it was last seen, and what followed it."""

import numpy as np
import torch
from scipy.sparse import csr_array

from offrec.baselines.record import BaselineRecord
from offrec.baselines.sparse import SparsePolicy, latest
from offrec.data.dataset import Dataset
from offrec.types import Longs, Sessions


class Popular(SparsePolicy):
    """Rank items by their number of training events, for every history."""

    name = "popular"

    def scores(self, recent: Longs) -> csr_array:
        return csr_array((len(recent), self.n_items))


class Recent(SparsePolicy):
    """Rank the items of the history, the most recent first, then all others by popularity.

    score(a) = 1 / (1 + number of steps back to the latest a in the history)
    """

    name = "recent"

    def scores(self, recent: Longs) -> csr_array:
        row, item, step = latest(recent, self.n_items)
        return csr_array((1.0 / (1.0 + step), (row, item)), shape=(len(recent), self.n_items))


class Markov(SparsePolicy):
    """Rank the items that followed the last item in training, then all others by popularity.

    score(b) = n(a, b) / Σ_c n(a, c), where a is the last item and b directly followed a n(a, b) times
    """

    name = "markov"

    def __init__(self, dataset: Dataset, history: int, device: torch.device) -> None:
        super().__init__(dataset, history, device)
        counts = followers(dataset.split("train"), dataset.n_items)
        counts.data /= np.repeat(counts.sum(1), np.diff(counts.indptr))
        self.followers = counts

    def scores(self, recent: Longs) -> csr_array:
        return self.followers[recent[:, 0]]


def followers(sessions: Sessions, n_items: int) -> csr_array:
    """[A + 1, A] how often item b directly followed item a. Row A, for an empty history, is empty."""
    base, stop = int(sessions.offsets[0]), int(sessions.offsets[-1])
    items = np.asarray(sessions.items[base:stop])
    inside = np.ones(max(0, len(items) - 1), dtype=np.bool_)
    ends = np.asarray(sessions.offsets[1:-1]) - base
    inside[ends[(ends > 0) & (ends < len(items))] - 1] = False  # the next event belongs to another session
    pairs = (items[:-1][inside], items[1:][inside])
    return csr_array((np.ones(len(pairs[0])), pairs), shape=(n_items + 1, n_items))  # equal pairs are summed


POPULAR = BaselineRecord(
    "popular", "Popular items", Popular, "The most frequent items of the training sessions.", "Popular"
)
RECENT = BaselineRecord(
    "recent", "Most recent items", Recent, "The items of the history, the most recent first.", "Recent"
)
MARKOV = BaselineRecord("markov", "Markov", Markov, "The items that most often followed the last item.")
