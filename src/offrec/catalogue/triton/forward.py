"""The forward pass over the catalogue: its two launches, and the settings that the backward pass shares."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import triton
from torch import Tensor

from offrec.catalogue.triton import forward_kernel, row_kernels
from offrec.catalogue.triton.launch import Blocks, launch_fitting, padded_width, pairs_by_tile, picks_by_tile, shares

LOG2E = 1.4426950408889634
ROWS = 4  # rows per program of `distribute`
COMBINED_ROWS = 1  # rows per program of `combine`, which reads many sums of each row


@dataclass(frozen=True)
class PassSettings:
    """Settings that the forward and the backward pass share."""

    heads: int
    learned: int  # the first heads, which may get a gradient
    linear: bool  # whether f = Σ c z is computed
    coefficients: tuple[float, ...]  # [3] of the learned heads in f
    detached: tuple[float, ...] | None  # [4] of all heads in the detached sum
    below: int  # the head that is compared with the bound; −1: none
    normalised: int  # the head whose own logsumexp is computed, 1 … 3; −1: none
    noise: bool
    temperature: float
    direct: bool  # whether gradients flow through f
    forward_blocks: Blocks
    backward_blocks: Blocks
    precision: str
    learns: bool  # whether a backward pass follows
    separate: bool = False  # whether a separate pass, `backward_rows`, computes the gradient of π's state

    @property
    def scale(self) -> float:
        """The factor that converts z + noise to a base-2 log score."""
        return LOG2E / self.temperature

    @property
    def roles(self) -> dict[str, Any]:
        """The kernel constants that define the role of each head."""
        return {"HEADS": self.heads, "BELOW": self.below, "NORMED": self.normalised, "NOISE": self.noise}


@dataclass(frozen=True)
class SlotValues:
    """The slots of a pass: items [B, K], their values in each head and their (row, item) pairs, keyed by tile shape."""

    items: Tensor | None
    values: tuple[Tensor, ...]
    pairs: dict[Any, Any]
    backward_pairs: dict[Any, Any] = field(default_factory=dict)  # computed on the backward pass's stream

    def sort_for_backward(self, n_items: int, size: Blocks, like: Tensor, picks: Tensor | None) -> None:
        """Compute the pairs of the backward pass, and those of the picks [B, n], while the forward pass runs.

        They are stored apart from `pairs`, which kernels on another stream may be reading.
        """
        self.backward_pairs.update(self.pairs)
        pairs_by_tile(self.items, n_items, size, like, self.backward_pairs)
        if picks is not None:
            picks_by_tile(picks, n_items, size, self.backward_pairs)

    def with_values(self, values: Sequence[Tensor]) -> "SlotValues":
        """Return the slots with the values of each head, [B, K] each."""
        return replace(self, values=tuple(values))

    def arguments(self, placeholder: Tensor, heads: int) -> tuple[Any, ...]:
        """Return the values of each head and the items, with placeholders for missing values."""
        values = [*self.values, *[placeholder] * (heads - len(self.values))]
        return (*values[:heads], placeholder if self.items is None else self.items)

    @property
    def tensors(self) -> Iterator[Tensor | None]:
        """All tensors that a backward pass may read."""
        yield from (self.items, *self.values)
        for pairs in self.backward_pairs.values():
            yield from (pairs.edges, pairs.row, pairs.item)

    @property
    def n(self) -> int:
        """K, the number of slots per row."""
        return 0 if self.items is None else self.items.shape[1]

    @property
    def padded(self) -> int:
        """K, rounded up to a power of two."""
        return 0 if self.n == 0 else int(triton.next_power_of_2(self.n))


def round_states(parts: Sequence[Any], settings: PassSettings) -> tuple[Any, ...]:
    """Round the states to TF32 numbers if products are TF32, which would truncate them instead."""
    if settings.precision != "tf32":
        return tuple(parts)
    states = [parts[3 * i] for i in range(settings.heads)]
    rounded = [torch.empty_like(state) for state in states]
    sources, targets = ([*some, *[some[0]] * (4 - len(some))] for some in (states, rounded))
    grid = (triton.cdiv(max(state.numel() for state in states), 1024), settings.heads)
    row_kernels.round_states[grid](
        *sources, *(state.numel() for state in sources), *targets, STEP=1024, num_warps=4
    )  # fmt: skip
    return tuple(rounded[i // 3] if i % 3 == 0 and i // 3 < settings.heads else part for i, part in enumerate(parts))


def stream_catalogue(
    settings: PassSettings, parts: Sequence[Any], extras: tuple[Any, ...], slots: SlotValues, wanted: Sequence[bool]
) -> tuple[Tensor, Tensor]:
    """Compute the sums of each share of the catalogue, without the slots.

    Args:
        settings: Settings of the pass.
        parts: State, table and bias of four heads; None for those that do not exist.
        extras: The bound [B] and the seed of the noise, or None.
        slots: The items that are left out.
        wanted: For three heads, whether sums of item vectors are needed.

    Returns:
        Scalars [shares, 7, B] and item vectors [shares, n, B, widest].
    """
    state, table = parts[0], parts[1]
    n_rows, n_items = len(state), len(table)
    widths = [padded_width(parts[3 * i].shape[1]) for i in range(settings.heads)]
    widest, n_vectors = max(widths), sum(_n_vectors(settings, wanted))
    allocate = torch.empty if len(set(widths)) == 1 else torch.zeros  # narrower heads do not write the last columns
    compiled = constants(settings, parts, 4) | settings.roles | {"EXCLUDED": slots.n > 0, "LINEAR": settings.linear}
    compiled |= {
        "DETACHED": settings.detached is not None,
        "V0": wanted[0],
        "V1": wanted[1],
        "V2": wanted[2],
        "DM": widest,
        "NV": n_vectors,
    }

    def launch(size: Blocks) -> tuple[Tensor, Tensor]:
        n_tiles = triton.cdiv(n_items, size.items)
        grid, tiles_each = shares(n_rows, n_tiles, size)
        pairs = pairs_by_tile(slots.items, n_items, size, state, slots.pairs)
        scalars = torch.empty(grid[1], 7, n_rows, device=state.device)
        vectors = allocate(grid[1], n_vectors, n_rows, widest, device=state.device)
        forward_kernel.forward[grid](
            *arguments(parts, 4), *settings.coefficients, *(settings.detached or (0.0,) * 4),
            *(part if part is not None else state for part in extras), pairs.edges, pairs.row, pairs.item,
            scalars, vectors, n_rows, n_items, tiles_each, n_tiles, settings.scale, **compiled, **size.constants,
        )  # fmt: skip
        return scalars, vectors

    return launch_fitting("forward", settings.forward_blocks, state, compiled, launch)


def combine(
    settings: PassSettings,
    scalars: Tensor,
    vectors: Tensor,
    extras: tuple[Any, ...],
    slots: SlotValues,
    n_items: int,
) -> tuple[Tensor, Tensor]:
    """Merge the shares and the slots.

    Returns:
        Sums [6, B] in the kernel's order, and expected item vectors [n, B, widest].
    """
    n_shares, n_vectors, n_rows, widest = vectors.shape
    sums = torch.empty(6, n_rows, device=scalars.device)
    expected = torch.empty(n_vectors, n_rows, widest, device=scalars.device)
    row_kernels.combine[(triton.cdiv(n_rows, COMBINED_ROWS),)](
        scalars, vectors, *slots.arguments(scalars, 4), *(part if part is not None else scalars for part in extras),
        *settings.coefficients, *(settings.detached or (0.0,) * 4), sums, expected,
        n_rows, n_items, slots.n, n_shares, settings.scale, **settings.roles,
        SHARES=int(triton.next_power_of_2(n_shares)), SLOTS=slots.padded, NV=n_vectors, DM=widest, BM=COMBINED_ROWS,
        SOME=max(1, min(64, 4096 // (COMBINED_ROWS * widest))), num_warps=4,
    )  # fmt: skip
    return sums, expected


def _n_vectors(settings: PassSettings, wanted: Sequence[bool]) -> tuple[int, ...]:
    """Return the number of item-vector sums per head: for π with w, w f and w 1[below]; for others with w."""
    return (1 + settings.linear + (settings.below >= 0)) * wanted[0], int(wanted[1]), int(wanted[2])


def arguments(parts: Sequence[Any], heads: int) -> tuple[Any, ...]:
    """Return state, table and bias of each head, with π's as placeholders, and then the widths."""
    tensors = [part if part is not None else parts[min(i % 3, 1)] for i, part in enumerate(parts[: 3 * heads])]
    return (*tensors, *(tensors[3 * i].shape[1] for i in range(heads)))


def constants(settings: PassSettings, parts: Sequence[Any], heads: int) -> dict[str, Any]:
    """Return the kernels' constants that depend on the operands."""
    compiled: dict[str, Any] = {"PRECISION": settings.precision}
    for i in range(heads):
        exists = parts[3 * i] is not None
        compiled[f"D{i}"] = padded_width(parts[3 * i].shape[1]) if exists else 16
        compiled[f"BIAS{i}"] = exists and parts[3 * i + 2] is not None
    return compiled
