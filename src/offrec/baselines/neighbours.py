"""Session nearest neighbours: items of the most similar training sessions (Ludewig & Jannach 2018).

A session is the set of its items. The history is compared with the `sample` most recent training sessions that share an
item with it. The items of the `neighbours` most similar ones are scored, including items already seen.
Among equally similar sessions, more recent ones come first.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from offrec.baselines.record import BaselineRecord
from offrec.baselines.sparse import SparsePolicy, latest
from offrec.data.dataset import Dataset
from offrec.types import Longs

Doubles = NDArray[np.float64]
Decay = Literal["none", "linear", "quadratic"]
POWER: dict[Decay, int] = {"none": 0, "linear": 1, "quadratic": 2}
MAX_STEPS_BACK = 50  # in double precision, sums of this many powers of two are exact


@dataclass(frozen=True)
class NeighbourOptions:
    """Options of the nearest-neighbour baselines."""

    neighbours: int = 100
    sample: int = 1000
    decay: Decay = "none"  # how the weight of an item of the history decreases with its age
    neighbour_decay: Decay = "none"  # how the weight of a neighbour decreases with the age of the latest item it shares
    idf: float = 0.0  # the additional weight of rare items


class SessionNeighbours(SparsePolicy):
    """SKNN. With the set s of the history's items and the set n of a training session's items:

    similarity(n) = |s ∩ n| / √(|s| |n|)
    score(a)      = Σ similarity(n) over the neighbours n that contain a

    VSKNN, with w(a) = ((L − x) / L)^p for an item x steps back in a history of L events, p = 1 for linear and 2 for
    quadratic decay; w(n) is the same weight, with its own p, for the most recent history item that n contains:

    similarity(n) = Σ_{a ∈ s ∩ n} w(a) / √(Σ_{a ∈ s} w(a)² · |n|)
    score(a)      = (1 + idf · log(T / T_a)) Σ similarity(n) w(n) over the neighbours n that contain a

    where T_a of the T training sessions contain a. With p = 0 and idf = 0 this is SKNN.
    """

    name = "sknn"
    defaults = NeighbourOptions()

    def __init__(
        self, dataset: Dataset, history: int, device: torch.device, options: NeighbourOptions | None = None
    ) -> None:
        super().__init__(dataset, history, device)
        self.options = options or self.defaults
        self.sessions = item_sets(dataset)  # [T, A]
        self.sessions_of_item = csr_array(self.sessions.T)  # [A, T]
        self.root = np.sqrt(np.diff(self.sessions.indptr))  # [T] √|n|
        n_sessions = np.maximum(1, np.diff(self.sessions_of_item.indptr))
        self.rarity = 1.0 + self.options.idf * np.log(self.sessions.shape[0] / n_sessions)  # [A]

    def scores(self, recent: Longs) -> csr_array:
        row, item, step = latest(recent, self.n_items)
        length = (recent < self.n_items).sum(1)
        weight = _decayed(step, length[row], self.options.decay)
        shape = (len(recent), self.n_items)
        overlap = self._shared_sums(csr_array((weight, (row, item)), shape))
        history_row = np.repeat(np.arange(len(recent)), np.diff(overlap.indptr))
        norm = np.sqrt(np.bincount(row, weight**2, minlength=len(recent)))
        similarity = overlap.data / (norm[history_row] * self.root[overlap.indices])
        nearest = _nearest(history_row, similarity, overlap.indptr, self.options)
        contribution = similarity[nearest]
        if self.options.neighbour_decay != "none":
            steps = csr_array((0.5 ** np.minimum(step, MAX_STEPS_BACK), (row, item)), shape)
            latest_shared = (
                1 - np.frexp(self._shared_sums(steps).data[nearest])[1]
                # The exponent of a sum of distinct powers of two is the largest exponent.
            )
            contribution = contribution * _decayed(
                latest_shared, length[history_row[nearest]], self.options.neighbour_decay
            )
        result = (
            csr_array((contribution, (history_row[nearest], overlap.indices[nearest])), shape=overlap.shape)
            @ self.sessions
        )
        result.data *= self.rarity[result.indices]
        return result

    def _shared_sums(self, histories: csr_array) -> csr_array:
        """[B, T] for each training session, the sum over the items that it shares with each history."""
        shared = histories @ self.sessions_of_item
        shared.sort_indices()
        return shared


class VectorSessionNeighbours(SessionNeighbours):
    """VSKNN: see `SessionNeighbours`."""

    name = "vsknn"
    defaults = NeighbourOptions(decay="quadratic", neighbour_decay="linear", idf=1.0)


def _decayed(step: Longs, length: Longs, decay: Decay) -> Doubles:
    weight: Doubles = ((length - step) / length) ** POWER[decay]
    return weight


def _nearest(row: Longs, similarity: Doubles, begins: Longs, options: NeighbourOptions) -> Longs:
    """Return the entries that are neighbours. Entries are sorted by row, then by session from oldest to newest."""
    recent = np.flatnonzero(begins[row + 1] - np.arange(len(row)) <= options.sample)[::-1]  # latest first
    order = recent[np.lexsort((-similarity[recent], row[recent]))]
    row = row[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    return order[rank < options.neighbours]


def item_sets(dataset: Dataset) -> csr_array:
    """[T, A] 1 if a training session contains the item; sessions are ordered by time if the log has times."""
    train = dataset.split("train")
    base, stop = int(train.offsets[0]), int(train.offsets[-1])
    edges = np.unique(np.asarray(train.offsets))  # without empty sessions
    length = np.diff(edges)
    number = np.arange(len(length))
    if dataset.times is not None:
        number[np.argsort(dataset.times[edges[:-1]], kind="stable")] = np.arange(len(length))
    items = np.asarray(train.items[base:stop])
    sets = csr_array((np.ones(len(items)), (np.repeat(number, length), items)), shape=(len(length), dataset.n_items))
    sets.data[:] = 1.0  # repeated items were summed
    return sets


RECORDS = (
    BaselineRecord("sknn", "SKNN", SessionNeighbours, "Items of the most similar training sessions."),
    BaselineRecord(
        "vsknn", "VSKNN", VectorSessionNeighbours, "SKNN that weights recent items and rare items more strongly."
    ),
)
