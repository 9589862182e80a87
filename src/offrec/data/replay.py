"""Gather batches on a device from a log that is stored there as flat arrays."""

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from offrec.data.segments import Segmentation, Segments, segment_sessions
from offrec.data.transitions import Transitions
from offrec.types import Batch, Longs, Sessions, Size

POOL = 64  # segments are sorted by length within groups of this many batches, to reduce padding


@dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch: batch i consists of the segments order[edges[i]] … order[edges[i + 1] − 1]."""

    order: Longs  # [P]
    edges: Longs  # [n + 1]
    sizes: list[Size]  # [n] the smallest possible

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Longs]:
        return (self.order[first:last] for first, last in pairwise(self.edges))

    def reordered(self, batches: Longs) -> "EpochPlan":
        """Return the same batches in another order."""
        count = np.diff(self.edges)[batches]
        end = np.cumsum(count)
        order = self.order[np.repeat(self.edges[batches] - (end - count), count) + np.arange(len(self.order))]
        return EpochPlan(order, np.concatenate([[0], end]), [self.sizes[i] for i in batches.tolist()])


class Replay:
    """Stores the events of sessions on a device and gathers batches of them.

    Batches are gathered on the device, by operations with static shapes or by one kernel. Gathering can therefore be
    part of a captured CUDA graph, and no step waits for the host.

    Args:
        sessions: The sessions.
        mdp: Their transitions.
        n_items: The size of the catalogue.
        history: The maximum number of items in the history of a row.
        segmentation: How sessions are divided; see `segment_sessions`.
        device: Where the events are stored.
    """

    def __init__(
        self,
        sessions: Sessions,
        mdp: Transitions,
        n_items: int,
        history: int,
        segmentation: Segmentation,
        device: torch.device,
    ) -> None:
        self.first_event = int(sessions.offsets[0])
        self.items = torch.tensor(np.asarray(sessions.items[self.first_event : sessions.offsets[-1]]), device=device)
        self.mdp = torch.tensor(np.stack([mdp.reward, mdp.discount, mdp.return_to_go]), device=device)  # [3, E]
        self.n_items, self.history, self.device = n_items, history, device
        self._ranges: list[Tensor] = []
        self._set_segments(segment_sessions(sessions, history, segmentation))

    def _set_segments(self, segments: Segments) -> None:
        self.segments = segments
        self.rows = segments.end - segments.first  # [P]
        self.lengths = segments.end - segments.begin  # [P]
        bounds = np.stack([segments.begin, segments.first, segments.end]) - self.first_event
        dtype = np.int32 if len(self.items) < 2**31 else np.int64
        self.bounds = torch.from_numpy(bounds.astype(dtype)).to(self.device)  # [3, P]

    def subset(self, indices: Longs) -> Self:
        """Return a replay of some segments. The events on the device are shared, not copied.

        Args:
            indices: The segments, in any order; a segment can occur several times.
        """
        part = copy(self)
        part._set_segments(self.segments[indices])
        return part

    @property
    def bytes(self) -> int:
        """The bytes on the device."""
        return sum(tensor.nbytes for tensor in (self.items, self.bounds, self.mdp))

    def plan_shuffled(self, batch_size: int, seed: int | tuple[int, ...]) -> EpochPlan:
        """Plan an epoch in random order.

        Args:
            batch_size: The maximum number of rows in a batch. A segment with more rows forms its own batch.
            seed: The seed of the order.

        Returns:
            Batches of segments of similar length.
        """
        random = np.random.default_rng(seed)
        order = random.permutation(len(self.segments))
        pool = (np.cumsum(self.rows[order]) - 1) // (batch_size * POOL)
        # Every second pool is in descending order. A batch that spans two pools then has segments of similar length.
        lengths = np.where(pool % 2 == 0, self.lengths[order], -self.lengths[order])
        order = order[np.lexsort((lengths, pool))]
        edges = self._batch_edges(order, batch_size)
        return self._plan(order, edges).reordered(random.permutation(len(edges) - 1))

    def plan_by_length(self, batch_size: int) -> EpochPlan:
        """Plan a pass over all segments in ascending order of length, for evaluation."""
        order = np.argsort(self.lengths, kind="stable")
        return self._plan(order, self._batch_edges(order, batch_size))

    def largest_size(self, batch_size: int) -> Size:
        """Return an upper bound on the sizes of all batches."""
        rows = max(batch_size, int(self.rows.max(initial=1)))
        return Size(min(rows, len(self.segments)), rows, int(self.lengths.max(initial=1)))

    def _batch_edges(self, order: Longs, batch_size: int) -> Longs:
        end, edges = np.cumsum(self.rows[order]), [0]
        while edges[-1] < len(order):
            before = end[edges[-1] - 1] if edges[-1] else 0
            edge = int(np.searchsorted(end, before + batch_size, side="right"))
            edges.append(max(edge, edges[-1] + 1))
        return np.array(edges, dtype=np.int64)

    def _plan(self, order: Longs, edges: Longs) -> EpochPlan:
        count, first = np.diff(edges), edges[:-1]
        rows, length = np.add.reduceat(self.rows[order], first), np.maximum.reduceat(self.lengths[order], first)
        shapes = zip(count.tolist(), rows.tolist(), length.tolist(), strict=True)
        return EpochPlan(order, edges, [Size(*shape) for shape in shapes])

    def batch(self, indices: Longs) -> Batch:
        """Return the batch of these segments, in the smallest possible size."""
        size = Size(len(indices), int(self.rows[indices].sum()), int(self.lengths[indices].max()))
        order = torch.empty(len(indices), dtype=torch.long, device=self.device)
        _copy_to_device(indices, order)
        edges = torch.zeros(2, dtype=torch.long, device=self.device)
        edges[1:].fill_(len(indices))
        return self.gather(order, edges, edges[:1], size)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield batches of all segments in ascending order of length."""
        for indices in self.plan_by_length(batch_size):
            yield self.batch(indices)

    def gather(self, order: Tensor, edges: Tensor, step: Tensor, size: Size, *, use_kernel: bool = False) -> Batch:
        """Gather the batch of one step.

        Args:
            order: [P] the segments of the epoch, on the device.
            edges: [n + 1] the first segment of each batch in `order`, on the device.
            step: [1] the number of the batch, on the device.
            size: The size of the batch. If it is larger than necessary, the first segment and the first row are
                repeated with weight 0.
            use_kernel: Whether to gather with a single Triton kernel.
        """
        history = min(self.history, size.length)
        if use_kernel:
            from offrec.data.triton_gather import DeviceLog, gather_by_kernel  # needs triton

            log = DeviceLog(self.bounds, self.items, self.mdp)
            return gather_by_kernel(log, order, edges, step, size, history, self.n_items, self.first_event)
        indices, is_real_segment = self._segment_indices(order, edges, step, size)
        begin, first, end = self.bounds[:, indices].long()
        rows = torch.where(is_real_segment, end - first, 0)
        rows_up_to = rows.cumsum(0)
        row = self._range(size.rows)
        is_real_row = row < rows_up_to[-1]
        row = torch.where(is_real_row, row, 0)
        segment = torch.searchsorted(rows_up_to, row, right=True)
        event = (first - rows_up_to + rows)[segment] + row
        position = event - begin[segment]
        token = begin[:, None] + self._range(size.length)
        tokens = self._items_at(token, token < end[:, None])
        lag = self._range(history + 1)[1:]
        recent = self._items_at(event[:, None] - lag, lag <= position[:, None])
        reward, discount, return_to_go = self.mdp[:, event]
        return Batch(
            tokens=tokens,
            segment=segment,
            position=position,
            recent=recent,
            action=self.items[event].long(),
            event=event + self.first_event,
            reward=reward,
            discount=discount,
            return_to_go=return_to_go,
            weight=is_real_row / rows_up_to[-1],
        )

    def _segment_indices(self, order: Tensor, edges: Tensor, step: Tensor, size: Size) -> tuple[Tensor, Tensor]:
        """[N] the segments of the batch, padded with its first segment, and whether each is not padding."""
        start, slot = edges[step], self._range(size.segments)
        is_real = slot < edges[step + 1] - start
        return order[start + torch.where(is_real, slot, 0)], is_real

    def _range(self, n: int) -> Tensor:
        """Return 0 … n − 1. Outgrown tensors are not freed, because captured CUDA graphs read them."""
        if not self._ranges or len(self._ranges[-1]) < n:
            self._ranges.append(torch.arange(2 * n, device=self.device))
        return self._ranges[-1][:n]

    def _items_at(self, event: Tensor, is_valid: Tensor) -> Tensor:
        return torch.where(is_valid, self.items[event.clamp(0, len(self.items) - 1)], self.n_items).long()


