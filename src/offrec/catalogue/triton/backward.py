"""The backward pass: gradients of each row, then of the tables, and of picked items."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from offrec.catalogue.triton import backward_kernel, row_kernels
from offrec.catalogue.triton.forward import ROWS, PassSettings, SlotValues, arguments, constants
from offrec.catalogue.triton.launch import (
    SEPARATE,
    Blocks,
    launch_fitting,
    padded_width,
    pairs_by_tile,
    picks_by_tile,
    resident_programs,
    shares,
)

FACTORS = 5  # numbers per row from which an item's gradient is computed, given its weight


def row_gradients(
    settings: PassSettings,
    parts: Sequence[Any],
    extras: tuple[Any, ...],
    slots: SlotValues,
    given: tuple[Any, ...],
    sums: Tensor,
    expected: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
    """Compute the gradients that need no second pass over the catalogue.

    Args:
        settings: Settings of the pass.
        parts: State, table and bias of four heads.
        extras: The bound [B] and the seed of the noise, or None.
        slots: The corrected items and their values.
        given: Gradients [B] of lse, mean and mass, or None.
        sums: [6, B] sums from `combine`.
        expected: Expected item vectors [n, B, widest], from `combine`.
        wanted: For three heads, whether the state needs a gradient.

    Returns:
        Factors [5, B] in the kernel's order, the gradients of the states, and those of the slots' values.
    """
    n_rows, device = sums.shape[1], sums.device
    factors = torch.empty(FACTORS, n_rows, device=device)
    states = [torch.empty(parts[3 * i].shape, device=device) if wanted[i] else None for i in range(3)]
    to_slots: list[Tensor | None] = [torch.empty_like(values) for values in slots.values[: settings.learned]]
    outputs = [part if part is not None else factors for part in (*states, *to_slots, *[None] * (3 - len(to_slots)))]
    gradients = [factors if g is None else g for g in given]
    row_kernels.distribute[(triton.cdiv(n_rows, ROWS),)](
        *gradients, *(g.stride(-1) for g in gradients), sums, expected, *slots.arguments(sums, 3),
        *(part if part is not None else sums for part in extras), *settings.coefficients, factors,
        *outputs, *arguments(parts, 3)[9:], n_rows, len(parts[1]), slots.n, settings.scale, settings.temperature,
        OF_LSE=given[0] is not None, OF_MEAN=given[1] is not None, OF_MASS=given[2] is not None,
        SLOTS=slots.padded, HEADS=settings.learned, LINEAR=settings.linear, BELOW=settings.below, NOISE=settings.noise,
        DIRECT=settings.direct, V0=wanted[0], V1=wanted[1], V2=wanted[2], DM=expected.shape[2], BM=ROWS, num_warps=4,
    )  # fmt: skip
    return factors, states, to_slots + [None] * (len(slots.values) - len(to_slots))


def transposed_table(table: Tensor) -> Tensor:
    """Return a table [A, d] as [d, ≥ A], whose rows begin at multiples of 128 bytes."""
    stride = triton.cdiv(len(table), 32) * 32
    columns = torch.empty(table.shape[1], stride, device=table.device)
    columns[:, : len(table)].copy_(table.T)
    return columns


def state_gradient(
    settings: PassSettings,
    parts: Sequence[Any],
    extras: tuple[Any, ...],
    slots: SlotValues,
    lse: Tensor,
    factors: Tensor,
    columns: Tensor,
    given: tuple[Any, ...],
) -> Tensor:
    """Compute the gradient of π's state [B, d] by a separate pass, which recomputes the tiles.

    Args:
        settings: Settings of the pass.
        parts: State, table and bias of four heads.
        extras: The bound [B] and the seed of the noise, or None.
        slots: The items that are left out.
        lse: [B] in units of log 2.
        factors: [5, B] from `row_gradients`.
        columns: The table from `transposed_table`.
        given: Gradients [B] of lse, mean and mass, or None.
    """
    state, n_items = parts[0], len(parts[1])
    linear, below = settings.linear and given[1] is not None, settings.below if given[2] is not None else -1
    compiled = constants(settings, parts, 3) | {
        "HEADS": settings.learned, "LINEAR": linear, "BELOW": below, "NOISE": settings.noise, "EXCLUDED": slots.n > 0,
    }  # fmt: skip

    def launch(size: Blocks) -> Tensor:
        n_tiles = triton.cdiv(n_items, size.items)
        grid, tiles_each = shares(len(state), n_tiles, size)
        pairs = pairs_by_tile(slots.items, n_items, size, state, slots.pairs)
        vectors = torch.empty(grid[1], len(state), padded_width(state.shape[1]), device=state.device)
        backward_kernel.backward_rows[grid](
            *arguments(parts, 3), *settings.coefficients, *(part if part is not None else lse for part in extras),
            pairs.edges, pairs.row, pairs.item, lse, *factors[:3], columns, vectors,
            len(state), n_items, tiles_each, n_tiles, columns.shape[1], settings.scale, **compiled, **size.constants,
        )  # fmt: skip
        return vectors

    vectors = launch_fitting("backward_rows", SEPARATE, state, compiled, launch)
    return vectors.sum(0)[:, : state.shape[1]]


@dataclass(frozen=True)
class TableGradients:
    """The deferred part of a backward pass: the tables' gradients, which only the optimiser needs."""

    settings: PassSettings
    parts: Sequence[Any]
    extras: tuple[Any, ...]
    slots: SlotValues
    lse: Tensor  # [B] in units of log 2
    factors: Tensor  # [5, B]
    given: tuple[Any, ...]
    picked: tuple[Tensor, Tensor, Tensor, bool] | None  # gradients [B, n], actions [B, n], exact states; in the kernel?

    def compute(self, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Compute the gradients of each wanted head's table and bias."""
        self._record_stream()
        gradients: list[Tensor | None] = []
        for i, want in enumerate(wanted):
            gradients += self._of_head(i) if want else [None, None]
        return gradients

    def _of_head(self, which: int) -> list[Tensor | None]:
        picked = self.picked if which == 0 else None
        picks = None if picked is None or not picked[3] else (picked[1], picked[0].contiguous())
        table_and_bias = _table_gradients(
            self.settings, which, self.parts, self.extras, self.slots, self.lse, self.factors, picks, self.given
        )
        gradients: list[Tensor | None] = [None, *table_and_bias]
        if picked is not None:
            g_picked, actions, exact, inside = picked
            add_picked(gradients, g_picked, actions, [exact, self.parts[1]], in_kernel=inside)
        return gradients[1:]

    def _record_stream(self) -> None:
        """Keep the memory, which another stream allocated, from being reused while the current stream reads it."""
        tensors = (*self.parts, *self.extras, *self.slots.tensors, self.lse, self.factors, *self.given)
        for tensor in (*tensors, *(self.picked or ())):
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))


