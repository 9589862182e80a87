"""Count which items occur close to each other in sessions.

    n(a, b) = Σ 1 / |p − q|        over positions p of a and q of b ≠ a in the same session, |p − q| ≤ MAX_GAP

n(a, b) / n(a) is the share of b among the neighbours of a, where n(a) = Σ_b n(a, b). For a training event, the shares
are also computed without the event's own session: otherwise, the session would predict itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from offrec.types import Doubles, Ints, Longs, Sessions

Floats = NDArray[np.float32]

MAX_GAP = 10
BLOCK_PAIRS = 1 << 25  # pairs of events that are counted at once


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
    weight: Doubles  # [P]


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
    offset, end_row = (0, n_items + 1) if part is None else (part.start, part.stop)
    table = np.full((end_row - offset, neighbours), n_items, dtype=np.int32)
    shares = np.zeros(table.shape, dtype=np.float32)
    totals = np.zeros(len(table), dtype=np.float32)
    own_shares, own_totals = (np.zeros((end, steps), dtype=np.float32) for _ in range(2))
    for low, high in _blocks(items, n_items):
        low, high = max(low, offset), min(high, end_row)
        if low >= high:
            continue
        counts = _Counts(_pairs(items, session, low, high), high - low, n_items, len(sessions))
        totals[low - offset : high - offset] = counts.total
        first, second, count = counts.key // n_items, counts.key % n_items, counts.count
        order = np.lexsort((-count, first))
        rank = np.arange(len(first)) - np.searchsorted(first, first[order])
        kept, rank = order[rank < neighbours], rank[rank < neighbours]
        rows = low - offset + first[kept]
        table[rows, rank] = second[kept]
        shares[rows, rank] = count[kept] / counts.total[first[kept]]
        for step in range(1, min(steps, len(items) - 1) + 1):
            event = step + np.flatnonzero(
                (session[step:] == session[:-step]) & (items[:-step] >= low) & (items[:-step] < high)
            )
            share, left = counts.shares_without(items[event - step] - low, items[event], session[event])
            own_shares[begin + event, step - 1], own_totals[begin + event, step - 1] = share, left
    return NeighbourCounts(table, shares, totals, own_shares, own_totals)


class _Counts:
    """Counts of a block of items, with or without one session."""

    def __init__(self, pairs: _Pairs, n_first: int, n_items: int, n_sessions: int) -> None:
        self.n_items, self.n_sessions = n_items, n_sessions
        key = pairs.first * n_items + pairs.second
        order = np.lexsort((pairs.session, key))
        key, session = key[order], pairs.session[order]
        run = _starts(key) | _starts(session)  # the pairs of one session with equal items
        weight = _run_sums(pairs.weight[order], run)
        key, session = key[run], session[run]
        new = _starts(key)
        self.key: Longs = key[new]  # a · A + b, in ascending order
        self.count = _run_sums(weight, new)  # n(a, b)
        self.total: Doubles = np.bincount(self.key // n_items, self.count, minlength=n_first).astype(np.float64)
        self.of_pair = (np.cumsum(new) - 1) * n_sessions + session, weight  # in ascending order
        distinct, number = np.unique(key // n_items * n_sessions + session, return_inverse=True)
        self.of_item = distinct, np.bincount(number, weight, minlength=len(distinct)).astype(np.float64)

    def shares_without(self, first: Longs, second: Longs, session: Longs) -> tuple[Doubles, Doubles]:
        """Return n(a, b) / n(a) and n(a), without the given sessions; 0 if nothing is left."""
        number = np.minimum(np.searchsorted(self.key, first * self.n_items + second), max(0, len(self.key) - 1))
        if not len(self.key):
            return np.zeros(len(first)), np.zeros(len(first))
        is_pair = self.key[number] == first * self.n_items + second
        count = self.count[number] - _lookup(self.of_pair, number * self.n_sessions + session)
        total = self.total[first] - _lookup(self.of_item, first * self.n_sessions + session)
        rounding = 1e-9 * self.total[first]  # the smallest weight is 1 / MAX_GAP
        count, total = np.where(is_pair & (count > rounding), count, 0.0), np.where(total > rounding, total, 0.0)
        return np.divide(count, total, out=np.zeros_like(count), where=total > 0), total


def _starts(values: Longs) -> NDArray[np.bool_]:
    """Return whether each value differs from the one before it."""
    return np.concatenate([np.ones(min(1, len(values)), dtype=np.bool_), values[1:] != values[:-1]])


def _run_sums(values: Doubles, starts: NDArray[np.bool_]) -> Doubles:
    """Sum the values of each run."""
    sums: Doubles = np.add.reduceat(values, np.flatnonzero(starts)) if len(values) else values
    return sums


def _lookup(sums: tuple[Longs, Doubles], key: Longs) -> Doubles:
    """Return the sums of the given keys; 0 for keys that do not occur."""
    keys, values = sums
    number = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    found: Doubles = np.where(keys[number] == key, values[number], 0.0)
    return found


def _blocks(items: Longs, n_items: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of items whose events have at most about BLOCK_PAIRS pairs together."""
    pairs = np.cumsum(np.bincount(items, minlength=n_items)) * 2 * MAX_GAP
    edges = np.searchsorted(pairs, np.arange(0, pairs[-1] + BLOCK_PAIRS, BLOCK_PAIRS), side="right")
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
            parts.append((items[first] - low, items[second], session[first], np.full(len(first), 1.0 / gap)))
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return _Pairs(empty, empty, empty, np.zeros(0))
    return _Pairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))
