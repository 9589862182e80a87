"""Count which items occur close to each other in sessions.

    n(a, b) = Σ 1 / |p − q|        over positions p of a and q of b ≠ a in the same session, |p − q| ≤ MAX_GAP

n(a, b) / n(a) is the share of b among the neighbours of a, where n(a) = Σ_b n(a, b). For a training event, the shares
are also computed without the event's own session: otherwise, the session would predict itself.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from offrec.types import Doubles, Ints, Longs, Sessions

Floats = NDArray[np.float32]

MAX_GAP = 10
UNIT = 2520  # weights are whole numbers of 1 / UNIT, so that sums are exact: UNIT / |p − q| is an integer up to MAX_GAP
BLOCK_PAIRS = 1 << 25  # pairs of events that are counted at once, by all threads together
MAX_THREADS = 4


@dataclass(frozen=True)
class NeighbourCounts:
    """The neighbours of each item, and the shares of logged items without their own session.

    Row A of the first three arrays belongs to padding and is empty.
    """

    items: Ints  # [A + 1, K] the items with the largest n(a, ·), in descending order; A in empty slots
    shares: Floats  # [A + 1, K] n(a, b) / n(a)
    totals: Floats  # [A + 1] n(a)
    own_shares: Floats  # [E, J] the share of the event's item among the neighbours of the item 1 … J steps back
    own_totals: Floats  # [E, J] n of the item 1 … J steps back; both without the event's own session


@dataclass(frozen=True)
class _Pairs:
    """Ordered pairs of events that are close to each other; the first item is in one block of items."""

    first: Longs  # [P] item, counted from the start of the block
    second: Longs  # [P] item
    session: Longs  # [P]
    weight: Longs  # [P] in units of 1 / UNIT


def count_neighbours(
    sessions: Sessions, n_items: int, neighbours: int, steps: int, part: slice | None = None
) -> NeighbourCounts:
    """Count the neighbours of all items.

    Args:
        sessions: The training sessions.
        n_items: A, the size of the catalogue.
        neighbours: K, the number of neighbours to store per item.
        steps: J, the number of recent items to compute shares for.
        part: Rows of the A + 1 to count. The arrays by item contain only them, and those by event are 0 where the
            recent item is another. None: all rows.

    Returns:
        The counts. The arrays of events are indexed like the log; events before the first session are 0.
    """
    begin, end = int(sessions.offsets[0]), int(sessions.offsets[-1])
    items = np.asarray(sessions.items[begin:end]).astype(np.int64)
    session = np.repeat(np.arange(len(sessions)), np.diff(sessions.offsets))
    rows = slice(0, n_items + 1) if part is None else part
    n_rows = rows.stop - rows.start
    counts = NeighbourCounts(
        np.full((n_rows, neighbours), n_items, dtype=np.int32),
        np.zeros((n_rows, neighbours), dtype=np.float32),
        np.zeros(n_rows, dtype=np.float32),
        np.zeros((end, steps), dtype=np.float32),
        np.zeros((end, steps), dtype=np.float32),
    )

    def count(block: tuple[int, int]) -> None:
        low, high = max(block[0], rows.start), min(block[1], rows.stop)
        if low < high:
            own = _Counts(_pairs(items, session, low, high), high - low, n_items, len(sessions))
            _write_neighbours(own, counts, slice(low - rows.start, high - rows.start))
            _write_own_shares(own, counts, items, session, low, high, begin)

    # NumPy sorts and searches without holding the interpreter's lock. Blocks write to different places.
    threads = count_threads()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(count, _blocks(items, n_items, threads)))
    return counts


def _write_neighbours(own: "_Counts", counts: NeighbourCounts, rows: slice) -> None:
    """Write the neighbours of a block of items."""
    n_items, total = own.n_items, own.total
    counts.totals[rows] = total / UNIT
    first, second, count = own.key // n_items, own.key % n_items, own.count
    order = np.lexsort((-count, first))
    rank = np.arange(len(first)) - np.searchsorted(first, first[order])
    is_kept = rank < counts.items.shape[1]
    kept, rank = order[is_kept], rank[is_kept]
    row = rows.start + first[kept]
    counts.items[row, rank] = second[kept]
    counts.shares[row, rank] = count[kept] / total[first[kept]]


def _write_own_shares(
    own: "_Counts", counts: NeighbourCounts, items: Longs, session: Longs, low: int, high: int, begin: int
) -> None:
    """Write the shares of the events that follow items of a block; the log begins at event `begin`."""
    for step in range(1, min(counts.own_shares.shape[1], len(items) - 1) + 1):
        event = step + np.flatnonzero(
            (session[step:] == session[:-step]) & (items[:-step] >= low) & (items[:-step] < high)
        )
        share, left = own.shares_without(items[event - step] - low, items[event], session[event])
        counts.own_shares[begin + event, step - 1], counts.own_totals[begin + event, step - 1] = share, left / UNIT


def count_threads() -> int:
    """Return the number of threads that count neighbours."""
    return min(MAX_THREADS, torch.get_num_threads())


class _Counts:
    """Counts of a block of items, with or without one session, in units of 1 / UNIT."""

    def __init__(self, pairs: _Pairs, n_first: int, n_items: int, n_sessions: int) -> None:
        self.n_items, self.n_sessions = n_items, n_sessions
        key = pairs.first * n_items + pairs.second
        order = _order(key, pairs.session, n_first * n_items, n_sessions)
        key, session = key[order], pairs.session[order]
        run = _starts(key) | _starts(session)  # the pairs of one session with equal items
        weight = _run_sums(pairs.weight[order], run)
        key, session = key[run], session[run]
        new = _starts(key)
        self.key: Longs = key[new]  # a · A + b, in ascending order
        self.count = _run_sums(weight, new)  # n(a, b)
        self.total: Longs = np.zeros(n_first, dtype=np.int64)
        np.add.at(self.total, self.key // n_items, self.count)
        self.of_pair = (np.cumsum(new) - 1) * n_sessions + session, weight  # in ascending order
        of_item = key // n_items * n_sessions + session
        order = np.argsort(of_item)
        of_item = of_item[order]
        new = _starts(of_item)
        self.of_item = of_item[new], _run_sums(weight[order], new)

    def shares_without(self, first: Longs, second: Longs, session: Longs) -> tuple[Doubles, Longs]:
        """Return n(a, b) / n(a) and n(a), without the given sessions; 0 if nothing is left."""
        if not len(self.key):
            return np.zeros(len(first)), np.zeros(len(first), dtype=np.int64)
        number, is_pair = _find(self.key, first * self.n_items + second)
        count = self.count[number] - _lookup(self.of_pair, number * self.n_sessions + session)
        total = self.total[first] - _lookup(self.of_item, first * self.n_sessions + session)
        count = np.where(is_pair, count, 0)
        return np.divide(count, total, out=np.zeros(len(first)), where=total > 0), total


def _order(key: Longs, session: Longs, n_keys: int, n_sessions: int) -> Longs:
    """Return the order of pairs by key and then by session."""
    if n_keys * n_sessions < 1 << 63:  # one number of 64 bits contains both
        return np.argsort(key * n_sessions + session)
    return np.lexsort((session, key))


def _starts(values: Longs) -> NDArray[np.bool_]:
    """Return whether each value differs from the one before it."""
    return np.concatenate([np.ones(min(1, len(values)), dtype=np.bool_), values[1:] != values[:-1]])


def _run_sums(values: Longs, starts: NDArray[np.bool_]) -> Longs:
    """Sum the values of each run."""
    sums: Longs = np.add.reduceat(values, np.flatnonzero(starts)) if len(values) else values
    return sums


def _find(keys: Longs, wanted: Longs) -> tuple[Longs, NDArray[np.bool_]]:
    """Return the places of the wanted keys among ascending keys, and which of them exist.

    Keys are searched in ascending order, which reads memory in order and is several times faster.
    """
    order = np.argsort(wanted)
    number = np.empty(len(wanted), dtype=np.int64)
    number[order] = np.minimum(np.searchsorted(keys, wanted[order]), len(keys) - 1)
    return number, keys[number] == wanted


def _lookup(sums: tuple[Longs, Longs], key: Longs) -> Longs:
    """Return the sums of the given keys; 0 for keys that do not occur."""
    number, exists = _find(sums[0], key)
    found: Longs = np.where(exists, sums[1][number], 0)
    return found


def _blocks(items: Longs, n_items: int, threads: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of items; a thread's range has at most about its part of BLOCK_PAIRS and of all pairs."""
    pairs = np.cumsum(np.bincount(items, minlength=n_items)) * 2 * MAX_GAP
    size = max(1, min(BLOCK_PAIRS, int(pairs[-1])) // threads)
    edges = np.searchsorted(pairs, np.arange(0, pairs[-1] + size, size), side="right")
    edges = np.unique(np.concatenate([[0], edges, [n_items]]))
    yield from pairwise(edges.tolist())


def _pairs(items: Longs, session: Longs, low: int, high: int) -> _Pairs:
    """Return the pairs of different items in both directions; the first item is in low … high − 1."""
    parts = []
    for gap in range(1, min(MAX_GAP, len(items) - 1) + 1):
        earlier = np.flatnonzero((session[gap:] == session[:-gap]) & (items[gap:] != items[:-gap]))
        for first, second in ((earlier, earlier + gap), (earlier + gap, earlier)):
            inside = (items[first] >= low) & (items[first] < high)
            first, second = first[inside], second[inside]
            parts.append((items[first] - low, items[second], session[first], np.full(len(first), UNIT // gap)))
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return _Pairs(empty, empty, empty, empty)
    return _Pairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))
