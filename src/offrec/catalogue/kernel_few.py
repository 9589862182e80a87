"""Values at few items and rows of a table, whose gradients are gathered without a sort: each program keeps a block of
the table's gradient and looks through all the items for its own, in their order. So sums are the same every time.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from offrec.catalogue.kernel_launch import interpreted, power
from offrec.catalogue.kernel_parts import plus_product

BLOCK = 64  # items of a table's block, and of those looked through at a time


@triton.jit
def values(
    state, table, bias, items, found, width, n, D: tl.constexpr, BIAS: tl.constexpr, SOME: tl.constexpr
):  # fmt: skip
    """One row, some of its items: state · table[item] + bias[item]."""
    row = tl.program_id(0)
    at = tl.program_id(1) * SOME + tl.arange(0, SOME)
    across = tl.arange(0, D)
    kept = at < n
    item = tl.load(items + row.to(tl.int64) * n + at, mask=kept, other=0)
    mine = tl.load(state + row.to(tl.int64) * width + across, mask=across < width, other=0.0).to(tl.float32)
    vectors = tl.load(
        table + item[:, None] * width + across[None, :], mask=kept[:, None] & (across < width)[None, :], other=0.0
    )
    z = tl.sum(vectors.to(tl.float32) * mine[None, :], 1)
    if BIAS:
        z += tl.load(bias + item, mask=kept, other=0.0)
    tl.store(found + row.to(tl.int64) * n + at, z, mask=kept)


@triton.jit
def to_states(table, items, gradient, to_state, width, n, D: tl.constexpr, SOME: tl.constexpr):
    """One row: Σ g table[item]."""
    row = tl.program_id(0)
    across = tl.arange(0, D)
    total = tl.zeros([D], dtype=tl.float32)
    for first in range(0, n, SOME):
        at = first + tl.arange(0, SOME)
        kept = at < n
        item = tl.load(items + row.to(tl.int64) * n + at, mask=kept, other=0)
        g = tl.load(gradient + row.to(tl.int64) * n + at, mask=kept, other=0.0)
        vectors = tl.load(
            table + item[:, None] * width + across[None, :], mask=kept[:, None] & (across < width)[None, :], other=0.0
        )
        total += tl.sum(g[:, None] * vectors.to(tl.float32), 0)
    tl.store(to_state + row.to(tl.int64) * width + across, total.to(to_state.dtype.element_ty), mask=across < width)


@triton.jit
def to_tables(
    rows, items, gradient, to_table, to_bias, width, n_items, n_pairs, per_row,
    D: tl.constexpr, SIZE: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of items: Σ g rows[pair // per_row] over the pairs that are of the item; g = 1 where not SCALED."""
    first = tl.program_id(0) * SIZE
    own = first + tl.arange(0, SIZE)
    across = tl.arange(0, D)
    total = tl.zeros([SIZE, D], dtype=tl.float32)
    of_bias = tl.zeros([SIZE], dtype=tl.float32)
    for start in range(0, n_pairs, SIZE):
        at = start + tl.arange(0, SIZE)
        item = tl.load(items + at, mask=at < n_pairs, other=-1)
        if tl.max(((item >= first) & (item < first + SIZE)).to(tl.int32), 0) > 0:
            g = tl.where(at < n_pairs, 1.0, 0.0)
            if SCALED:
                g = tl.load(gradient + at, mask=at < n_pairs, other=0.0)
            share = tl.where(own[:, None] == item[None, :], g[None, :], 0.0)
            from_row = (at // per_row).to(tl.int64)
            mask = (at < n_pairs)[:, None] & (across < width)[None, :]
            vectors = tl.load(rows + from_row[:, None] * width + across[None, :], mask=mask, other=0.0)
            total = plus_product(total, share, vectors.to(tl.float32), PRECISION)
            if BIAS:
                of_bias += tl.sum(share, 1)
    kept = (own < n_items)[:, None] & (across < width)[None, :]
    place = to_table + own.to(tl.int64)[:, None] * width + across[None, :]
    tl.store(place, total.to(to_table.dtype.element_ty), mask=kept)
    if BIAS:
        tl.store(to_bias + own, of_bias, mask=own < n_items)


def _table_gradient(
    rows: Tensor, items: Tensor, gradient: Tensor | None, like: Tensor, bias: Tensor | None, per_row: int
) -> tuple[Tensor, Tensor | None]:
    to_table, to_bias = torch.empty_like(like), None if bias is None else torch.empty_like(bias)
    to_tables[(triton.cdiv(len(like), BLOCK),)](
        rows, items, rows if gradient is None else gradient, to_table, to_table if to_bias is None else to_bias,
        like.shape[1], len(like), items.numel(), per_row, D=power(like.shape[1]), SIZE=BLOCK,
        SCALED=gradient is not None, BIAS=to_bias is not None, PRECISION=interpreted("tf32x3"), num_warps=4,
    )  # fmt: skip
    return to_table, to_bias


class _Values(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, state: Tensor, table: Tensor, bias: Tensor | None, items: Tensor) -> Tensor:
        state, table, items = state.contiguous(), table.contiguous(), items.contiguous()
        found = torch.empty(items.shape, device=state.device)
        n, wide = items.shape[1], power(table.shape[1])
        some = max(1, min(int(triton.next_power_of_2(n)), 2048 // wide))
        values[(len(state), triton.cdiv(n, some))](
            state, table, table if bias is None else bias, items, found, table.shape[1], n,
            D=wide, BIAS=bias is not None, SOME=some, num_warps=1 if some * wide <= 512 else 4,
        )  # fmt: skip
        ctx.save_for_backward(state, table, bias, items)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        state, table, bias, items = ctx.saved_tensors
        gradient, needed = gradient.contiguous(), ctx.needs_input_grad
        to_state = to_table = to_bias = None
        if needed[0]:
            to_state, wide = torch.empty_like(state), power(table.shape[1])
            to_states[(len(state),)](
                table, items, gradient, to_state, table.shape[1], items.shape[1], D=wide, SOME=16, num_warps=2
            )
        if needed[1] or needed[2]:
            to_table, to_bias = _table_gradient(state, items, gradient, table, bias, items.shape[1])
        return to_state, to_table, to_bias, None


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(items, table)
        return torch.nn.functional.embedding(items, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        items, table = ctx.saved_tensors
        rows = gradient.reshape(-1, table.shape[1]).contiguous()
        return None, _table_gradient(rows, items.contiguous(), None, table, None, 1)[0]


def values_at(state: Tensor, table: Tensor, bias: Tensor | None, items: Tensor) -> Tensor:
    """state · table[item] + bias[item], in float32 whatever the operands are: [B, n] → [B, n]."""
    found: Tensor = _Values.apply(state, table, bias, items)  # type: ignore[no-untyped-call]
    return found


def rows_at(items: Tensor, table: Tensor) -> Tensor:
    """The table's rows: [...] → [..., d]."""
    found: Tensor = _Rows.apply(items, table)  # type: ignore[no-untyped-call]
    return found
