"""The catalogue's functions as Triton kernels: nothing of size [rows × items] is ever written.

The forward pass keeps, besides a few numbers a row, the expected item vector Σ π t (and Σ π f t), as attention keeps
its output: then the gradient of the states needs no second pass, and the backward pass computes tiles again only for
the tables. Operands may be float32 (as TF32, or exactly where torch is told so) or bfloat16; sums are float32.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from offrec.catalogue import kernel_code
from offrec.catalogue.head import Head
from offrec.catalogue.kernel_gradients import Plan, add_picked, factors
from offrec.catalogue.kernel_launch import (
    BACKWARD,
    FORWARD,
    Blocks,
    Pairs,
    blocks,
    check,
    pairs_of,
    power,
    precision,
    rounded,
    shares,
)
from offrec.catalogue.kernel_search import maximum, rank, top_k
from offrec.catalogue.noise import Noise

LOG2E = math.log2(math.e)

__all__ = ["lse_and_values", "maximum", "rank", "reduce", "top_k"]

Linear = Sequence[tuple[float | Tensor, Head]]


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, extras: tuple[Tensor, ...], excluded: Any, *parts: Any) -> tuple[Tensor, ...]:
        coefficients, bound, seed, actions = extras
        exact, table = parts[0], parts[1]
        parts = tuple(rounded(part, plan.precision) if i % 3 == 0 else part for i, part in enumerate(parts))
        state = parts[0]
        n_rows, n_items = len(state), len(table)
        needed = ctx.needs_input_grad[3:]
        n_tiles = triton.cdiv(n_items, plan.size.items)
        grid, each = shares(n_rows, n_tiles, plan.size)
        pairs = pairs_of(excluded, n_items, plan.size, state)
        widest = max(power(parts[3 * i].shape[1]) for i in range(plan.slots))
        scalars = torch.empty(grid[1], 4, n_rows, device=state.device)
        wanted = [plan.learns and needed[3 * i] and (i == 0 or plan.direct) for i in range(3)]
        places = _places(plan, wanted)
        same = len({power(parts[3 * i].shape[1]) for i in range(plan.slots)}) == 1
        room = torch.empty if same else torch.zeros  # what is narrower leaves the rest of its row as it is
        vectors = room(grid[1], len(places), n_rows, widest, device=state.device)
        kernel_code.forward[grid](
            *_arguments(parts), coefficients, bound, seed, pairs.edges, pairs.row, pairs.item, scalars, vectors,
            n_rows, n_items, each, n_tiles, LOG2E / plan.temperature, **_constants(plan, plan.size, parts),
            NV=len(places), V0=wanted[0], V1=wanted[1], V2=wanted[2], DM=widest,
        )  # fmt: skip
        expected = torch.empty(len(places), n_rows, widest, device=state.device)
        lse2, lse, mean, mass = torch.empty(4, n_rows, device=state.device).unbind()
        kernel_code.combine[(triton.cdiv(n_rows, 8),)](
            scalars, vectors, lse2, lse, mean, mass, expected, n_rows, grid[1], LOG2E,
            NV=len(places), DM=widest, BM=8, num_warps=4,
        )  # fmt: skip
        picked = (exact.float()[:, None] * table[actions].float()).sum(-1)
        if parts[2] is not None:
            picked = picked + parts[2][actions]
        ctx.save_for_backward(*extras, excluded, exact, lse2, mean, mass, expected, *parts)
        ctx.plan, ctx.wanted, ctx.places = plan, wanted, places
        ctx.pairs = pairs if plan.back.tile == plan.size.tile else None
        ctx.set_materialize_grads(False)
        return lse, mean, mass, picked

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_lse: Any, g_mean: Any, g_mass: Any, g_picked: Any) -> tuple[Any, ...]:
        plan: Plan = ctx.plan
        coefficients, bound, seed, actions, excluded, exact, lse2, mean, mass, expected, *parts = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        by_f, by_below, always = factors(plan, coefficients, mean, mass, g_lse, g_mean, g_mass)
        gradients: list[Tensor | None] = [None] * 9
        # Added to a bfloat16 table later, the picked items' part would be rounded once more.
        inside = g_picked is not None and actions.shape[1] <= 2 and parts[1].dtype == torch.bfloat16
        picks = (actions.contiguous(), g_picked.contiguous()) if inside else None
        pairs = ctx.pairs or pairs_of(excluded, len(parts[1]), plan.back, mean)
        for i in range(plan.slots):
            state, _, bias = parts[3 * i : 3 * i + 3]
            if ctx.wanted[i]:
                width = state.shape[1]
                moved = always[i][:, None] * expected[ctx.places.index(f"{i}"), :, :width]
                if i == 0 and plan.linear and g_mean is not None:
                    moved = moved + by_f[:, None] * expected[ctx.places.index("f"), :, :width]
                if i == 0 and plan.below >= 0 and g_mass is not None:
                    moved = moved + by_below[:, None] * expected[ctx.places.index("b"), :, :width]
                gradients[3 * i] = moved
            if needed[3 * i + 1] or (bias is not None and needed[3 * i + 2]):
                loaded = (coefficients, bound, seed), (lse2, always[i], by_f, by_below), picks if i == 0 else None
                linear, below = plan.linear and g_mean is not None, plan.below if g_mass is not None else -1
                gradients[3 * i + 1 : 3 * i + 3] = _to_table(
                    plan, i, parts, pairs, *loaded, linear and i == 0, below if i == 0 else -1
                )
        if g_picked is not None:
            add_picked(gradients, g_picked, actions, [exact, parts[1]], in_kernel=picks is not None)
        for i in range(plan.slots):
            gradients[3 * i] = None if gradients[3 * i] is None else gradients[3 * i].to(parts[3 * i].dtype)  # type: ignore[union-attr]
        return None, None, None, *gradients


def _to_table(
    plan: Plan,
    which: int,
    parts: Sequence[Any],
    pairs: Pairs,
    extras: tuple[Tensor, ...],
    rows: tuple[Tensor, ...],
    picks: tuple[Tensor, Tensor] | None,
    linear: bool,
    below: int,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of one head's table and bias."""
    state, table, bias = parts[3 * which : 3 * which + 3]
    to_table, to_bias = torch.empty_like(table), torch.empty(len(table), device=table.device)
    n_tiles = triton.cdiv(len(table), plan.back.items)
    turned = table.dtype == torch.float32
    constants = _constants(plan, plan.back, parts) | {"LINEAR": linear, "BELOW": below}
    kernel_code.backward_table[(n_tiles,)](
        *_arguments(parts), *extras, pairs.edges, pairs.row, pairs.item, *(row.contiguous() for row in rows),
        *(picks or (pairs.row, pairs.row)),
        state.T.contiguous() if turned else state, to_table, to_bias,
        len(state), len(table), n_tiles, LOG2E / plan.temperature, **constants,
        WHICH=which, TO_BIAS=bias is not None, PICKED=picks[0].shape[1] if picks else 0, TURNED=turned,
        DW=power(table.shape[1]),
    )  # fmt: skip
    return to_table, None if bias is None else to_bias


