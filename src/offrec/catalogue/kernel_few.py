"""What is asked of few items, each in one kernel: PyTorch would make five small ones of it, and a sort backwards."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from offrec.catalogue.kernel_launch import power


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
def compare(items, first, inside, full, log_counts, n_rows, n, n_items, BM: tl.constexpr, N: tl.constexpr):
    """Some rows: which places are the first of their item, and how often the row has it."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    across = tl.arange(0, N)
    place = rows[:, None] * n + across[None, :]
    kept = (rows < n_rows)[:, None] & (across < n)[None, :]
    item = tl.load(items + place, mask=kept, other=n_items)
    before = tl.zeros([BM, N], dtype=tl.int32)
    count = tl.zeros([BM, N], dtype=tl.int32)
    for number in range(n):
        other = tl.load(items + rows * n + number, mask=rows < n_rows, other=-1)
        same = (item == other[:, None]).to(tl.int32)
        count += same
        before += tl.where(across[None, :] > number, same, 0)
    found = tl.where(before > 0, n_items, item)
    tl.store(first + place, found, mask=kept)
    tl.store(inside + place, tl.minimum(found, n_items - 1), mask=kept)
    tl.store(full + place, (found < n_items).to(tl.float32), mask=kept)
    tl.store(log_counts + place, tl.log(tl.maximum(count, 1).to(tl.float32)), mask=kept)


@triton.jit
def matches(
    sources, values, targets, found, n_rows, n_sources, n_targets,
    BM: tl.constexpr, TARGETS: tl.constexpr,
):  # fmt: skip
    """Some rows: for each target the sum of the values whose source is the same item."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = (rows < n_rows)[:, None]
    across = tl.arange(0, TARGETS)
    place = rows[:, None] * n_targets + across[None, :]
    kept = inside & (across < n_targets)[None, :]
    target = tl.load(targets + place, mask=kept, other=-1)
    total = tl.zeros([BM, TARGETS], dtype=tl.float32)
    for number in range(n_sources):
        source = tl.load(sources + rows * n_sources + number, mask=rows < n_rows, other=-2)
        value = tl.load(values + rows * n_sources + number, mask=rows < n_rows, other=0.0)
        total += tl.where(target == source[:, None], value[:, None], 0.0)
    tl.store(found + place, total, mask=kept)


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
        if needed[1]:
            moves = (gradient[..., None] * state.float()[:, None]).reshape(-1, table.shape[1])
            to_table = torch.zeros_like(table, dtype=torch.float32).index_add_(0, items.reshape(-1), moves)
            to_table = to_table.to(table.dtype)
        if needed[2]:
            to_bias = torch.zeros_like(bias).index_add_(0, items.reshape(-1), gradient.reshape(-1))
        return to_state, to_table, to_bias, None


class _Matched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(sources, targets)
        return _matched(values, sources, targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sources, targets = ctx.saved_tensors
        return _matched(gradient, targets, sources), None, None


def _matched(values: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    found = torch.empty(targets.shape, device=values.device)
    matches[(triton.cdiv(len(targets), 8),)](
        sources.contiguous(), values.contiguous(), targets.contiguous(), found, *sources.shape, targets.shape[1],
        BM=8, TARGETS=int(triton.next_power_of_2(targets.shape[1])), num_warps=1,
    )  # fmt: skip
    return found


def matched(values: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """[B, n] for each target [B, n] the sum of the values [B, H] whose source [B, H] is the same item."""
    found: Tensor = _Matched.apply(values, sources, targets)  # type: ignore[no-untyped-call]
    return found


def values_at(state: Tensor, table: Tensor, bias: Tensor | None, items: Tensor) -> Tensor:
    """state · table[item] + bias[item], in float32 whatever the operands are: [B, n] → [B, n]."""
    found: Tensor = _Values.apply(state, table, bias, items)  # type: ignore[no-untyped-call]
    return found



def compared(items: Tensor, n_items: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of items [B, K] the first places, n_items elsewhere; the same with some item elsewhere; 1 there and 0 elsewhere;
    the logarithm of how often a row has each.
    """
    items = items.contiguous()
    first, inside = torch.empty_like(items), torch.empty_like(items)
    full, log_counts = (torch.empty(items.shape, device=items.device) for _ in range(2))
    wide = int(triton.next_power_of_2(items.shape[1]))
    rows = max(1, 256 // wide)
    compare[(triton.cdiv(len(items), rows),)](
        items, first, inside, full, log_counts, *items.shape, n_items, BM=rows, N=wide, num_warps=2
    )
    return first, inside, full, log_counts
