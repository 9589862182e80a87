"""Argmax, rank and top-k with kernels.

Values are computed in full float32, whatever precision torch uses for matrix products: rounding would change results.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from offrec.catalogue.head import Head
from offrec.catalogue.noise import Noise
from offrec.catalogue.slots import Slots
from offrec.catalogue.triton import search_kernels
from offrec.catalogue.triton.launch import (
    Blocks,
    check,
    interpreted,
    launch_fitting,
    padded_width,
    pairs_by_tile,
    shares,
)

T = TypeVar("T")
SIZES = {64: Blocks(64, 128, 4, 2), 128: Blocks(64, 64, 4, 2), 256: Blocks(32, 32, 4, 2)}  # by width
PRECISION = "tf32x3"  # three TF32 products, as exact as float32
MAX_PEAKS = 1 << 24  # floats of [rows, tiles] at once
MAX_CANDIDATES = 1 << 25  # floats of gathered item vectors at once


@dataclass(frozen=True)
class _Launch:
    """The arguments that the kernels of this module share."""

    grid: tuple[int, int]
    head: tuple[Any, ...]  # state, table, bias, width
    pairs: tuple[Tensor, ...]
    sizes: tuple[int, ...]  # rows, items, tiles per share, tiles
    constants: dict[str, Any]


def _launch_fitting(kernel: str, head: Head, excluded: Tensor | None, noise: bool, launch: Callable[[Blocks], T]) -> T:
    check([head])
    size = next(size for width, size in SIZES.items() if head.state.shape[1] <= width)
    return launch_fitting(kernel, size, head.state, _constants(head, excluded) | {"NOISE": noise}, launch)


def _constants(head: Head, excluded: Tensor | None) -> dict[str, Any]:
    return {
        "D0": padded_width(head.state.shape[1]),
        "BIAS0": head.bias is not None,
        "EXCLUDED": excluded is not None and excluded.numel() > 0,
        "PRECISION": interpreted(PRECISION),
    }


def _launch(head: Head, excluded: Tensor | None, size: Blocks) -> _Launch:
    n_tiles = triton.cdiv(head.n_items, size.items)
    grid, each = shares(head.n_rows, n_tiles, size)
    pairs = pairs_by_tile(excluded, head.n_items, size, head.state)
    state, table = head.state.contiguous(), head.table.contiguous()
    bias = table if head.bias is None else head.bias.float().contiguous()
    constants = _constants(head, excluded) | size.constants
    arrays = (pairs.edges, pairs.row, pairs.item)
    sizes = (head.n_rows, head.n_items, each, n_tiles)
    return _Launch(grid, (state, table, bias, state.shape[1]), arrays, sizes, constants)


@torch.no_grad()
def maximum(head: Head, excluded: Tensor | None, noise: Noise | None) -> tuple[Tensor, Tensor]:
    """Return the largest z (+ noise) of the items that are not excluded, and the first item that has it: [B] each."""
    noisy = noise is not None
    best, where = _launch_fitting("largest", head, excluded, noisy, lambda size: _largest(head, excluded, noise, size))
    top = best.amax(0)
    first = torch.where(best == top, where, head.n_items).amin(0)  # the first share with the largest value
    return top, first.long()


def _largest(head: Head, excluded: Tensor | None, noise: Noise | None, size: Blocks) -> tuple[Tensor, Tensor]:
    launch = _launch(head, excluded, size)
    best = torch.empty(launch.grid[1], head.n_rows, device=head.state.device)
    where = torch.empty(launch.grid[1], head.n_rows, dtype=torch.int32, device=head.state.device)
    seed = noise.seed if noise is not None else launch.pairs[0]
    if head.n_rows:
        search_kernels.largest[launch.grid](
            *launch.head, seed, *launch.pairs, best, where, *launch.sizes, NOISE=noise is not None, **launch.constants
        )
    return best, where


@torch.no_grad()
def count_not_below(head: Head, threshold: Tensor, target: Tensor, excluded: Tensor | None) -> Tensor:
    """Count the items, neither excluded nor the target, that are not below the threshold [B]: [B]."""
    return _launch_fitting(
        "not_below", head, excluded, False, lambda size: _not_below(head, threshold, target, excluded, size)
    )


def _not_below(head: Head, threshold: Tensor, target: Tensor, excluded: Tensor | None, size: Blocks) -> Tensor:
    launch = _launch(head, excluded, size)
    counts = torch.empty(launch.grid[1], head.n_rows, dtype=torch.int32, device=head.state.device)
    threshold, target = threshold.float().contiguous(), target.contiguous()
    if head.n_rows:
        search_kernels.not_below[launch.grid](
            *launch.head, *launch.pairs, threshold, target, counts, *launch.sizes, **launch.constants
        )
    return counts.sum(0)


@torch.no_grad()
def rank(head: Head, target: Tensor, threshold: Tensor) -> Tensor:
    """Compute 1 + the number of other items that are not below the threshold [B], the target's value minus rounding."""
    slots = Slots.of([head])
    above = count_not_below(head.base, threshold, target, None if slots is None else slots.items)
    if slots is not None:
        corrected = ~(slots.at(head) < threshold[:, None]) & ~slots.empty & (slots.items != target[:, None])
        above = above + corrected.sum(1)
    return above.long() + 1


@torch.no_grad()
def top_k(head: Head, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best values and their items, best first, lower indices first among equal values: [B, k] each."""
    return _launch_fitting("peaks", head, head.items, False, lambda size: _top_k(head, min(k, head.n_items), size))


def _top_k(head: Head, k: int, size: Blocks) -> tuple[Tensor, Tensor]:
    """Compute `top_k` in groups of rows that fit into memory."""
    tiles = triton.cdiv(head.n_items, size.items)
    each = max(1, min(MAX_PEAKS // tiles, MAX_CANDIDATES // (min(k, tiles) * size.items * head.state.shape[1])))
    parts = [
        _top_k_of_rows(head.slice_rows(first, first + each), k, size) for first in range(0, max(1, head.n_rows), each)
    ]
    return torch.cat([values for values, _ in parts]), torch.cat([items for _, items in parts])


def _top_k_of_rows(head: Head, k: int, size: Blocks) -> tuple[Tensor, Tensor]:
    """Search the k tiles with the largest maxima, and the corrected items: the k best must be there."""
    slots = Slots.of([head])
    excluded = None if slots is None else slots.items
    launch = _launch(head.base, excluded, size)
    highest = torch.empty(head.n_rows, launch.sizes[3], device=head.state.device)
    if head.n_rows:
        search_kernels.peaks[launch.grid](*launch.head, *launch.pairs, highest, *launch.sizes, **launch.constants)
    tile = highest.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    items = (tile[:, :, None] * size.items + torch.arange(size.items, device=tile.device)).flatten(1)
    beyond = items >= head.n_items
    items = items.clamp(max=head.n_items - 1)
    values = head.base_at(items).masked_fill(beyond, -torch.inf)
    if slots is not None:
        corrected = slots.items.sort(1).values
        column = torch.searchsorted(corrected, items).clamp(max=corrected.shape[1] - 1)
        values = values.masked_fill(corrected.gather(1, column) == items, -torch.inf)
        values = torch.cat([values, slots.at(head).masked_fill(slots.empty, -torch.inf)], 1)
        items = torch.cat([items, slots.items], 1)
    by_item = items.argsort(dim=1, stable=True)
    order = by_item.gather(1, values.gather(1, by_item).sort(dim=1, descending=True, stable=True).indices[:, :k])
    return values.gather(1, order), items.gather(1, order)
