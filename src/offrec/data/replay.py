"""Batches on a device. The log lies there as flat arrays; segments of sessions are gathered, never stored.

A segment is a stretch of one session that is encoded once: its rows are the events `first` … `end` − 1, its tokens the
events `begin` … `end` − 1. No row sees more than `history` items.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from offrec.data.transitions import Transitions
from offrec.types import Batch, Longs, Sessions, Size

POOL = 64  # batches whose segments are sorted by length together, so that a batch wastes little on padding

Segmentation = Literal["sessions", "windows", "exact"]


@dataclass(frozen=True)
class Segments:
    begin: Longs  # [P]
    first: Longs  # [P]
    end: Longs  # [P]

    def __len__(self) -> int:
        return len(self.begin)

    def __getitem__(self, index: Longs) -> "Segments":
        return Segments(self.begin[index], self.first[index], self.end[index])


def cut(sessions: Sessions, history: int, how: Segmentation) -> Segments:
    """Sessions into segments, every event a row of exactly one.

    windows: each event by itself, after exactly its last `history` items.
    exact:   the same states as windows, but what shares a prefix is encoded together.
    sessions: long sessions in segments that overlap by half, so a late row sees between history / 2 and `history`
    items. Cheaper.
    """
    start, stop = np.asarray(sessions.offsets[:-1]), np.asarray(sessions.offsets[1:])
    if how == "windows":
        return _windows(start, start, stop, history)
    end = np.minimum(stop, start + history + 1)
    segments = [Segments(start, start, end)]
    if how == "exact":
        segments.append(_windows(start, end, stop, history))
    while how == "sessions" and (end < stop).any():
        long = end < stop
        first, stop = end[long], stop[long]
        begin = first - history // 2
        end = np.minimum(stop, begin + history + 1)
        segments.append(Segments(begin, first, end))
    whole = Segments(*(np.concatenate([getattr(p, name) for p in segments]) for name in ("begin", "first", "end")))
    return whole[np.flatnonzero(whole.first < whole.end)]


def _windows(start: Longs, first: Longs, stop: Longs, history: int) -> Segments:
    """One segment for each event from `first` to `stop`."""
    length = stop - first
    event = np.repeat(first - (np.cumsum(length) - length), length) + np.arange(length.sum())
    return Segments(np.maximum(np.repeat(start, length), event - history), event, event + 1)


@dataclass(frozen=True)
class Plan:
    """The batches of an epoch, not yet gathered: batch i is the segments order[edges[i]] … order[edges[i + 1] − 1]."""

    order: Longs  # [P]
    edges: Longs  # [n + 1]
    sizes: list[Size]  # [n] no larger than needed

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Longs]:
        return (self.order[first:last] for first, last in pairwise(self.edges))


class Replay:
    """The events of one split on a device, and batches of them.

    A batch is gathered on the device, by operations of static shape or by one kernel, nothing of it on the host: so it
    can be part of a captured update, and no step waits.
    """

    def __init__(
        self, sessions: Sessions, mdp: Transitions, n_items: int, history: int, how: Segmentation, device: torch.device
    ) -> None:
        self.base = int(sessions.offsets[0])
        self.items = torch.tensor(np.asarray(sessions.items[self.base : sessions.offsets[-1]]), device=device)
        self.mdp = torch.tensor(np.stack([mdp.reward, mdp.discount, mdp.return_to_go]), device=device)  # [3, E]
        self.n_items, self.history, self.device = n_items, history, device
        self._counted: list[Tensor] = []
        self.segments = cut(sessions, history, how)
        self.rows = self.segments.end - self.segments.first
        self.lengths = self.segments.end - self.segments.begin
        bounds = np.stack([self.segments.begin, self.segments.first, self.segments.end]) - self.base
        kind = np.int32 if len(self.items) < 2**31 else np.int64
        self.bounds = torch.from_numpy(bounds.astype(kind)).to(device)  # [3, P]

    @property
    def bytes(self) -> int:
        """What lies on the device."""
        return sum(tensor.nbytes for tensor in (self.items, self.bounds, self.mdp))

    def shuffled(self, batch_size: int, seed: int | tuple[int, ...]) -> Plan:
        """Segments in random order, segments of like length together, as many in a batch as `batch_size` rows hold."""
        random = np.random.default_rng(seed)
        order = random.permutation(len(self.segments))
        pool = (np.cumsum(self.rows[order]) - 1) // (batch_size * POOL)
        order = order[np.lexsort((self.lengths[order], pool))]
        edges = self._edges(order, batch_size)
        batches = random.permutation(len(edges) - 1)
        count = np.diff(edges)[batches]
        until = np.cumsum(count)
        order = order[np.repeat(edges[batches] - (until - count), count) + np.arange(len(order))]
        return self._plan(order, np.concatenate([[0], until]))

    def in_order(self, batch_size: int) -> Plan:
        """Every segment once, longest last: for evaluation, where the order is of no consequence."""
        order = np.argsort(self.lengths, kind="stable")
        return self._plan(order, self._edges(order, batch_size))

    def most(self, batch_size: int) -> Size:
        """No batch is larger than this."""
        rows = max(batch_size, int(self.rows.max(initial=1)))
        return Size(min(rows, len(self.segments)), rows, int(self.lengths.max(initial=1)))

    def _edges(self, order: Longs, batch_size: int) -> Longs:
        until, edges = np.cumsum(self.rows[order]), [0]
        while edges[-1] < len(order):
            before = until[edges[-1] - 1] if edges[-1] else 0
            edge = int(np.searchsorted(until, before + batch_size, side="right"))
            edges.append(max(edge, edges[-1] + 1))  # a segment of more rows than that is a batch by itself
        return np.array(edges, dtype=np.int64)

    def _plan(self, order: Longs, edges: Longs) -> Plan:
        count, first = np.diff(edges), edges[:-1]
        rows, length = np.add.reduceat(self.rows[order], first), np.maximum.reduceat(self.lengths[order], first)
        triples = zip(count.tolist(), rows.tolist(), length.tolist(), strict=True)
        return Plan(order, edges, [Size(*triple) for triple in triples])

    def batch(self, index: Longs) -> Batch:
        """The batch of these segments, as small as it can be."""
        size = Size(len(index), int(self.rows[index].sum()), int(self.lengths[index].max()))
        order = torch.empty(len(index), dtype=torch.long, device=self.device)
        _send(index, order)
        edges = torch.zeros(2, dtype=torch.long, device=self.device)
        edges[1:].fill_(len(index))
        return self.gather(order, edges, edges[:1], size)

    def gather(self, order: Tensor, edges: Tensor, step: Tensor, size: Size, *, by_kernel: bool = False) -> Batch:
        """The segments order[edges[step]] … order[edges[step + 1] − 1] as a batch of the given size; step [1].

        Where the size is larger than needed, the first segment and the first row are repeated, at weight 0. By a kernel
        of our own it is one launch.
        """
        history = min(self.history, size.length)
        if by_kernel:
            from offrec.data.triton_gather import Log, gathered  # needs triton

            log = Log(self.bounds, self.items, self.mdp)
            return gathered(log, order, edges, step, size, history, self.n_items, self.base)
        index, inside = self._index(order, edges, step, size)
        begin, first, end = self.bounds[:, index].long()
        rows = torch.where(inside, end - first, 0)
        until = rows.cumsum(0)
        row = self._numbers(size.rows)
        real = row < until[-1]
        row = torch.where(real, row, 0)
        segment = torch.searchsorted(until, row, right=True)
        event = (first - until + rows)[segment] + row
        position = event - begin[segment]
        token = begin[:, None] + self._numbers(size.length)
        tokens = self._items(token, token < end[:, None])
        ago = self._numbers(history + 1)[1:]
        recent = self._items(event[:, None] - ago, ago <= position[:, None])
        reward, discount, return_to_go = self.mdp[:, event]
        action, place, weight = self.items[event].long(), event + self.base, real / until[-1]
        return Batch(tokens, segment, position, recent, action, place, reward, discount, return_to_go, weight)

    def _index(self, order: Tensor, edges: Tensor, step: Tensor, size: Size) -> tuple[Tensor, Tensor]:
        """[N] the segments, the first again where there are fewer; and where there are not."""
        start, slot = edges[step], self._numbers(size.segments)
        inside = slot < edges[step + 1] - start
        return order[start + torch.where(inside, slot, 0)], inside

    def _numbers(self, n: int) -> Tensor:
        """0 … n − 1. Made once: captured updates read them where they lie, so those outgrown are kept too."""
        if not self._counted or len(self._counted[-1]) < n:
            self._counted.append(torch.arange(2 * n, device=self.device))
        return self._counted[-1][:n]

    def _items(self, where: Tensor, inside: Tensor) -> Tensor:
        return torch.where(inside, self.items[where.clamp(0, len(self.items) - 1)], self.n_items).long()

    def batches(self, batch_size: int) -> Iterator[Batch]:
        for index in self.in_order(batch_size):
            yield self.batch(index)


class Epochs:
    """Shuffled epochs of a replay. An epoch's plan is made on the host and sent once; a step then needs its number
    alone, and that may stand on the device.

    rounded: sizes come from a small set, so that few updates need capturing; what is too much has weight 0. by_kernel:
    a batch is gathered in one launch, which needs triton.
    """

    def __init__(
        self, replay: Replay, batch_size: int, seed: int, *, rounded: bool = False, by_kernel: bool = False
    ) -> None:
        self.replay, self.batch_size, self.seed = replay, batch_size, seed
        self.rounded, self.by_kernel = rounded, by_kernel
        self.most = replay.most(batch_size)
        most_batches = 2 * (int(replay.rows.sum()) // batch_size) + 1  # two in a row hold more than batch_size rows
        self.order = torch.zeros(len(replay.segments), dtype=torch.long, device=replay.device)
        self.edges = torch.zeros(most_batches + 1, dtype=torch.long, device=replay.device)
        self.planned: tuple[int, Plan] | None = None

    def plan(self, epoch: int) -> Plan:
        if self.planned is None or self.planned[0] != epoch:
            self.planned = epoch, self.replay.shuffled(self.batch_size, (self.seed, epoch))
        return self.planned[1]

    def begin(self, epoch: int) -> list[Size]:
        """Plan the epoch and put it on the device. Each step's size comes back."""
        plan = self.plan(epoch)
        _send(plan.order, self.order)
        _send(plan.edges, self.edges[: len(plan) + 1])
        return self.sizes(plan)

    def sizes(self, plan: Plan) -> list[Size]:
        return [rounded(size, self.most) for size in plan.sizes] if self.rounded else plan.sizes

    def gather(self, step: Tensor, size: Size) -> Batch:
        """step: [1], on the device."""
        return self.replay.gather(self.order, self.edges, step, size, by_kernel=self.by_kernel)


