"""The forward pass over the catalogue: what of it does not change until the backward pass, and its two launches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import triton
from torch import Tensor

from offrec.catalogue.triton import forward_kernel, row_kernels
from offrec.catalogue.triton.launch import Blocks, fitted, pairs_of, power, shares

LOG2E = 1.4426950408889634
ROWS = 4  # of a program that puts shares and slots together


@dataclass(frozen=True)
class Plan:
    """What does not change between the forward and the backward pass."""

    heads: int
    learned: int  # so many of them, the first ones, may get a gradient
    linear: bool
    coefficients: tuple[float, ...]  # [3] of the learned heads in f
    detached: tuple[float, ...] | None  # [4] coefficients of all heads in the detached sum
    below: int  # which head is compared with the bound; −1: none
    normalised: int  # which head's own logsumexp is wanted, 1 … 3; −1: none
    noise: bool
    temperature: float
    direct: bool
    size: Blocks
    back: Blocks
    precision: str
    learns: bool  # is there to be a backward pass?

    @property
    def scale(self) -> float:
        return LOG2E / self.temperature

    @property
    def roles(self) -> dict[str, Any]:
        return {"HEADS": self.heads, "BELOW": self.below, "NORMED": self.normalised, "NOISE": self.noise}


@dataclass(frozen=True)
class Few:
    """The slots: items [B, K], their values in each head, and their pairs by shape of tile."""

    items: Tensor | None
    values: tuple[Tensor, ...]
    pairs: dict[Any, Any]
    ahead: dict[Any, Any] = field(default_factory=dict)  # those of the backward pass, made on its stream

    def sort_ahead(self, n_items: int, size: Blocks, like: Tensor) -> None:
        """What the backward pass will want, while the forward pass runs. Not among `pairs`, which others read now."""
        self.ahead.update(self.pairs)
        pairs_of(self.items, n_items, size, like, self.ahead)

    def of(self, values: Sequence[Tensor]) -> "Few":
        return replace(self, values=tuple(values))

    def without_values(self) -> "Few":
        return replace(self, values=())

    def arguments(self, placeholder: Tensor, heads: int) -> tuple[Any, ...]:
        """The values of each head, and the items; what is missing is stood in for."""
        full = [*self.values, *[placeholder] * (heads - len(self.values))]
        return (*full[:heads], placeholder if self.items is None else self.items)

    @property
    def tensors(self) -> Iterator[Tensor | None]:
        """All that a backward pass may read."""
        yield from (self.items, *self.values)
        for pairs in self.ahead.values():
            yield from (pairs.edges, pairs.row, pairs.item)

    @property
    def n(self) -> int:
        return 0 if self.items is None else self.items.shape[1]

    @property
    def room(self) -> int:
        return 0 if self.n == 0 else int(triton.next_power_of_2(self.n))


def nearest_states(parts: Sequence[Any], plan: Plan) -> tuple[Any, ...]:
    """States as TF32 numbers, where products are TF32's, which would cut them off."""
    if plan.precision != "tf32":
        return tuple(parts)
    states = [parts[3 * i] for i in range(plan.heads)]
    found = [torch.empty_like(state) for state in states]
    full, room = ([*some, *[some[0]] * (4 - len(some))] for some in (states, found))
    grid = (triton.cdiv(max(state.numel() for state in states), 1024), plan.heads)
    row_kernels.nearest[grid](*full, *(state.numel() for state in full), *room, STEP=1024, num_warps=4)
    return tuple(found[i // 3] if i % 3 == 0 and i // 3 < plan.heads else part for i, part in enumerate(parts))


def streamed(
    plan: Plan, parts: Sequence[Any], extras: tuple[Any, ...], few: Few, wanted: Sequence[bool]
) -> tuple[Tensor, Tensor]:
    """Each share's sums: [shares, 7, B], and of item vectors [shares, n, B, widest]."""
    state, table = parts[0], parts[1]
    n_rows, n_items = len(state), len(table)
    widths = [power(parts[3 * i].shape[1]) for i in range(plan.heads)]
    widest, n_vectors = max(widths), sum(_vectors(plan, wanted))
    room = torch.empty if len(set(widths)) == 1 else torch.zeros  # what is narrower leaves the rest of its row as it is
    compiled = constants(plan, parts, 4) | plan.roles | {"EXCLUDED": few.n > 0, "LINEAR": plan.linear}
    compiled |= {"V0": wanted[0], "V1": wanted[1], "V2": wanted[2], "DM": widest, "NV": n_vectors}

    def launch(size: Blocks) -> tuple[Tensor, Tensor]:
        n_tiles = triton.cdiv(n_items, size.items)
        grid, each = shares(n_rows, n_tiles, size)
        pairs = pairs_of(few.items, n_items, size, state, few.pairs)
        scalars = torch.empty(grid[1], 7, n_rows, device=state.device)
        vectors = room(grid[1], n_vectors, n_rows, widest, device=state.device)
        forward_kernel.forward[grid](
            *arguments(parts, 4), *plan.coefficients, *(plan.detached or (0.0,) * 4),
            *(part if part is not None else state for part in extras), pairs.edges, pairs.row, pairs.item,
            scalars, vectors, n_rows, n_items, each, n_tiles, plan.scale, **compiled, **size.constants,
        )  # fmt: skip
        return scalars, vectors

    return fitted("forward", plan.size, state, compiled, launch)


def combined(
    plan: Plan, scalars: Tensor, vectors: Tensor, extras: tuple[Any, ...], few: Few, n_items: int
) -> tuple[Tensor, Tensor]:
    """Shares and slots put together: [6, B] as the kernel has them, and expected item vectors [n, B, widest]."""
    n_shares, n_vectors, n_rows, widest = vectors.shape
    found = torch.empty(6, n_rows, device=scalars.device)
    expected = torch.empty(n_vectors, n_rows, widest, device=scalars.device)
    row_kernels.combine[(triton.cdiv(n_rows, ROWS),)](
        scalars, vectors, *few.arguments(scalars, 4), *(part if part is not None else scalars for part in extras),
        *plan.coefficients, *(plan.detached or (0.0,) * 4), found, expected,
        n_rows, n_items, few.n, n_shares, plan.scale, **plan.roles,
        SHARES=int(triton.next_power_of_2(n_shares)), SLOTS=few.room, NV=n_vectors, DM=widest, BM=ROWS,
        SOME=max(1, min(16, 2048 // (ROWS * widest))), num_warps=4,
    )  # fmt: skip
    return found, expected


def _vectors(plan: Plan, wanted: Sequence[bool]) -> tuple[int, ...]:
    """How many sums of item vectors each head has: π's own, of f, of what is below."""
    return (1 + plan.linear + (plan.below >= 0)) * wanted[0], int(wanted[1]), int(wanted[2])


def arguments(parts: Sequence[Any], heads: int) -> tuple[Any, ...]:
    """State, table and bias of each head (what is missing is stood in for by π's), and the widths."""
    full = [part if part is not None else parts[min(i % 3, 1)] for i, part in enumerate(parts[: 3 * heads])]
    return (*full, *(full[3 * i].shape[1] for i in range(heads)))


def constants(plan: Plan, parts: Sequence[Any], heads: int) -> dict[str, Any]:
    found: dict[str, Any] = {"PRECISION": plan.precision}
    for i in range(heads):
        used = parts[3 * i] is not None
        found[f"D{i}"] = power(parts[3 * i].shape[1]) if used else 16
        found[f"BIAS{i}"] = used and parts[3 * i + 2] is not None
    return found
