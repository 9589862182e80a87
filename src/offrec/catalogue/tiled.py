"""Functions over a head in tiles of items: memory for [B, tile], never for [B, A].

On two cores a tile that stays in the cache is also about three times faster to multiply than the whole matrix.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from offrec.catalogue.head import Head

CACHE_FLOATS = 1 << 20  # a CPU's tile: 4 MB of float32
DEVICE_FLOATS = 1 << 27  # a GPU's: 512 MB


def tile_width(head: Head) -> int:
    floats = CACHE_FLOATS if head.state.device.type == "cpu" else DEVICE_FLOATS
    return max(256, floats // max(1, head.rows))


def tiles(head: Head, corrections: "_Corrections | None" = None) -> Iterator[tuple[int, Tensor]]:
    """(first item, logits [B, tile]) over the catalogue, corrections included."""
    width = tile_width(head)
    corrections = corrections or _Corrections(head, width)
    for number, first in enumerate(range(0, head.n_items, width)):
        table = head.table[first : first + width]
        bias = head.bias[first : first + width] if head.bias is not None else None
        z = head.state @ table.T if bias is None else torch.addmm(bias, head.state, table.T)
        corrections.add_to(z, number, first)
        yield first, z


class _Corrections:
    """The corrections by tile, so that each tile touches only its own."""

    def __init__(self, head: Head, width: int) -> None:
        self.edges: list[int] | None = None
        self.instead = head.instead
        if head.items is None or head.values is None or head.items.numel() == 0:
            return
        row, place = (head.items < head.n_items).nonzero(as_tuple=True)
        item = head.items[row, place]
        n_tiles = -(-head.n_items // width)
        if n_tiles > 1:
            item, order = item.sort(stable=True)
            row, place = row[order], place[order]
        marks = torch.arange(n_tiles + 1, device=item.device) * width
        self.edges = torch.searchsorted(item, marks.to(item.dtype)).tolist() if n_tiles > 1 else [0, len(item)]
        self.row, self.item, self.value = row, item, head.values[row, place]

    def add_to(self, z: Tensor, number: int, first: int) -> None:
        """z of the tile `number`, whose first item is `first`, corrected in place."""
        self.clear(z, number, first)
        if mine := self._slice(number):
            z.view(-1).scatter_add_(0, self._flat(z, mine, first), self.value[mine])

    def clear(self, z: Tensor, number: int, first: int) -> None:
        """Where corrections stand instead of the base, 0."""
        if self.instead and (mine := self._slice(number)):
            z.view(-1).index_fill_(0, self._flat(z, mine, first), 0.0)

    def _flat(self, z: Tensor, mine: slice, first: int) -> Tensor:
        return self.row[mine] * z.shape[1] + (self.item[mine] - first)

    def _slice(self, number: int) -> slice | None:
        if self.edges is None or self.edges[number] == self.edges[number + 1]:
            return None
        return slice(self.edges[number], self.edges[number + 1])


class _LogSumExp(torch.autograd.Function):
    """Keeps one number a row; the backward pass computes each tile again."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, table: Tensor, bias: Any, values: Any, items: Any, instead: bool) -> Tensor:
        head = Head(state, table, bias, items, values, instead)
        top = state.new_full((head.rows,), -torch.inf)
        total = state.new_zeros(head.rows)
        for _, z in tiles(head):
            higher = torch.maximum(top, z.amax(1))
            total = total * (top - higher).exp() + z.sub_(higher[:, None]).exp_().sum(1)
            top = higher
        lse = top + total.log()
        ctx.save_for_backward(state, table, bias, values, items, lse)
        ctx.instead = instead
        return lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        state, table, bias, values, items, lse = ctx.saved_tensors
        head = Head(state, table, bias, items, values, ctx.instead)
        corrections = _Corrections(head, tile_width(head))
        needed = ctx.needs_input_grad
        to_state = torch.zeros_like(state) if needed[0] else None
        to_table = torch.empty_like(table) if needed[1] else None
        to_bias = torch.empty_like(bias) if needed[2] else None
        for number, (first, z) in enumerate(tiles(head, corrections)):
            weight = z.sub_(lse[:, None]).exp_().mul_(gradient[:, None])  # softmax, times what comes from above
            corrections.clear(weight, number, first)  # nothing flows to a base that was replaced
            last = first + z.shape[1]
            if to_state is not None:
                to_state.addmm_(weight, table[first:last])
            if to_table is not None:
                torch.mm(weight.T, state, out=to_table[first:last])
            if to_bias is not None:
                torch.sum(weight, 0, out=to_bias[first:last])
        to_values = None
        if needed[3]:
            inside = items < head.n_items
            z = head.at(items.clamp(max=head.n_items - 1))
            to_values = (z - lse[:, None]).exp() * gradient[:, None] * inside
        return to_state, to_table, to_bias, to_values, None, None


def logsumexp(head: Head) -> Tensor:
    """log Σ_a exp z(a): [B]."""
    arguments = (head.state, head.table, head.bias, head.values, head.items, head.instead)
    lse: Tensor = _LogSumExp.apply(*arguments)  # type: ignore[no-untyped-call]
    return lse


def log_prob(head: Head, actions: Tensor) -> Tensor:
    """log softmax(z) at actions: [B, n] → [B, n]."""
    return head.at(actions) - logsumexp(head)[:, None]