def _table_gradients(
    settings: PassSettings,
    which: int,
    parts: Sequence[Any],
    extras: tuple[Any, ...],
    slots: SlotValues,
    lse: Tensor,
    factors: Tensor,
    picks: tuple[Tensor, Tensor] | None,
    given: tuple[Any, ...],
) -> tuple[Tensor, Tensor | None]:
    """Compute the gradients of one head's table [A, d] and bias [A]."""
    state, table, bias = parts[3 * which : 3 * which + 3]
    to_table, to_bias = torch.empty_like(table), torch.empty(len(table), device=table.device)
    transposed = table.dtype == torch.float32
    sources = state.T.contiguous() if transposed else state
    linear, below = settings.linear and given[1] is not None, settings.below if given[2] is not None else -1
    compiled = constants(settings, parts, 3) | {
        "HEADS": settings.learned, "LINEAR": linear and which == 0, "BELOW": -1 if which else below,
        "NOISE": settings.noise, "EXCLUDED": slots.n > 0, "WHICH": which, "TO_BIAS": bias is not None,
        "PICKED": picks[0].shape[1] if picks else 0, "TRANSPOSED": transposed, "DW": padded_width(table.shape[1]),
    }  # fmt: skip

    def launch(size: Blocks) -> None:
        n_tiles = triton.cdiv(len(table), size.items)
        pairs = pairs_by_tile(slots.items, len(table), size, state, slots.backward_pairs)
        at = picks_by_tile(picks[0], len(table), size, slots.backward_pairs) if picks else pairs
        backward_kernel.backward_table[(resident_programs(n_tiles, size, state.device),)](
            *arguments(parts, 3), *settings.coefficients, *(part if part is not None else lse for part in extras),
            pairs.edges, pairs.row, pairs.item, lse, factors[which + 2 if which else 0], factors[1], factors[2],
            at.edges, at.row, at.item, picks[1] if picks else lse, sources, to_table, to_bias,
            len(state), len(table), n_tiles, settings.scale, **compiled, **size.constants,
        )  # fmt: skip

    launch_fitting("backward", settings.backward_blocks, state, compiled, launch)
    return to_table, None if bias is None else to_bias


def add_picked(
    gradients: list[Tensor | None], g_picked: Tensor, actions: Tensor, parts: Sequence[Any], in_kernel: bool
) -> None:
    """Add the gradients of the values at actions to π's gradients, without a second table of zeros.

    Args:
        gradients: Of π's state, table and bias; modified in place.
        g_picked: [B, n] gradients of the values at the actions.
        actions: [B, n] items.
        parts: π's exact state and its table.
        in_kernel: Whether the kernel has already added the table's and the bias's part.
    """
    state, table = parts[0], parts[1]
    if gradients[0] is not None:
        gradients[0] = gradients[0] + (g_picked[..., None] * table[actions].float()).sum(1)
    if in_kernel:
        return
    flat = actions.reshape(-1)
    if gradients[1] is not None:
        updates = (g_picked[..., None] * state.float()[:, None]).reshape(-1, state.shape[1])
        if table.dtype != torch.float32:
            flat, updates = _sum_by_item(flat, updates)
        gradients[1].index_add_(0, flat, updates.to(table.dtype))
    if gradients[2] is not None:
        gradients[2].index_add_(0, actions.reshape(-1), g_picked.reshape(-1))


def _sum_by_item(items: Tensor, updates: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the updates of each item in float32 into one row, zeros in its others, so that bfloat16 rounds only once."""
    items, order = items.sort()
    first = torch.searchsorted(items, items)
    return items, torch.zeros_like(updates).index_add_(0, first, updates[order])
