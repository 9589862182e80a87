"""Batches on a device. The log lies there as flat arrays; pieces of sessions are gathered, never stored.

A piece is a stretch of one session that is encoded once: its rows are the events `first` … `end` − 1, its tokens the
events `begin` … `end` − 1. No row sees more than `history` items.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from offrec.data.transitions import Transitions
from offrec.types import Batch, Longs, Sessions

POOL = 64  # batches whose pieces are sorted by length together, so that a batch wastes little on padding

Cut = Literal["sessions", "windows", "exact"]


@dataclass(frozen=True)
class Pieces:
    begin: Longs  # [P]
    first: Longs  # [P]
    end: Longs  # [P]

    def __len__(self) -> int:
        return len(self.begin)

    def __getitem__(self, index: Longs) -> "Pieces":
        return Pieces(self.begin[index], self.first[index], self.end[index])


def cut(sessions: Sessions, history: int, how: Cut) -> Pieces:
    """Sessions into pieces, every event a row of exactly one.

    windows: each event by itself, after exactly its last `history` items.
    exact:   the same states as windows, but what shares a prefix is encoded together.
    sessions: long sessions in pieces that overlap by half, so a late row sees between history / 2 and `history`
    items. Cheaper.
    """
    start, stop = np.asarray(sessions.offsets[:-1]), np.asarray(sessions.offsets[1:])
    if how == "windows":
        return _windows(start, start, stop, history)
    end = np.minimum(stop, start + history + 1)
    pieces = [Pieces(start, start, end)]
    if how == "exact":
        pieces.append(_windows(start, end, stop, history))
    while how == "sessions" and (end < stop).any():
        long = end < stop
        first, stop = end[long], stop[long]
        begin = first - history // 2
        end = np.minimum(stop, begin + history + 1)
        pieces.append(Pieces(begin, first, end))
    return Pieces(*(np.concatenate([getattr(p, name) for p in pieces]) for name in ("begin", "first", "end")))


def _windows(start: Longs, first: Longs, stop: Longs, history: int) -> Pieces:
    """One piece for each event from `first` to `stop`."""
    length = stop - first
    event = np.repeat(first - (np.cumsum(length) - length), length) + np.arange(length.sum())
    return Pieces(np.maximum(np.repeat(start, length), event - history), event, event + 1)


class Replay:
    """The events of one split on a device, and batches of them."""

    def __init__(
        self, sessions: Sessions, mdp: Transitions, n_items: int, history: int, how: Cut, device: torch.device
    ) -> None:
        self.base = int(sessions.offsets[0])
        self.items = torch.tensor(np.asarray(sessions.items[self.base : sessions.offsets[-1]]), device=device).long()
        self.mdp = [torch.tensor(array, device=device) for array in (mdp.reward, mdp.discount, mdp.to_go)]
        self.n_items, self.history = n_items, history
        self.pieces = cut(sessions, history, how)
        self.rows = self.pieces.end - self.pieces.first

    def shuffled(self, batch_size: int, seed: int | tuple[int, ...]) -> list[Longs]:
        """Pieces in random order, about `batch_size` rows a batch, pieces of like length together."""
        random = np.random.default_rng(seed)
        order = random.permutation(len(self.pieces))
        pool = (np.cumsum(self.rows[order]) - 1) // (batch_size * POOL)
        length = (self.pieces.end - self.pieces.begin)[order]
        order = order[np.lexsort((length, pool))]
        batches = self._cut(order, batch_size)
        return [batches[index] for index in random.permutation(len(batches))]

    def in_order(self, batch_size: int) -> list[Longs]:
        """Every piece once, longest last: for evaluation, where the order is of no consequence."""
        return self._cut(np.argsort(self.pieces.end - self.pieces.begin, kind="stable"), batch_size)

    def _cut(self, order: Longs, batch_size: int) -> list[Longs]:
        number = (np.cumsum(self.rows[order]) - 1) // batch_size
        return np.split(order, np.flatnonzero(np.diff(number)) + 1)

    def batch(self, index: Longs) -> Batch:
        pieces, device = self.pieces[index], self.items.device
        rows = pieces.end - pieces.first
        piece = np.repeat(np.arange(len(index)), rows)
        event = np.repeat(pieces.first - (np.cumsum(rows) - rows), rows) + np.arange(rows.sum())
        position = event - pieces.begin[piece]
        length = int((pieces.end - pieces.begin).max())
        host = [pieces.begin - self.base, pieces.end - self.base, piece, position, event - self.base]
        begin, end, piece_, position_, here = (torch.from_numpy(a).to(device, non_blocking=True) for a in host)
        token = begin[:, None] + torch.arange(length, device=device)
        tokens = self._gather(token, token < end[:, None])
        step = torch.arange(1, self.history + 1, device=device)
        recent = self._gather(here[:, None] - step, step <= position_[:, None])
        mdp = (array[here] for array in self.mdp)
        return Batch(tokens, piece_, position_, recent, self.items[here], here + self.base, *mdp)

    def _gather(self, where: Tensor, inside: Tensor) -> Tensor:
        return torch.where(inside, self.items[where.clamp(0, len(self.items) - 1)], self.n_items)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        for index in self.in_order(batch_size):
            yield self.batch(index)


def batch_of(histories: list[list[int]], n_items: int, history: int, device: torch.device) -> Batch:
    """Histories that stand in no log, as a batch: one row each, its action and reward left open (0)."""
    kept = [row[-history:] for row in histories]
    length = max((len(row) for row in kept), default=0)
    tokens = torch.full((len(kept), max(1, length)), n_items, dtype=torch.long)
    recent = torch.full((len(kept), history), n_items, dtype=torch.long)
    for row, items in enumerate(kept):
        tokens[row, : len(items)] = torch.tensor(items, dtype=torch.long)
        recent[row, : len(items)] = torch.tensor(items[::-1], dtype=torch.long)
    rows = torch.arange(len(kept))
    position = torch.tensor([len(row) for row in kept], dtype=torch.long)
    zero = torch.zeros(len(kept), dtype=torch.long)
    nothing = torch.zeros(len(kept))
    return Batch(*(t.to(device) for t in (tokens, rows, position, recent, zero, zero, nothing, nothing, nothing)))
