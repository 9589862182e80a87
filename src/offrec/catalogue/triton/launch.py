"""Launch parameters of the kernels: block sizes, shares of the catalogue, excluded pairs sorted into tiles."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar

import torch
import triton
from torch import Tensor

from offrec.catalogue.backend import MAX_KERNEL_WIDTH
from offrec.catalogue.head import Head
from offrec.catalogue.triton import search_kernels
from offrec.errors import RunError

T = TypeVar("T")

PROGRAMS = 264  # enough to fill an H200 (132 multiprocessors) twice
STEP = 64  # pairs sorted by one program
ALL_ROWS = 1 << 30  # rows of a tile that contains all rows
MIN_BLOCK = 16  # rows or items per tile; smaller tiles would waste part of a tensor core's product


@dataclass(frozen=True)
class Blocks:
    """The size of a tile, and how many warps and pipeline stages compute it."""

    rows: int
    items: int
    warps: int
    stages: int

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and items of the tile."""
        return self.rows, self.items

    @property
    def constants(self) -> dict[str, int]:
        """The launch's keyword arguments."""
        return {"BM": self.rows, "BN": self.items, "num_warps": self.warps, "num_stages": self.stages}

    @property
    def smaller(self) -> "Blocks | None":
        """The next smaller size: fewer stages, then fewer items, then fewer rows; None at the smallest."""
        if self.stages > 1:
            return replace(self, stages=self.stages - 1)
        if self.items > MIN_BLOCK:
            return replace(self, items=self.items // 2)
        return replace(self, rows=self.rows // 2) if self.rows > MIN_BLOCK else None


# (bytes per operand, kind of pass) → width → (rows, items, warps, stages). Widths 64 and 128 were tuned on an H200; the
# others are chosen to fit its shared memory. Kinds of pass: one head; several heads; four heads; several heads with
# sums of item vectors for the backward pass, either of π alone ("learned") or of other heads, too ("all learned").
Kind = Literal["one", "several", "four", "learned", "all learned"]
FORWARD: dict[tuple[int, Kind], dict[int, Blocks]] = {
    (2, "one"): {64: Blocks(128, 64, 4, 3), 128: Blocks(64, 64, 4, 3), 256: Blocks(64, 64, 4, 2)},
    (2, "several"): {64: Blocks(64, 64, 4, 2), 128: Blocks(128, 64, 8, 2), 256: Blocks(64, 32, 4, 1)},
    (2, "four"): {64: Blocks(64, 64, 4, 3), 128: Blocks(128, 32, 8, 2), 256: Blocks(64, 32, 8, 1)},
    (2, "learned"): {64: Blocks(64, 64, 4, 3), 128: Blocks(128, 32, 8, 2), 256: Blocks(64, 32, 8, 1)},
    (2, "all learned"): {64: Blocks(64, 64, 4, 3), 128: Blocks(64, 64, 4, 2), 256: Blocks(64, 32, 4, 2)},
    (4, "one"): {64: Blocks(128, 64, 4, 3), 128: Blocks(128, 64, 8, 1), 256: Blocks(64, 32, 4, 2)},
    (4, "several"): {64: Blocks(128, 64, 8, 2), 128: Blocks(128, 32, 8, 1), 256: Blocks(16, 32, 4, 1)},
    (4, "four"): {64: Blocks(128, 32, 8, 2), 128: Blocks(64, 64, 4, 1), 256: Blocks(16, 32, 4, 1)},
    (4, "learned"): {64: Blocks(128, 32, 8, 2), 128: Blocks(64, 32, 4, 1), 256: Blocks(16, 32, 4, 1)},
    (4, "all learned"): {64: Blocks(64, 32, 4, 2), 128: Blocks(32, 32, 4, 2), 256: Blocks(16, 32, 4, 1)},
}
SEPARATE_WIDTH, SEPARATE = 128, Blocks(128, 64, 8, 1)  # the pass for the gradient of π's state, and its blocks
BACKWARD: dict[tuple[int, Kind], dict[int, Blocks]] = {
    (2, "one"): {64: Blocks(128, 64, 4, 3), 128: Blocks(64, 64, 4, 2), 256: Blocks(32, 64, 4, 2)},
    (2, "learned"): {64: Blocks(64, 64, 4, 3), 128: Blocks(64, 128, 8, 1), 256: Blocks(32, 32, 4, 2)},
    (2, "all learned"): {64: Blocks(64, 64, 4, 3), 128: Blocks(32, 64, 4, 2), 256: Blocks(32, 32, 4, 2)},
    (4, "one"): {64: Blocks(64, 128, 4, 2), 128: Blocks(64, 64, 4, 1), 256: Blocks(32, 64, 4, 2)},
    (4, "learned"): {64: Blocks(64, 128, 8, 2), 128: Blocks(32, 128, 8, 1), 256: Blocks(16, 32, 4, 1)},
    (4, "all learned"): {64: Blocks(32, 64, 4, 2), 128: Blocks(32, 32, 4, 2), 256: Blocks(16, 32, 4, 1)},
}


def blocks(sizes: dict[tuple[int, Kind], dict[int, Blocks]], heads: Sequence[Head], kind: Kind) -> Blocks:
    """Return the block size for the widest head."""
    widest = max(head.state.shape[1] for head in heads)
    return next(size for width, size in sizes[heads[0].state.element_size(), kind].items() if widest <= width)


def backward_blocks(heads: Sequence[Head]) -> Blocks:
    """Return the block size of the backward pass."""
    if len(heads) == 1:
        return blocks(BACKWARD, heads, "one")
    others = any(head.table.requires_grad or head.state.requires_grad for head in heads[1:])
    return blocks(BACKWARD, heads, "all learned" if others else "learned")


def has_separate_pass(heads: Sequence[Head], learning: Sequence[bool]) -> bool:
    """Return whether a separate pass computes the gradient of π's state.

    At this width in float32, three heads and two sums of item vectors do not fit into the registers. Two passes of four
    products each then take less time than one of six.
    """
    state, is_large = heads[0].state, len(learning) == 3 and learning[0] and not any(learning[1:])
    return is_large and state.dtype == torch.float32 and padded_width(state.shape[1]) == SEPARATE_WIDTH


def forward_blocks(heads: Sequence[Head], learning: Sequence[bool]) -> Blocks:
    """Return the block size of the forward pass; `learning`: which heads need sums of item vectors."""
    if len(heads) == 1:
        return blocks(FORWARD, heads, "one")
    if any(learning[1:]):
        size = blocks(FORWARD, heads, "all learned")
        return replace(size, stages=1) if len(heads) > 3 else size  # a fourth head needs the shared memory of a stage
    return blocks(FORWARD, heads, "learned" if any(learning) else "four" if len(heads) > 3 else "several")


_fitting: dict[Any, Blocks] = {}  # the size that fitted the device, by kernel, device, type and constants


def launch_fitting(
    kernel: str, size: Blocks, like: Tensor, constants: dict[str, Any], launch: Callable[[Blocks], T]
) -> T:
    """Call `launch` with the largest blocks, from `size` down, that fit the device.

    Triton raises `OutOfResources` before it computes anything, so a failed launch has no effect.

    Args:
        kernel: The kernel's name.
        size: The first size to try.
        like: A tensor of the device and type of the operands.
        constants: The constants that the kernel is compiled with, except those of the blocks.
        launch: Launches the kernel with a size and returns its outputs.

    Raises:
        RunError: If even the smallest blocks do not fit.
    """
    key = (kernel, size, like.device, like.dtype, *constants.values())
    fitting = _fitting.get(key, size)
    while True:
        try:
            outputs = launch(fitting)
        except triton.OutOfResources as error:
            if fitting.smaller is None:
                raise RunError(
                    f"The kernels do not fit the device {like.device}: the smallest blocks need {error.required} "
                    f"bytes of {error.name}, and the device has {error.limit}; set catalogue=tiled."
                ) from error
            fitting = fitting.smaller
        else:
            _fitting[key] = fitting
            return outputs


def resident_programs(n_tiles: int, size: Blocks, device: torch.device) -> int:
    """Return how many programs to launch if each of them computes several tiles, one after the other.

    A program of eight warps fills a multiprocessor. All programs compute equally many tiles, as many as the busiest one
    would in any case. Other multiprocessors remain free for the small kernels of concurrent streams, which would
    otherwise wait until a tile is complete.
    """
    places = _multiprocessors(device) * max(1, 8 // size.warps)
    return int(triton.cdiv(n_tiles, triton.cdiv(n_tiles, places)))


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def padded_width(width: int) -> int:
    """Return the next power of two, at least 16, as tensor cores need."""
    return max(16, int(triton.next_power_of_2(width)))


def check(heads: Sequence[Head], learned: int = 1) -> None:
    """Raise ValueError if the kernels do not support these heads; the first `learned` may get a gradient."""
    if learned > 3 or len(heads) > 4:
        raise ValueError(
            f"kernels support at most three heads with gradients and four in total; got {learned} and {len(heads)}; "
            "use the backend tiled"
        )
    for head in heads:
        if head.state.dtype not in (torch.float32, torch.bfloat16) or head.table.dtype != head.state.dtype:
            raise ValueError(f"kernels support float32 or bfloat16; got {head.state.dtype} and {head.table.dtype}")
        if not 1 <= head.state.shape[1] <= MAX_KERNEL_WIDTH:
            raise ValueError(f"kernels support widths from 1 to {MAX_KERNEL_WIDTH}; got {head.state.shape[1]}")
        if head.support is not None:
            raise ValueError("kernels do not support a head with `support`; use the backend tiled")


def precision(dtype: torch.dtype) -> str:
    """Return torch's matmul precision: TF32, or three TF32 products, which are as exact as float32."""
    if dtype != torch.float32:
        return interpreted("ieee")
    return interpreted("tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32")


def interpreted(otherwise: str) -> str:
    """Return "interpreted" under Triton's interpreter."""
    return "interpreted" if os.environ.get("TRITON_INTERPRET") == "1" else otherwise


@dataclass(frozen=True)
class Pairs:
    """Excluded (row, item) pairs, grouped by tile."""

    edges: Tensor  # [row blocks · tiles + 1] where the pairs of each tile begin
    row: Tensor  # [pairs]
    item: Tensor  # [pairs]


def pairs_by_tile(
    excluded: Tensor | None, n_items: int, size: Blocks, like: Tensor, known: dict[Any, Pairs] | None = None
) -> Pairs:
    """Group the excluded items [B, K] by tile; `known` caches the pairs of these items by the shape of the tile."""
    if excluded is None or excluded.numel() == 0:
        placeholder = torch.empty(1, dtype=torch.int32, device=like.device)
        return Pairs(placeholder, placeholder, placeholder)
    known = {} if known is None else known
    if size.tile not in known:
        known[size.tile] = _sort(excluded.contiguous(), n_items, size)
    return known[size.tile]


def picks_by_tile(actions: Tensor, n_items: int, size: Blocks, known: dict[Any, Pairs]) -> Pairs:
    """Group picks [B, n] by block of items; the `row` of a pair is its place in [B · n].

    On a GPU, the order within a block varies between runs, so that gradients may differ by rounding.
    """
    places = actions.reshape(-1, 1)
    return pairs_by_tile(places, n_items, replace(size, rows=ALL_ROWS), places, known)


def _sort(excluded: Tensor, n_items: int, size: Blocks) -> Pairs:
    n_tiles = triton.cdiv(n_items, size.items)
    n_pairs, per_row = excluded.numel(), excluded.shape[1]
    counts = torch.zeros(1 + triton.cdiv(len(excluded), size.rows) * n_tiles, dtype=torch.int32, device=excluded.device)
    grid = (triton.cdiv(n_pairs, STEP),)
    constants = {"BM": size.rows, "BN": size.items, "STEP": STEP, "num_warps": 1}
    search_kernels.count_pairs[grid](excluded, counts, n_pairs, per_row, n_items, n_tiles, **constants)
    edges = torch.cumsum(counts, 0, dtype=torch.int32)
    row = torch.empty(n_pairs, dtype=torch.int32, device=excluded.device)
    item = torch.empty_like(row)
    search_kernels.place_pairs[grid](
        excluded, counts, edges, row, item, n_pairs, per_row, n_items, n_tiles, **constants
    )
    return Pairs(edges, row, item)


def shares(n_rows: int, n_tiles: int, size: Blocks) -> tuple[tuple[int, int], int]:
    """Return the grid (row blocks, shares of the catalogue) and the number of tiles per share."""
    groups = triton.cdiv(n_rows, size.rows)
    each = triton.cdiv(n_tiles, max(1, min(n_tiles, PROGRAMS // groups)))
    return (groups, triton.cdiv(n_tiles, each)), each
