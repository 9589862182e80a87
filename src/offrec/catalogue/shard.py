"""The part of a catalogue that one process stores, and the communication between the processes that store the others.

Rank r of a group of C processes stores the items A·r/C … A·(r + 1)/C − 1: their table rows, biases and optimiser state.
All ranks of the group compute the same rows of a batch. They exchange numbers per row, never numbers per item.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import embedding

from offrec.catalogue.initial_values import compute_unless_meta, on_meta


@dataclass(frozen=True)
class Shard:
    """A range of items, and the group of processes whose ranges together are the catalogue."""

    n_items: int  # A, of the whole catalogue
    index: int  # r, this process in the group
    count: int  # C, processes in the group
    group: Any = None  # the process group; None: the default group

    @property
    def first(self) -> int:
        """The index of the first item."""
        return self.n_items * self.index // self.count

    @property
    def size(self) -> int:
        """The number of items in the range; 0 if the group has more processes than the catalogue has items."""
        return self.n_items * (self.index + 1) // self.count - self.first

    def rows(self, more: int = 0) -> slice:
        """Return the range as a slice of a table of all items; the last rank also has the `more` rows after them."""
        return slice(self.first, self.first + self.size + (more if self.index == self.count - 1 else 0))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shard":
        return self  # a process group cannot be copied

    def local(self, items: Tensor) -> Tensor:
        """Number items of the whole catalogue within the range; items outside become `size`, the padding."""
        inside = (items >= self.first) & (items < self.first + self.size)
        return torch.where(inside, items - self.first, self.size)

    def replicate(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return tensors that are equal on all ranks. Their gradients, of which each rank has a part, are summed."""
        chosen = [one for one in tensors if one is not None and one.requires_grad]
        if not chosen or not torch.is_grad_enabled():
            return tensors
        copies = iter(_Replicate.apply(self.group, *chosen))  # type: ignore[no-untyped-call]
        return tuple(next(copies) if one is not None and one.requires_grad else one for one in tensors)

    def sum(self, part: Tensor) -> Tensor:
        """Sum the ranks' parts of a tensor. The gradient of the sum, which is equal on all ranks, is each part's."""
        total: Tensor = _Sum.apply(self.group, part)  # type: ignore[no-untyped-call]
        return total

    def combine(self, lse: Tensor, *means: Tensor) -> tuple[Tensor, ...]:
        """Combine the logsumexp [B] of each rank's items, and means [B] weighted by them, to those of all items.

        lse = log Σ_r exp lse_r        mean = Σ_r s_r mean_r,  s_r = exp(lse_r − lse)
        """
        combined: tuple[Tensor, ...] = _Combine.apply(self, lse, *means)  # type: ignore[no-untyped-call]
        return combined

    @torch.no_grad()
    def maximum(self, values: Tensor) -> Tensor:
        """Return the largest number of all ranks, without a gradient."""
        largest = values.max() if values.numel() else values.new_full((), -torch.inf)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return largest

    def gather(self, tensor: Tensor) -> Tensor:
        """Stack the tensors of all ranks, in rank order."""
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(parts, tensor, group=self.group)
        return torch.stack(parts)

    def lookup(self, items: Tensor, table: Tensor) -> Tensor:
        """Return the rows of a table at items of the whole catalogue; `table` contains this rank's rows."""
        index = items - self.first
        inside = (index >= 0) & (index < len(table))
        if not len(table):
            return self.sum(table.new_zeros(*items.shape, table.shape[1]) + table.sum())  # with a graph, as on others
        rows = embedding(torch.where(inside, index, 0), table)
        return self.sum(torch.where(inside[..., None], rows, 0.0))


_batch_group: Any = None


@contextmanager
def batch_group(group: Any) -> Iterator[None]:
    """Inside a `with` block, let a batch consist of the rows of all ranks of a group; None: of this process alone."""
    global _batch_group
    before, _batch_group = _batch_group, group
    try:
        yield
    finally:
        _batch_group = before


def sum_over_batch(part: Tensor) -> Tensor:
    """Return the sum over all rows of a batch, given the sum over the rows of this process. It has no gradient."""
    if _batch_group is None:
        return part
    total = part.detach().clone()
    dist.all_reduce(total, group=_batch_group)
    return total


def random_rows(rows: int, width: int, shard: Shard | None, scale: float = 1.0) -> Tensor:
    """Return normal rows [rows, width] with this standard deviation, or a shard's part of the same numbers.

    The numbers of a row do not depend on the number of ranks. Each rank draws all of them in blocks and stores its own,
    so that it never needs the memory of the whole table.
    """
    if shard is None:
        return compute_unless_meta((rows, width), lambda: torch.randn(rows, width) * scale)
    part = shard.rows(rows - shard.n_items)
    if on_meta():
        return torch.empty(part.stop - part.start, width)
    own = torch.empty(part.stop - part.start, width)
    for begin, end in _blocks(rows, width):
        block = torch.randn(end - begin, width)
        low, high = max(begin, part.start), min(end, part.stop)
        if low < high:
            own[low - part.start : high - part.start] = block[low - begin : high - begin]
    return own * scale


def _blocks(rows: int, width: int, floats: int = 1 << 24) -> list[tuple[int, int]]:
    """Divide rows into blocks such that drawing the blocks draws the same numbers as drawing all rows.

    torch draws normal numbers in groups of 16; only the last block may have another size.
    """
    step = max(16, floats // max(1, width) // 16 * 16)
    edges = [*range(0, max(1, rows - step), step), rows]
    if len(edges) > 2 and (edges[-1] - edges[-2]) * width < 16:
        del edges[-2]
    return list(pairwise(edges))


class _Replicate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *sum_all(gradients, ctx.group)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Any, part: Tensor) -> Tensor:
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Shard, lse: Tensor, *means: Tensor) -> tuple[Tensor, ...]:
        parts = shard.gather(torch.stack([lse, *means]))  # [C, 1 + n, B]
        whole = torch.logsumexp(parts[:, 0], 0)
        share = (parts[:, 0] - whole).exp()  # [C, B]
        combined = (share[:, None] * parts[:, 1:]).sum(0)  # [n, B]
        ctx.save_for_backward(share[shard.index], combined, *means)
        return whole, *combined

    @staticmethod
    def backward(ctx: Any, to_lse: Tensor, *to_means: Tensor) -> tuple[Tensor | None, ...]:
        share, combined, *means = ctx.saved_tensors
        gradient = to_lse
        for to_mean, mean, whole in zip(to_means, means, combined, strict=True):
            gradient = gradient + to_mean * (mean - whole)
        return None, share * gradient, *(share * to_mean for to_mean in to_means)


def sum_all(tensors: Sequence[Tensor], group: Any) -> list[Tensor]:
    """Sum several tensors over the ranks of a group, with one message per dtype."""
    sums: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        chosen = [number for number, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensors[number].reshape(-1) for number in chosen])
        dist.all_reduce(flat, group=group)
        for number, part in zip(chosen, torch.split(flat, [tensors[number].numel() for number in chosen]), strict=True):
            sums[number] = part.view(tensors[number].shape)
    return [sums[number] for number in range(len(tensors))]
