"""What is asked of few items, each in one kernel: PyTorch would make five small ones of it, and a sort backwards."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from offrec.catalogue.triton import few_items_kernels
from offrec.catalogue.triton.launch import power

STEP = 512  # slots of a program


class _Values(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, state: Tensor, table: Tensor, bias: Tensor | None, items: Tensor) -> Tensor:
        state, table, items = state.contiguous(), table.contiguous(), items.contiguous()
        found = torch.empty(items.shape, device=state.device)
        n, wide = items.shape[1], power(table.shape[1])
        some = max(1, min(int(triton.next_power_of_2(n)), 2048 // wide))
        few_items_kernels.values[(len(state), triton.cdiv(n, some))](
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
            few_items_kernels.to_states[(len(state),)](
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


class _Scored(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_counts: Tensor,
        full: Tensor,
        by_place: Tensor,
        by_count: Tensor,
        product: Tensor | None,
        scale: float,
    ) -> Tensor:
        found = torch.empty_like(full)
        few_items_kernels.score[(triton.cdiv(full.numel(), STEP),)](
            by_place.contiguous(), by_count, full if product is None else product.contiguous(), log_counts, full, found,
            scale, full.numel(), full.shape[1], PRODUCT=product is not None, STEP=STEP, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(log_counts, full)
        ctx.scale, ctx.rest = scale, len(by_place) - full.shape[1]
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        log_counts, full = ctx.saved_tensors
        moved = torch.empty(2, *full.shape, device=full.device)
        few_items_kernels.score_gradients[(triton.cdiv(full.numel(), STEP),)](
            gradient.contiguous(), log_counts, full, moved, ctx.scale, full.numel(), STEP=STEP, num_warps=4
        )
        by_place, by_count = moved.sum(1)
        return (
            None,
            None,
            pad(by_place, (0, ctx.rest)),
            by_count.sum(),
            moved[0] if ctx.needs_input_grad[4] else None,
            None,
        )


def score_unique_items(
    log_counts: Tensor, full: Tensor, by_place: Tensor, by_count: Tensor, product: Tensor | None, scale: float
) -> Tensor:
    """[B, K] scale · (by_place + by_count · log n + product) in full slots, 0 in empty ones."""
    found: Tensor = _Scored.apply(log_counts, full, by_place, by_count, product, scale)  # type: ignore[no-untyped-call]
    return found


def _matched(values: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    found = torch.empty(targets.shape, device=values.device)
    few_items_kernels.matches[(triton.cdiv(len(targets), 8),)](
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
    bias = None if bias is None else bias.float().contiguous()
    found: Tensor = _Values.apply(state, table, bias, items)  # type: ignore[no-untyped-call]
    return found


def unique_items(every: Sequence[Tensor], n_items: int) -> list[tuple[Tensor, ...]]:
    """Of one or two times items [B, K] the first places, n_items elsewhere; the same with some item elsewhere; 1 there
    and 0 elsewhere; the logarithm of how often a row has each.
    """
    items, *others = (one.contiguous() for one in every)
    (rows, places), both = items.shape, len(every)
    first, inside = (items.new_empty(both, rows, places) for _ in range(2))
    full, log_counts = (torch.empty(both, rows, places, device=items.device) for _ in range(2))
    wide = int(triton.next_power_of_2(places))
    some = max(1, 256 // wide)
    few_items_kernels.compare[(triton.cdiv(rows, some), both)](
        items, *(others or [items]), first, inside, full, log_counts, rows, places, n_items,
        BM=some, N=wide, num_warps=2,
    )  # fmt: skip
    return list(zip(first, inside, full, log_counts, strict=True))