def rounded(size: Size, most: Size) -> Size:
    """A size of a small set that holds `size`. Steps of a recurrent backbone come one after the other, so lengths are
    rounded finely; segments are encoded side by side and cost less.
    """
    return Size(
        min(_round_up(size.segments, 2), max(most.segments, size.segments)),
        max(most.rows, size.rows),
        min(_round_up(size.length, 4), max(most.length, size.length)),
    )


def _round_up(number: int, parts: int) -> int:
    """The next of 1, 2, 4, 8 …, with the stretch between two of them divided into `parts`."""
    below = 1 << max(0, number.bit_length() - 1)
    step = max(1, below // parts)
    return -(-number // step) * step


def _send(array: Longs, to: Tensor) -> None:
    source = torch.from_numpy(array)
    if to.is_cuda:
        source = source.pin_memory()
    to.copy_(source, non_blocking=True)


def batch_from_histories(histories: list[list[int]], n_items: int, history: int, device: torch.device) -> Batch:
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
    weight = torch.full((len(kept),), 1 / max(1, len(kept)))
    batch = Batch(tokens, rows, position, recent, zero, zero, nothing, nothing, nothing, weight)
    return batch.to(device)


def automatic_batch_size(transitions: int) -> int:
    """A 200th of the log, between 64 and 1024: a small log needs many updates more than large batches."""
    power = round(math.log2(max(1, transitions / 200)))
    return min(1024, max(64, 1 << power))
