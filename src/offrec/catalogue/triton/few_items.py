"""Operations on few items per row, one kernel each. In PyTorch each takes about five, and a sort backwards."""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from offrec.catalogue.triton import few_items_kernels
from offrec.catalogue.triton.launch import padded_width

STEP = 512  # slots per program


class _ValuesAt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, state: Tensor, table: Tensor, bias: Tensor | None, items: Tensor) -> Tensor:
        state, table, items = state.contiguous(), table.contiguous(), items.contiguous()
        z = torch.empty(items.shape, device=state.device)
        n, width = items.shape[1], padded_width(table.shape[1])
        chunk = max(1, min(int(triton.next_power_of_2(n)), 2048 // width))
        few_items_kernels.values[(len(state), triton.cdiv(n, chunk))](
            state, table, table if bias is None else bias, items, z, table.shape[1], n,
            D=width, BIAS=bias is not None, CHUNK=chunk, num_warps=1 if chunk * width <= 512 else 4,
        )  # fmt: skip
        ctx.save_for_backward(state, table, bias, items)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        state, table, bias, items = ctx.saved_tensors
        gradient, needed = gradient.contiguous(), ctx.needs_input_grad
        to_state = to_table = to_bias = None
        if needed[0]:
            to_state, width = torch.empty_like(state), padded_width(table.shape[1])
            few_items_kernels.state_gradients[(len(state),)](
                table, items, gradient, to_state, table.shape[1], items.shape[1], D=width, CHUNK=16, num_warps=2
            )
        if needed[1]:
            updates = (gradient[..., None] * state.float()[:, None]).reshape(-1, table.shape[1])
            to_table = torch.zeros_like(table, dtype=torch.float32).index_add_(0, items.reshape(-1), updates)
            to_table = to_table.to(table.dtype)
        if needed[2]:
            to_bias = torch.zeros_like(bias).index_add_(0, items.reshape(-1), gradient.reshape(-1))
        return to_state, to_table, to_bias, None


class _SumMatching(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(sources, targets)
        return _sum_matching(values, sources, targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sources, targets = ctx.saved_tensors
        return _sum_matching(gradient, targets, sources), None, None


class _ScoreUniqueItems(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_counts: Tensor,
        filled: Tensor,
        by_position: Tensor,
        by_count: Tensor,
        product: Tensor | None,
        scale: float,
    ) -> Tensor:
        scores = torch.empty_like(filled)
        few_items_kernels.score[(triton.cdiv(filled.numel(), STEP),)](
            by_position.contiguous(), by_count, filled if product is None else product.contiguous(), log_counts, filled,
            scores, scale, filled.numel(), filled.shape[1], PRODUCT=product is not None, STEP=STEP, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(log_counts, filled)
        ctx.scale, ctx.unused_positions = scale, len(by_position) - filled.shape[1]
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        log_counts, filled = ctx.saved_tensors
        gradients = torch.empty(2, *filled.shape, device=filled.device)
        few_items_kernels.score_gradients[(triton.cdiv(filled.numel(), STEP),)](
            gradient.contiguous(), log_counts, filled, gradients, ctx.scale, filled.numel(), STEP=STEP, num_warps=4
        )
        by_position, by_count = gradients.sum(1)
        to_product = gradients[0] if ctx.needs_input_grad[4] else None
        return None, None, pad(by_position, (0, ctx.unused_positions)), by_count.sum(), to_product, None


def values_at(state: Tensor, table: Tensor, bias: Tensor | None, items: Tensor) -> Tensor:
    """Compute state · table[item] + bias[item] at items [B, n], in float32 for operands of any type: [B, n]."""
    bias = None if bias is None else bias.float().contiguous()
    z: Tensor = _ValuesAt.apply(state, table, bias, items)  # type: ignore[no-untyped-call]
    return z


def sum_matching(values: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """Sum, for each target [B, n], the values [B, H] whose source [B, H] is the same item: [B, n]."""
    sums: Tensor = _SumMatching.apply(values, sources, targets)  # type: ignore[no-untyped-call]
    return sums


def _sum_matching(values: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    sums = torch.empty(targets.shape, device=values.device)
    few_items_kernels.sum_matching[(triton.cdiv(len(targets), 8),)](
        sources.contiguous(), values.contiguous(), targets.contiguous(), sums, *sources.shape, targets.shape[1],
        BM=8, TARGETS=int(triton.next_power_of_2(targets.shape[1])), num_warps=1,
    )  # fmt: skip
    return sums


def unique_items(items: Tensor, n_items: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the fields `items`, `filled`, `log_counts` and `clamped` of `UniqueItems`, [B, K] each."""
    items = items.contiguous()
    rows, positions = items.shape
    first, clamped = (torch.empty_like(items) for _ in range(2))
    filled, log_counts = (torch.empty(rows, positions, device=items.device) for _ in range(2))
    width = int(triton.next_power_of_2(positions))
    rows_each = max(1, 256 // width)
    few_items_kernels.unique_items[(triton.cdiv(rows, rows_each),)](
        items, first, clamped, filled, log_counts, rows, positions, n_items, BM=rows_each, N=width, num_warps=2
    )
    return first, filled, log_counts, clamped


def score_unique_items(
    log_counts: Tensor, filled: Tensor, by_position: Tensor, by_count: Tensor, product: Tensor | None, scale: float
) -> Tensor:
    """Compute scale · (by_position + by_count · log n + product) in filled slots, 0 in empty ones: [B, K]."""
    scores: Tensor = _ScoreUniqueItems.apply(log_counts, filled, by_position, by_count, product, scale)  # type: ignore[no-untyped-call]
    return scores
