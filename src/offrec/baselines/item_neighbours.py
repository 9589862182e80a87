"""Item neighbours: the items that occurred in the same training sessions as the last items of the history.

Sessions are weighted as `implicit.nearest_neighbours.BM25Recommender` weights users. The settings are chosen on the
validation split.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from offrec.baselines.record import BaselineRecord
from offrec.baselines.sparse import SparsePolicy, latest
from offrec.data.dataset import Dataset
from offrec.types import Doubles, Longs, Sessions

BLOCK_PRODUCTS = 1 << 23  # products of weights that are computed at once
VALIDATION_EVENTS = 2_000  # events with a history that the settings are chosen on
ROUNDS = 2  # passes over the options when the settings are chosen


@dataclass(frozen=True)
class ItemNeighbourOptions:
    """Options of the baseline.

    Args:
        saturation: BM25's K1; the larger it is, the more the frequency of an item matters.
        frequency: BM25's B, between 0 and 1: how much frequent items are discounted.
        neighbours: Number of neighbours per item, the item itself included.
        decay: The item x steps back in the history has the weight decay^x.
        own: Factor of the similarity of an item with itself, which ranks repeats; 0 ignores it.
    """

    saturation: float = 1.2
    frequency: float = 0.75
    neighbours: int = 100
    decay: float = 0.6
    own: float = 1.0


GRID: dict[str, tuple[Any, ...]] = {
    "own": (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    "decay": (0.3, 0.45, 0.6, 0.75, 0.9),
    "saturation": (0.1, 0.4, 1.2, 5.0, 20.0),
    "frequency": (0.0, 0.5, 0.75, 1.0),
    "neighbours": (50, 100, 200),
}


class ItemNeighbours(SparsePolicy):
    """BM25-weighted item-to-item scores; recent items of the history have larger weights.

        weight(u, a) = n (K1 + 1) / (n + K1 (1 − B + B · n_a / mean n)) · log(A / (1 + |u|))
        similar(a, b) = Σ_u weight(u, a) weight(u, b)
        score(b) = Σ_{a in the history} decay^(steps back to a) · similar(a, b)

    Here n is the count of item a in session u, n_a its count in all training sessions and |u| the number of distinct
    items in u. Only the largest similarities of each item are stored.

    Args:
        dataset: The dataset; its train split is counted.
        history: The longest history that the policy reads.
        device: The device that scores are computed on.
        options: The options; None chooses them by NDCG@10 on the validation split.
    """

    name = "item-neighbours"

    def __init__(
        self, dataset: Dataset, history: int, device: torch.device, options: ItemNeighbourOptions | None = None
    ) -> None:
        super().__init__(dataset, history, device)
        counts = session_counts(dataset.split("train"), dataset.n_items)
        self.options = options or choose_options(dataset, counts, history)
        everything = np.arange(dataset.n_items)
        similar = similarities(weigh(counts, self.options), everything, self.options.neighbours)
        self.similar = scale_own(similar, everything, self.options.own)

    def scores(self, recent: Longs) -> csr_array:
        row, item, step = latest(recent, self.n_items)
        weights = csr_array((self.options.decay**step, (row, item)), shape=(len(recent), self.n_items))
        scores = weights @ self.similar
        scores.eliminate_zeros()
        return scores


def session_counts(sessions: Sessions, n_items: int) -> csr_array:
    """[S, A] how often each item occurs in each session."""
    base, stop = int(sessions.offsets[0]), int(sessions.offsets[-1])
    session = np.repeat(np.arange(len(sessions)), np.diff(sessions.offsets))
    items = np.asarray(sessions.items[base:stop])
    return csr_array((np.ones(len(items)), (session, items)), shape=(len(sessions), n_items))  # equal pairs are summed


def weigh(counts: csr_array, options: ItemNeighbourOptions) -> csr_array:
    """[S, A] BM25 weights of the counts: items are documents and sessions are terms."""
    saturation, frequency = options.saturation, options.frequency
    n_items = counts.shape[1]
    of_item = np.bincount(counts.indices, counts.data, minlength=n_items)
    distinct = np.diff(counts.indptr)
    norm = 1.0 - frequency + frequency * of_item / max(of_item.mean(), 1e-12)
    rarity = np.maximum(np.log(n_items) - np.log1p(distinct), 0.0)
    data = counts.data * (saturation + 1.0) / (saturation * norm[counts.indices] + counts.data)
    data *= np.repeat(rarity, distinct)
    return csr_array((data, counts.indices, counts.indptr), shape=counts.shape)


def similarities(weights: csr_array, items: Longs, neighbours: int) -> csr_array:
    """[R, A] the largest similarities of the given items [R] with all items; other entries are not stored."""
    of_item = csr_array(weights.T)[items]
    products = of_item.copy()
    products.data = np.diff(weights.indptr)[of_item.indices].astype(np.float64)
    cost = np.cumsum(products.sum(1))
    blocks = [_largest(of_item[first:last] @ weights, neighbours) for first, last in _blocks(cost)]
    data, indices = (np.concatenate([getattr(block, part) for block in blocks]) for part in ("data", "indices"))
    lengths = np.concatenate([np.diff(block.indptr) for block in blocks])
    return csr_array((data, indices, np.concatenate([[0], np.cumsum(lengths)])), shape=(len(items), weights.shape[1]))


def _blocks(cost: Doubles) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with at most about BLOCK_PRODUCTS products, given the cumulative number of products."""
    number = (cost // BLOCK_PRODUCTS).astype(np.int64)
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(cost)]
    yield from pairwise(edges)


