"""The logsumexp over tiles on a CPU, with weights that the forward pass stores for the backward pass.

Recomputing the tiles would take a third product over the catalogue in the backward pass. The stored weights are
exp(z − top), where top is the largest value of the row up to their tile. Row factors, and not further passes over the
weights, turn them into the gradient.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from offrec.catalogue.head import ALL_MASKED, MASKED, Head
from offrec.catalogue.products import weighted_rows, weighted_states
from offrec.catalogue.tile_values import Base, ItemsByTile

LOG2E = 1.4426950408889634
MAX_BYTES = 1 << 28  # of stored weights; larger problems recompute their tiles
TILE_FLOATS = 1 << 19  # of a tile: 2 MB of float32


def stores_weights(head: Head) -> bool:
    """Return whether the weights of a head without corrections are stored for its backward pass."""
    parts = (head.state, head.table, head.bias)
    return (
        head.state.device.type == "cpu"
        and head.support is None
        and head.state.shape[1] > 0
        and head.state.dtype == head.table.dtype
        and 0 < head.n_rows * head.n_items * head.state.element_size() <= MAX_BYTES
        and torch.is_grad_enabled()
        and any(part is not None and part.requires_grad for part in parts)
    )


def logsumexp(head: Head, excluded: Tensor | None) -> Tensor:
    """Compute log Σ_a exp z(a) over the items of each row that are not excluded: [B].

    Args:
        head: A head without corrections; `stores_weights` returns True for it.
        excluded: [B, K] items to leave out, or None.
    """
    lse: Tensor = _LogSumExp.apply(head.state, head.table, head.bias, excluded)  # type: ignore[no-untyped-call]
    return lse


class _Storage:
    """Memory of stored weights, which is used again after the graph is deleted: new pages are slow to write."""

    _unused: ClassVar[dict[torch.dtype, Tensor]] = {}

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        known = self._unused.pop(dtype, None)
        self.tensor = known if known is not None and len(known) >= size else torch.empty(size, dtype=dtype)

    def __del__(self) -> None:
        self._unused[self.tensor.dtype] = self.tensor


class _LogSumExp(torch.autograd.Function):
    """Products of weights and operands have the operands' dtype; values and sums are at least float32."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, table: Tensor, bias: Tensor | None, excluded: Tensor | None) -> Tensor:
        head = Head(state, table, bias)
        base, rows = Base.of(head), head.n_rows
        width = max(256, TILE_FLOATS // rows)
        items = ItemsByTile.of(excluded, head.n_items, width)
        storage = _Storage(rows * head.n_items, state.dtype)
        buffer = base.state.new_empty(rows * width) if state.dtype != base.state.dtype else None
        top = base.state.new_full((rows,), MASKED)
        total, tops, weights = torch.zeros_like(top), list[Tensor](), list[Tensor]()
        for number, first in enumerate(range(0, head.n_items, width)):
            last = min(first + width, head.n_items)
            stored = storage.tensor[rows * first : rows * last].view(rows, last - first)
            z = base.tile(first, last, stored if buffer is None else buffer[: stored.numel()].view_as(stored))
            if items is not None:
                items.fill(z, number, first, MASKED)
            higher = torch.maximum(top, z.amax(1))
            weight = stored if buffer is None else z
            torch.sub(z, higher[:, None], out=weight)
            weight.mul_(LOG2E).exp2_()  # on CPUs, `exp2` is several times faster than `exp`
            total = total.mul_((top - higher).exp_()).add_(weight.sum(1))
            top = higher
            tops.append(top)
            weights.append(stored if buffer is None else stored.copy_(weight))
        lse = total.log().add_(top)
        ctx.save_for_backward(state, table, bias, lse, *tops)
        ctx.width, ctx.weights, ctx.storage = width, weights, storage
        return lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_lse: Tensor) -> tuple[Tensor | None, ...]:
        state, table, bias, lse, *tops = ctx.saved_tensors
        to_state, to_table, to_bias = (
            torch.zeros_like(part, dtype=dtype) if needed else None
            for part, dtype, needed in zip(
                (state, table, bias), (lse.dtype, table.dtype, lse.dtype), ctx.needs_input_grad, strict=False
            )
        )
        to_lse = to_lse.masked_fill(lse <= ALL_MASKED, 0.0)
        for number, (top, weight) in enumerate(zip(tops, ctx.weights, strict=True)):
            first = number * ctx.width
            own = slice(first, first + weight.shape[1])
            factor = (top - lse).exp_().mul_(to_lse)  # weights · factor is the gradient of z
            if to_state is not None:
                to_state.addcmul_(factor[:, None], weighted_rows(weight, table[own]).to(lse.dtype))
            scaled = factor[:, None] * state.to(lse.dtype)
            if to_table is not None:
                weighted_states(weight, scaled.to(weight.dtype), to_table[own])
            if to_bias is not None:
                to_bias[own] = factor.to(weight.dtype) @ weight
        state_gradient = None if to_state is None else to_state.to(state.dtype)
        return state_gradient, to_table, None if to_bias is None else to_bias.to(bias.dtype), None
