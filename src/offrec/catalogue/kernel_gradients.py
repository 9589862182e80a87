"""What the kernels' backward pass does besides the kernel: small things, a number a row or a few rows of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offrec.catalogue.kernel_launch import Blocks


@dataclass(frozen=True)
class Plan:
    """What does not change between the forward and the backward pass."""

    slots: int  # heads in use
    own: bool  # is π itself among the linear heads?
    linear: bool
    below: int  # which head is compared with the bound; −1: none
    noise: bool
    excluded: bool
    temperature: float
    direct: bool
    size: Blocks
    back: Blocks
    precision: str
    learns: bool  # is there to be a backward pass?


def factors(
    plan: Plan, coefficients: Tensor, mean: Tensor, mass: Tensor, g_lse: Any, g_mean: Any, g_mass: Any
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What f and 1[below] count for in each row's gradient, and for each head what every item gets besides."""
    heat, nothing = plan.temperature, torch.zeros_like(mean)
    always = nothing if g_lse is None else g_lse if heat == 1 else g_lse / heat
    by_f = by_below = direct = nothing
    if g_mean is not None:
        by_f = g_mean / heat
        always = torch.addcmul(always, by_f, mean, value=-1)
        direct = g_mean if plan.direct else nothing
    if g_mass is not None:
        by_below = g_mass / heat
        always = torch.addcmul(always, by_below, mass, value=-1)
    if g_mean is None or not plan.direct:
        return by_f, by_below, [always, nothing, nothing]
    own = always + direct * coefficients[0] if plan.own else always
    return by_f, by_below, [own, *(direct * coefficients[i] for i in range(1, plan.slots))]


def add_picked(
    gradients: list[Tensor | None], g_picked: Tensor, actions: Tensor, parts: Sequence[Any], in_kernel: bool
) -> None:
    """What comes from the values at actions, added to π's gradients in place: no second table of zeros."""
    state, table = parts[0], parts[1]
    if gradients[0] is not None:
        gradients[0] = gradients[0] + (g_picked[..., None] * table[actions].float()).sum(1)
    if in_kernel:
        return
    flat = actions.reshape(-1)
    if gradients[1] is not None:
        moves = (g_picked[..., None] * state.float()[:, None]).reshape(-1, state.shape[1])
        if table.dtype != torch.float32:
            flat, moves = _summed_by_item(flat, moves)
        gradients[1].index_add_(0, flat, moves.to(table.dtype))
    if gradients[2] is not None:
        gradients[2].index_add_(0, actions.reshape(-1), g_picked.reshape(-1))


def _summed_by_item(items: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Moves of one item summed in float32, in one place, zeros in its others: bfloat16 then rounds only once."""
    items, order = items.sort()
    place = torch.searchsorted(items, items)
    return items, torch.zeros_like(moves).index_add_(0, place, moves[order])
