"""How the kernels are launched: block sizes, shares of the catalogue, excluded pairs sorted into tiles."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
import triton
from torch import Tensor

from offrec.catalogue.backend import MAX_KERNEL_WIDTH
from offrec.catalogue.head import Head
from offrec.catalogue.triton import search_kernels
from offrec.errors import RunError

T = TypeVar("T")

PROGRAMS = 264  # enough to fill the largest card twice over
STEP = 64  # pairs sorted by one program
FEWEST = 16  # rows or items of a tile: fewer would leave a part of a tensor core's product empty


@dataclass(frozen=True)
class Blocks:
    """How a tile is cut for operands of a kind and width."""

    rows: int
    items: int
    warps: int
    stages: int

    @property
    def tile(self) -> tuple[int, int]:
        return self.rows, self.items

    @property
    def constants(self) -> dict[str, int]:
        return {"BM": self.rows, "BN": self.items, "num_warps": self.warps, "num_stages": self.stages}

    @property
    def smaller(self) -> "Blocks | None":
        """The next ones that take less room: fewer stages, then fewer items, then fewer rows."""
        if self.stages > 1:
            return replace(self, stages=self.stages - 1)
        if self.items > FEWEST:
            return replace(self, items=self.items // 2)
        return replace(self, rows=self.rows // 2) if self.rows > FEWEST else None


# (bytes of an operand, kind of pass) → width → (rows, items, warps, stages). Measured on an H200 at widths 64 and 128;
# the others are chosen to fit its shared memory. Kinds: one head; several; several with sums of item vectors for the
# backward pass, of π's alone or of others' too.
Kind = Literal["one", "several", "learned", "all learned"]
FORWARD: dict[tuple[int, Kind], dict[int, Blocks]] = {
    (2, "one"): {64: Blocks(128, 64, 4, 3), 128: Blocks(64, 64, 4, 3), 256: Blocks(64, 64, 4, 2)},
    (2, "several"): {64: Blocks(64, 64, 4, 2), 128: Blocks(128, 64, 8, 2), 256: Blocks(64, 32, 4, 1)},
    (2, "learned"): {64: Blocks(64, 64, 4, 1), 128: Blocks(128, 32, 8, 2), 256: Blocks(64, 32, 8, 1)},
    (2, "all learned"): {64: Blocks(64, 64, 4, 3), 128: Blocks(64, 64, 4, 2), 256: Blocks(64, 32, 4, 2)},
    (4, "one"): {64: Blocks(128, 64, 4, 3), 128: Blocks(128, 64, 8, 1), 256: Blocks(64, 32, 4, 2)},
    (4, "several"): {64: Blocks(128, 64, 8, 2), 128: Blocks(128, 32, 8, 1), 256: Blocks(16, 32, 4, 1)},
    (4, "learned"): {64: Blocks(128, 32, 8, 2), 128: Blocks(64, 32, 4, 1), 256: Blocks(16, 32, 4, 1)},
    (4, "all learned"): {64: Blocks(64, 32, 4, 2), 128: Blocks(32, 32, 4, 2), 256: Blocks(16, 32, 4, 1)},
}
BACKWARD: dict[tuple[int, Kind], dict[int, Blocks]] = {
    (2, "one"): {64: Blocks(128, 64, 4, 3), 128: Blocks(64, 64, 4, 2), 256: Blocks(32, 64, 4, 2)},
    (2, "learned"): {64: Blocks(64, 64, 4, 1), 128: Blocks(64, 128, 8, 1), 256: Blocks(32, 32, 4, 2)},
    (2, "all learned"): {64: Blocks(64, 64, 4, 3), 128: Blocks(32, 64, 4, 2), 256: Blocks(32, 32, 4, 2)},
    (4, "one"): {64: Blocks(64, 128, 4, 2), 128: Blocks(64, 64, 4, 1), 256: Blocks(32, 64, 4, 2)},
    (4, "learned"): {64: Blocks(64, 128, 8, 1), 128: Blocks(32, 128, 8, 1), 256: Blocks(16, 32, 4, 1)},
    (4, "all learned"): {64: Blocks(32, 64, 4, 2), 128: Blocks(32, 32, 4, 2), 256: Blocks(16, 32, 4, 1)},
}


def blocks(which: dict[tuple[int, Kind], dict[int, Blocks]], heads: Sequence[Head], kind: Kind) -> Blocks:
    widest = max(head.state.shape[1] for head in heads)
    return next(size for width, size in which[heads[0].state.element_size(), kind].items() if widest <= width)


def backward_blocks(heads: Sequence[Head]) -> Blocks:
    if len(heads) == 1:
        return blocks(BACKWARD, heads, "one")
    others = any(head.table.requires_grad or head.state.requires_grad for head in heads[1:])
    return blocks(BACKWARD, heads, "all learned" if others else "learned")


def forward_blocks(heads: Sequence[Head], learning: Sequence[bool]) -> Blocks:
    """`learning`: which of the heads want sums of item vectors."""
    if len(heads) == 1:
        return blocks(FORWARD, heads, "one")
    if any(learning[1:]):
        size = blocks(FORWARD, heads, "all learned")
        return replace(size, stages=1) if len(heads) > 3 else size  # a fourth head takes the room of a stage
    return blocks(FORWARD, heads, "learned" if any(learning) or len(heads) > 3 else "several")


_fitting: dict[Any, Blocks] = {}  # what the card took, by what a kernel is compiled from


def fitted(kernel: str, size: Blocks, like: Tensor, constants: dict[str, Any], launch: Callable[[Blocks], T]) -> T:
    """What `launch` finds with the largest blocks, from `size` down, that fit the card: Triton refuses others before
    anything is computed. `constants`: those the kernel is compiled with, but the blocks' own.
    """
    key = (kernel, size, like.device, like.dtype, *constants.values())
    fitting = _fitting.get(key, size)
    while True:
        try:
            found = launch(fitting)
        except triton.OutOfResources as error:
            if fitting.smaller is None:
                raise RunError(
                    f"The catalogue's kernels do not fit the device {like.device}: the smallest blocks take "
                    f"{error.required} of its {error.name} and it has {error.limit}; set catalogue=tiled."
                ) from error
            fitting = fitting.smaller
        else:
            _fitting[key] = fitting
            return found


def power(width: int) -> int:
    return max(16, int(triton.next_power_of_2(width)))


def check(heads: Sequence[Head], learned: int = 1) -> None:
    """`learned`: so many of them may get a gradient."""
    if learned > 3 or len(heads) > 4:
        raise ValueError(
            f"kernels take three heads at most and one that is held fixed, found {learned} and "
            f"{len(heads) - learned}; use the tiled implementation"
        )
    for head in heads:
        if head.state.dtype not in (torch.float32, torch.bfloat16) or head.table.dtype != head.state.dtype:
            raise ValueError(f"kernels take float32 or bfloat16, found {head.state.dtype} and {head.table.dtype}")
        if not 1 <= head.state.shape[1] <= MAX_KERNEL_WIDTH:
            raise ValueError(f"kernels take widths 1 … {MAX_KERNEL_WIDTH}, found {head.state.shape[1]}")
        if head.support is not None:
            raise ValueError("kernels take no head with `support`; use the tiled implementation")


def precision(dtype: torch.dtype) -> str:
    """As torch is told for its own products: TF32, or three of them, which come as close as float32."""
    if dtype != torch.float32:
        return interpreted("ieee")
    return interpreted("tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32")


def interpreted(otherwise: str) -> str:
    return "interpreted" if os.environ.get("TRITON_INTERPRET") == "1" else otherwise


@dataclass(frozen=True)
class Pairs:
    """Excluded pairs, sorted into tiles."""

    edges: Tensor  # [row blocks · tiles + 1]
    row: Tensor
    item: Tensor


def pairs_of(
    excluded: Tensor | None, n_items: int, size: Blocks, like: Tensor, known: dict[Any, Pairs] | None = None
) -> Pairs:
    """`known`: those of the same items, by shape of tile."""
    if excluded is None or excluded.numel() == 0:
        nothing = torch.empty(1, dtype=torch.int32, device=like.device)
        return Pairs(nothing, nothing, nothing)
    known = {} if known is None else known
    if size.tile not in known:
        known[size.tile] = _sorted(excluded.contiguous(), n_items, size)
    return known[size.tile]


def _sorted(excluded: Tensor, n_items: int, size: Blocks) -> Pairs:
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
    """The grid (row blocks, shares of the catalogue) and how many tiles a share has."""
    groups = triton.cdiv(n_rows, size.rows)
    each = triton.cdiv(n_tiles, max(1, min(n_tiles, PROGRAMS // groups)))
    return (groups, triton.cdiv(n_tiles, each)), each