def _largest(rows: csr_array, number: int) -> csr_array:
    """Return the largest entries of each row, in descending order."""
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    scaled = rows.data / max(rows.data.max(initial=0.0), 1e-12)
    order = np.argsort(2.0 * row - scaled, kind="stable")  # one sort by row, then by descending value
    order = order[np.arange(len(row)) - rows.indptr[row] < number]
    length = np.minimum(np.diff(rows.indptr), number)
    begins = np.concatenate([[0], np.cumsum(length)])
    return csr_array((rows.data[order], rows.indices[order], begins), shape=rows.shape)


def scale_own(similar: csr_array, items: Longs, factor: float) -> csr_array:
    """Multiply the similarity of each item [R] with itself by a factor."""
    row = np.repeat(np.arange(len(items)), np.diff(similar.indptr))
    data = np.where(similar.indices == items[row], factor * similar.data, similar.data)
    return csr_array((data, similar.indices, similar.indptr), shape=similar.shape)


def choose_options(dataset: Dataset, counts: csr_array, history: int) -> ItemNeighbourOptions:
    """Choose the options by NDCG@10 on validation events, one option after the other."""
    search, best = _Search(dataset, counts, history), ItemNeighbourOptions()
    if not len(search.target):
        return best
    for _ in range(ROUNDS):
        for name, values in GRID.items():
            tried = [replace(best, **{name: value}) for value in values]
            best = max([best, *tried], key=search.ndcg)  # the first of equal ones
    return best


class _Search:
    """Validation events, and the similarities of the items of their histories."""

    def __init__(self, dataset: Dataset, counts: csr_array, history: int) -> None:
        recent, self.target = _validation_events(dataset, history)
        self.counts, self.shape = counts, (len(recent), dataset.n_items)
        self.row, item, self.step = latest(recent, dataset.n_items)
        self.items, self.column = np.unique(item, return_inverse=True)
        self.ndcg = lru_cache(maxsize=None)(self._ndcg)
        self._similar = lru_cache(maxsize=1)(self._similarities)

    def _similarities(self, saturation: float, frequency: float) -> csr_array:
        options = ItemNeighbourOptions(saturation, frequency)
        return similarities(weigh(self.counts, options), self.items, int(max(GRID["neighbours"])))

    def _ndcg(self, options: ItemNeighbourOptions) -> float:
        similar = self._similar(options.saturation, options.frequency)
        number = np.arange(similar.nnz) - np.repeat(similar.indptr[:-1], np.diff(similar.indptr))
        kept = number < options.neighbours
        begins = np.concatenate([[0], np.cumsum(kept)])[similar.indptr]
        similar = csr_array((similar.data[kept], similar.indices[kept], begins), shape=similar.shape)
        weights = csr_array((options.decay**self.step, (self.row, self.column)), shape=(self.shape[0], len(self.items)))
        scores = weights @ scale_own(similar, self.items, options.own)
        row = np.repeat(np.arange(self.shape[0]), np.diff(scores.indptr))
        is_target = scores.indices == self.target[row]
        score = np.zeros(self.shape[0])
        score[row[is_target]] = scores.data[is_target]
        ahead = np.bincount(row[scores.data >= score[row]], minlength=self.shape[0])  # the target itself included
        gain = 1.0 / np.log2(1.0 + np.maximum(1, ahead))
        return float(np.where((score > 0) & (ahead <= 10), gain, 0.0).mean())


def _validation_events(dataset: Dataset, history: int) -> tuple[Longs, Longs]:
    """Return histories [N, H] and next items [N] of a fixed sample of validation events with a history."""
    sessions, n_items = dataset.split("validation"), dataset.n_items
    offsets = np.asarray(sessions.offsets)
    event = np.arange(offsets[0], offsets[-1])
    position = event - np.repeat(offsets[:-1], np.diff(offsets))
    event, position = event[position > 0], position[position > 0]
    sample = np.sort(np.random.default_rng(0).permutation(len(event))[:VALIDATION_EVENTS])
    event, position = event[sample], position[sample]
    lag = np.arange(1, history + 1)
    items = np.asarray(sessions.items[: offsets[-1]]).astype(np.int64)
    recent = np.where(lag <= position[:, None], items[np.maximum(event[:, None] - lag, 0)], n_items)
    return recent, items[event]


RECORD = BaselineRecord(
    "item-neighbours",
    "Item neighbours",
    ItemNeighbours,
    "Items of the same training sessions as the last items (BM25 weights, chosen on validation).",
    "Neighbours",
)
