"""Shuffled epochs whose batches consist of the sessions of several ranks."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from offrec.data.list_log import ListBatch, ListEpochs, ListLog
from offrec.data.replay import EpochPlan, Epochs, Replay
from offrec.data.segments import Segments
from offrec.types import Batch, Longs, Size


class RankEpochs(Epochs):
    """The part of each batch that this rank reads. The batches are those of one process.

    Every rank plans the batches of all sessions from their lengths, and gathers the segments that it stores. Weights
    are those of the whole batch: over all ranks they sum to 1.

    Args:
        replay: The sessions of this rank.
        segments: The segments of all sessions, of which those of this rank are a part.
        batch_size: Rows per batch, over all ranks.
        seed: The seed of all plans.
        use_kernel: Whether to gather batches with a Triton kernel.
    """

    def __init__(
        self, replay: Replay, segments: Segments, batch_size: int, seed: int, *, use_kernel: bool = False
    ) -> None:
        super().__init__(replay, batch_size, seed, use_kernel=use_kernel)
        self.whole = copy(replay)  # only for its plans
        self.whole.segments = segments
        self.whole.rows, self.whole.lengths = segments.end - segments.first, segments.end - segments.begin
        end = replay.first_event + len(replay.items)
        self.is_own = (segments.first >= replay.first_event) & (segments.first < end)
        self.own_index = np.cumsum(self.is_own) - 1  # of each segment that this rank stores, in its replay
        batches = 2 * (int(self.whole.rows.sum()) // batch_size) + 1
        self.order = torch.zeros(len(replay.segments) + batches, dtype=torch.long, device=replay.device)
        self.edges = torch.zeros(batches + 1, dtype=torch.long, device=replay.device)
        self.weights = torch.zeros(batches, device=replay.device)

    def plan(self, epoch: int) -> EpochPlan:
        """Return this rank's part of the plan of an epoch."""
        if self._last_plan is None or self._last_plan[0] != epoch:
            whole = self.whole.plan_shuffled(self.batch_size, (self.seed, epoch))
            is_own = self.is_own[whole.order]
            count = np.add.reduceat(is_own.astype(np.int64), whole.edges[:-1])
            order, edges = self.own_index[whole.order[is_own]], np.concatenate([[0], np.cumsum(count)])
            # A batch without a segment of this rank gets its first segment, with weight 0: all ranks must take part.
            order = np.insert(order, edges[:-1][count == 0], 0)
            edges = np.concatenate([[0], np.cumsum(np.maximum(count, 1))])
            rows = np.array([size.rows for size in whole.sizes])
            self.plan_weights = np.where(count > 0, 1.0 / rows, 0.0).astype(np.float32)
            self._last_plan = epoch, self.replay._plan(order, edges)
        return self._last_plan[1]

    def begin(self, epoch: int) -> list[Size]:
        """Copy the plan of an epoch to the device and return the size of each step."""
        plan = self.plan(epoch)
        self.order[: len(plan.order)] = torch.from_numpy(plan.order).to(self.order.device)
        self.edges[: len(plan) + 1] = torch.from_numpy(plan.edges).to(self.edges.device)
        self.weights[: len(plan)] = torch.from_numpy(self.plan_weights).to(self.weights.device)
        return self.sizes(plan)

    def gather(self, step: Tensor, size: Size) -> Batch:
        """Gather this rank's part of the batch of a step; `step`: [1], on the device."""
        batch = super().gather(step, size)
        return batch.with_columns(weight=torch.where(batch.weight > 0, self.weights[step], 0.0))


class RankListEpochs(ListEpochs):
    """The part of each batch of lists that this rank reads. The batches are those of one process.

    Args:
        log: The lists of this rank's sessions.
        lengths: The number of lists of every session of all ranks.
        first: The number of this rank's first session among them.
        batch_size: Lists per batch, over all ranks; None: as in `ListEpochs`.
        seed: Seed of the order.
    """

    def __init__(self, log: ListLog, lengths: Longs, first: int, batch_size: int | None, seed: int) -> None:
        edges = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        self.whole = ListEpochs(replace(log, first=edges), batch_size, seed, lists=int(edges[-1]))
        super().__init__(log, self.whole.batch_size, seed)
        self.first = first
        self.weights: list[float] = []

    def begin(self, epoch: int) -> Sequence[Size]:
        """Plan an epoch and return the size of this rank's part of each batch."""
        self.epoch = epoch
        sizes = self.whole.begin(epoch)
        self.batches, self.weights, own_sizes = [], [], []
        lengths = (self.log.first[1:] - self.log.first[:-1]).cpu()
        for size, sessions in zip(sizes, self.whole.batches, strict=True):
            own = sessions - self.first
            own = own[(own >= 0) & (own < self.log.sessions)]
            self.weights.append(1.0 / size.rows if len(own) else 0.0)
            # All ranks must take part in every batch, so a rank without sessions in it has one with weight 0.
            own = own if len(own) else own.new_zeros(1)
            self.batches.append(own.to(self.log.first.device))
            own_sizes.append(Size(len(own), int(lengths[own].sum()), self.log.k))
        return own_sizes

    def gather(self, step: Tensor, size: Size) -> ListBatch:
        """Return this rank's part of the batch of a step."""
        batch = super().gather(step, size)
        return replace(batch, weight=torch.full_like(batch.weight, self.weights[int(step)]))