def _places(plan: Plan, wanted: Sequence[bool]) -> list[str]:
    """The sums of item vectors that the forward kernel leaves, in its order."""
    own = ["0", *(["f"] if plan.linear else []), *(["b"] if plan.below >= 0 else [])] if wanted[0] else []
    return own + [f"{i}" for i in (1, 2) if wanted[i]]


def _arguments(parts: Sequence[Any]) -> tuple[Any, ...]:
    """Nine tensors (what is missing is stood in for by π's) and three widths."""
    full = [part if part is not None else parts[i % 2] for i, part in enumerate(parts)]
    return (*full, *(full[i].shape[1] for i in (0, 3, 6)))


def _constants(plan: Plan, size: Blocks, parts: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"BM": size.rows, "BN": size.items, "PRECISION": plan.precision}
    found |= {"num_warps": size.warps, "num_stages": size.stages}
    for i in range(3):
        used = i < plan.slots
        found[f"D{i}"] = power(parts[3 * i].shape[1]) if used else 16
        found[f"BIAS{i}"] = used and parts[3 * i + 2] is not None
        if i:
            found[f"HEAD{i}"] = used
    return found | {
        "OWN": plan.own,
        "LINEAR": plan.linear,
        "BELOW": plan.below,
        "NOISE": plan.noise,
        "EXCLUDED": plan.excluded,
    }


def reduce(
    pi: Head,
    linear: Linear,
    below: tuple[Head, Tensor] | None,
    excluded: Tensor | None,
    noise: Noise | None,
    temperature: float,
    direct: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """lse, mean and mass over the items that are not excluded."""
    return _apply(pi, linear, below, excluded, noise, temperature, direct, None)[:3]


def lse_and_values(head: Head, excluded: Tensor | None, actions: Tensor) -> tuple[Tensor, Tensor]:
    """lse [B] over the items that are not excluded, and z at `actions` [B, n]: together, because then their gradients
    meet in one table.
    """
    lse, _, _, picked = _apply(head, (), None, excluded, None, 1.0, True, actions)
    return lse, picked


def _apply(
    pi: Head,
    linear: Linear,
    below: tuple[Head, Tensor] | None,
    excluded: Tensor | None,
    noise: Noise | None,
    temperature: float,
    direct: bool,
    actions: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads, weights = [pi], [0.0, 0.0, 0.0]
    for head in [*(head for _, head in linear), *([below[0]] if below is not None else [])]:
        if not any(_same(head, known) for known in heads):
            heads.append(head)
    check(heads)
    for weight, head in linear:
        slot = next(i for i, known in enumerate(heads) if _same(head, known))
        weights[slot] = weights[slot] + weight  # type: ignore[assignment]
    device = pi.state.device
    unused = torch.zeros(1, device=device)
    coefficients = torch.stack(
        [w.detach().float() if isinstance(w, Tensor) else torch.full((), w, device=device) for w in weights]
    )
    if actions is None:
        actions = torch.zeros(pi.rows, 0, dtype=torch.long, device=device)
    bound = unused if below is None else below[1].float().contiguous()
    seed = noise.seed if noise is not None else torch.zeros((), dtype=torch.long, device=device)
    plan = Plan(
        slots=len(heads),
        own=any(_same(head, pi) for _, head in linear),
        linear=len(linear) > 0,
        below=-1 if below is None else next(i for i, known in enumerate(heads) if _same(below[0], known)),
        noise=noise is not None,
        excluded=excluded is not None and excluded.numel() > 0,
        temperature=temperature,
        direct=direct,
        size=blocks(FORWARD, heads),
        back=blocks(BACKWARD, heads),
        learns=torch.is_grad_enabled(),
        precision=precision(pi.state.dtype),
    )
    parts: list[Any] = []
    for head in heads:
        bias = None if head.bias is None else head.bias.float().contiguous()
        parts += [head.state.contiguous(), head.table.contiguous(), bias]
    parts += [None] * (9 - len(parts))
    found = _Reduce.apply(plan, (coefficients, bound, seed, actions), excluded, *parts)  # type: ignore[no-untyped-call]
    lse, mean, mass, picked = found
    return lse, mean, mass, picked


def _same(one: Head, other: Head) -> bool:
    return one.state is other.state and one.table is other.table and one.bias is other.bias
