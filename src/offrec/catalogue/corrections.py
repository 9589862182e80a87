"""Operations on corrected items, the few items per row whose values a head changes."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offrec.catalogue.backend import MAX_KERNEL_WIDTH, kernels_enabled, kernels_read

MAX_COMPARED = 64  # longer rows are sorted: comparing all pairs would need more memory than a sort
MAX_COMPARED_ON_CPU = 6  # a CPU sorts longer rows faster than it compares all pairs


@dataclass(frozen=True)
class UniqueItems:
    """Items [B, K] with duplicates removed from each row.

    The first position of an item in its row is its slot; its later positions, and padding, are empty slots.
    """

    given: Tensor  # [B, K] the items before duplicates were removed
    items: Tensor  # [B, K] n_items in empty slots
    filled: Tensor  # [B, K] 1.0 in filled slots, 0.0 in empty ones
    log_counts: Tensor  # [B, K] log of the item's count in its row
    clamped: Tensor  # [B, K] `items`, with a valid index in empty slots
    pairs_by_tile: dict[Any, Any] = field(default_factory=dict)  # (row, item) pairs that kernels sorted, by tile shape


def unique_items(items: Tensor, n_items: int) -> UniqueItems:
    """Remove duplicates from each row of items [B, K]; indices from `n_items` on are padding."""
    if kernels_enabled(items) and items.numel() and items.shape[1] <= MAX_COMPARED:
        from offrec.catalogue.triton import few_items  # needs triton

        return UniqueItems(items, *few_items.unique_items(items, n_items))
    if items.is_cpu and items.shape[1] > MAX_COMPARED_ON_CPU:
        first, counts = _first_and_counts_by_sorting(items, n_items)
    else:  # a sort launches many small kernels on a GPU
        same = items[:, :, None] == items[:, None, :]
        first, counts = items.masked_fill(same.tril(-1).any(2), n_items), same.sum(2)
    clamped, filled = first.clamp(max=n_items - 1), (first < n_items).float()
    return UniqueItems(items, first, filled, counts.log(), clamped)


def _first_and_counts_by_sorting(items: Tensor, n_items: int) -> tuple[Tensor, Tensor]:
    """Return items [B, K] with later positions of an item replaced by n_items, and each item's count in its row."""
    ordered, position = items.sort(dim=1, stable=True)  # equal items are adjacent, in the order of their positions
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = begins.cumsum(1) - 1
    counts = torch.zeros_like(run).scatter_add_(1, run, torch.ones_like(run)).gather(1, run)
    first = torch.empty_like(items).scatter_(1, position, ordered.masked_fill(~begins, n_items))
    return first, torch.empty_like(counts).scatter_(1, position, counts)


def score_unique_items(
    unique: UniqueItems, by_position: Tensor, by_count: Tensor, product: Tensor | None, scale: float
) -> Tensor:
    """Compute scale · (by_position + by_count · log n + product) in filled slots, 0 in empty ones.

    Args:
        unique: Items [B, K] of each row.
        by_position: [P] with P ≥ K, one term per position; the first K are used.
        by_count: 0-d, the factor of the log count.
        product: [B, K], added if given.
        scale: A factor for the whole sum.

    Returns:
        [B, K] scores, differentiable in `by_position`, `by_count` and `product`.

    Raises:
        ValueError: If the shapes do not match.
    """
    shape = unique.items.shape
    if shape[1] > len(by_position) or (product is not None and product.shape != shape):
        product_shape = None if product is None else tuple(product.shape)
        raise ValueError(f"{len(by_position)} positions and products {product_shape} do not match items {tuple(shape)}")
    if kernels_enabled(unique.items) and unique.items.numel() and by_position.dtype == torch.float32:
        from offrec.catalogue.triton import few_items  # needs triton

        return few_items.score_unique_items(unique.log_counts, unique.filled, by_position, by_count, product, scale)
    score = by_position[: shape[1]] + by_count * unique.log_counts
    score = score if product is None else score + product
    return score * (scale * unique.filled)


def sum_matching(values: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """Sum, for each target [B, n], the values [B, H] whose source [B, H] is the same item: [B, n]."""
    if kernels_read(values, targets) and values.dtype == torch.float32 and targets.shape[1] <= MAX_KERNEL_WIDTH:
        from offrec.catalogue.triton import few_items  # needs triton

        return few_items.sum_matching(values, sources, targets)
    same = sources[:, None, :] == targets[:, :, None]  # [B, n, H]
    return torch.where(same, values[:, None, :], 0.0).sum(-1)  # not a product: 0 · NaN would make the whole row NaN