class Epochs:
    """Shuffled epochs of a replay.

    The plan of an epoch is made on the host and copied to the device once. A step then needs only its number, which can
    be stored on the device.

    Args:
        replay: The events.
        batch_size: See `Replay.plan_shuffled`.
        seed: The seed of all plans. A plan depends only on the seed and the number of the epoch.
        round_sizes: Whether to round sizes up to a small set, so that few distinct sizes must be captured.
        use_kernel: Whether to gather batches with a Triton kernel.
    """

    def __init__(
        self, replay: Replay, batch_size: int, seed: int, *, round_sizes: bool = False, use_kernel: bool = False
    ) -> None:
        self.replay, self.batch_size, self.seed = replay, batch_size, seed
        self.round_sizes, self.use_kernel = round_sizes, use_kernel
        self.largest_size = replay.largest_size(batch_size)
        # Two consecutive batches together have more than batch_size rows, which bounds the number of batches.
        max_batches = 2 * (int(replay.rows.sum()) // batch_size) + 1
        self.order = torch.zeros(len(replay.segments), dtype=torch.long, device=replay.device)
        self.edges = torch.zeros(max_batches + 1, dtype=torch.long, device=replay.device)
        self._last_plan: tuple[int, EpochPlan] | None = None

    def plan(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch."""
        if self._last_plan is None or self._last_plan[0] != epoch:
            plan = self.replay.plan_shuffled(self.batch_size, (self.seed, epoch))
            self._last_plan = epoch, plan
        return self._last_plan[1]

    def begin(self, epoch: int) -> list[Size]:
        """Copy the plan of an epoch to the device and return the size of each step."""
        plan = self.plan(epoch)
        _copy_to_device(plan.order, self.order)
        _copy_to_device(plan.edges, self.edges[: len(plan) + 1])
        return self.sizes(plan)

    def sizes(self, plan: EpochPlan) -> list[Size]:
        """Return the size of each step."""
        return [round_size(size, self.largest_size) for size in plan.sizes] if self.round_sizes else plan.sizes

    def gather(self, step: Tensor, size: Size) -> Batch:
        """Gather the batch of a step; `step`: [1], on the device."""
        return self.replay.gather(self.order, self.edges, step, size, use_kernel=self.use_kernel)


def round_size(size: Size, largest: Size) -> Size:
    """Round a size up to one of a small set of sizes.

    Lengths are rounded more finely than numbers of segments: a recurrent backbone computes the steps of a segment one
    after the other, but all segments concurrently.
    """
    return Size(
        min(_round_up(size.segments, 2), max(largest.segments, size.segments)),
        max(largest.rows, size.rows),
        min(_round_up(size.length, 4), max(largest.length, size.length)),
    )


def _round_up(number: int, parts: int) -> int:
    """Round up to a power of 2, or to one of `parts` equal steps between two powers of 2."""
    power = 1 << max(0, number.bit_length() - 1)
    step = max(1, power // parts)
    return -(-number // step) * step


def _copy_to_device(array: Longs, target: Tensor) -> None:
    source = torch.from_numpy(array)
    if target.is_cuda:
        source = source.pin_memory()
    target.copy_(source, non_blocking=True)


def batch_from_histories(histories: list[list[int]], n_items: int, history: int, device: torch.device) -> Batch:
    """Return a batch with one row per history, for histories that are not part of a log.

    Args:
        histories: Item indices, oldest first.
        n_items: The size of the catalogue.
        history: Only the last `history` items of each are used.
        device: Where to store the batch.

    Returns:
        A batch whose actions and rewards are 0.
    """
    recent_items = [items[-history:] for items in histories]
    count = len(recent_items)
    length = max((len(items) for items in recent_items), default=0)
    tokens = torch.full((count, max(1, length)), n_items, dtype=torch.long)
    recent = torch.full((count, history), n_items, dtype=torch.long)
    for row, items in enumerate(recent_items):
        tokens[row, : len(items)] = torch.tensor(items, dtype=torch.long)
        recent[row, : len(items)] = torch.tensor(items[::-1], dtype=torch.long)
    position = torch.tensor([len(items) for items in recent_items], dtype=torch.long)
    zeros, no_reward = torch.zeros(count, dtype=torch.long), torch.zeros(count)
    weight = torch.full((count,), 1 / max(1, count))
    rows = torch.arange(count)
    batch = Batch(tokens, rows, position, recent, zeros, zeros, no_reward, no_reward, no_reward, weight)
    return batch.to(device)


def automatic_batch_size(transitions: int) -> int:
    """Return about a 200th of the log, between 64 and 1024: a small log needs many updates, not large batches."""
    power = round(math.log2(max(1, transitions / 200)))
    return min(1024, max(64, 1 << power))
