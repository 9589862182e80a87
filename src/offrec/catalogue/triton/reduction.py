"""The catalogue's functions as Triton kernels: nothing of size [rows × items] is ever written.

The forward pass keeps, besides a few numbers a row, the expected item vector Σ π t (and Σ π f t), as attention keeps
its output: then the gradient of the states needs no second pass, and the backward pass computes tiles again only for
the tables. Operands may be float32 (as TF32, or exactly where torch is told so) or bfloat16; sums are float32.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from offrec.catalogue.head import Head
from offrec.catalogue.noise import Noise
from offrec.catalogue.slots import Slots
from offrec.catalogue.streams import SideStreams
from offrec.catalogue.triton.backward import FACTORS, Left, add_picked, rows_gradients
from offrec.catalogue.triton.forward import Few, Plan, combined, nearest_states, streamed
from offrec.catalogue.triton.launch import backward_blocks, check, forward_blocks, precision
from offrec.catalogue.triton.search import maximum, rank, top_k

__all__ = ["lse_and_values", "maximum", "rank", "reduce", "top_k"]

Linear = Sequence[tuple[float | Tensor, Head]]
NAMES = ("state", "table", "bias", "items", "values")
PARTS = 12  # state, table and bias of four heads
TABLE_STREAM = 4  # the number of the stream on which the tables' gradients are made


class Sums(NamedTuple):
    """[B] each; anything where it was not asked for."""

    lse: Tensor
    mean: Tensor
    mass: Tensor
    detached_mean: Tensor
    normaliser: Tensor


class _Tables(torch.autograd.Function):
    """The tables' gradients as a node of their own: they are the longest kernel of a backward pass, and what hangs on
    the states' need not wait for it. What goes forward is nothing; its gradient says what is left to do.
    """

    @staticmethod
    def forward(ctx: Any, left: list[Left], n_rows: int, *tables: Any) -> Tensor:
        ctx.left, ctx.kinds = left, [None if table is None else table.dtype for table in tables]
        return torch.empty(FACTORS, n_rows, device=tables[0].device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factors: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[2:]
        wanted = [needed[i] or needed[i + 1] for i in range(0, len(needed), 2)]
        found = zip(ctx.left.pop().gradients(wanted), ctx.kinds, strict=True)
        return None, None, *(None if gradient is None else gradient.to(kind) for gradient, kind in found)


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, extras: tuple[Any, ...], few: Few, left: list[Left], tables: Any, *tensors: Any
    ) -> tuple[Any, ...]:
        """`tables`: what `_Tables` gave, and `left` its list; None where they are held fixed."""
        bound, seed, actions = extras
        exact, table, bias = tensors[:3]
        parts = nearest_states(tensors[:PARTS], plan)
        few = few.of(tensors[PARTS:])
        needed = ctx.needs_input_grad[5:]
        wanted = [plan.learns and needed[3 * i] and (i == 0 or plan.direct) for i in range(3)]
        scalars, vectors = streamed(plan, parts, (bound, seed), few, wanted)
        found, expected = combined(plan, scalars, vectors, (bound, seed), few, len(table))
        picked = None
        if actions is not None:
            picked = (exact.float()[:, None] * table[actions].float()).sum(-1)
            picked = picked if bias is None else picked + bias[actions]
        ctx.save_for_backward(*extras, few.items, exact, found, expected, *parts, *few.values)
        ctx.plan, ctx.few, ctx.wanted, ctx.left = plan, few.without_values(), wanted, left
        ctx.set_materialize_grads(False)
        _, lse, mean, mass, detached_mean, normaliser = found.unbind()
        ctx.mark_non_differentiable(detached_mean, normaliser)
        return lse, mean, mass, detached_mean, normaliser, picked

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g_lse: Any, g_mean: Any, g_mass: Any, g_detached: Any, g_normaliser: Any, g_picked: Any
    ) -> tuple[Any, ...]:
        plan: Plan = ctx.plan
        bound, seed, actions, _, exact, found, expected, *tensors = ctx.saved_tensors
        parts, few = tensors[:PARTS], ctx.few.of(tensors[PARTS:])
        given = (g_lse, g_mean, g_mass if plan.below >= 0 else None)
        factors, states, slots = rows_gradients(plan, parts, (bound, seed), few, given, found, expected, ctx.wanted)
        to_tables = None
        if ctx.needs_input_grad[4]:
            # Added to a bfloat16 table later, the picked items' part would be rounded once more.
            inside = g_picked is not None and actions.shape[1] <= 2 and parts[1].dtype == torch.bfloat16
            picked = None if g_picked is None else (g_picked, actions, exact, inside)
            ctx.left[:] = [Left(plan, parts, (bound, seed), few, found[0], factors, given, picked)]
            to_tables = factors
        gradients: list[Tensor | None] = [None] * PARTS
        gradients[0 : 3 * plan.learned : 3] = states[: plan.learned]
        if g_picked is not None:
            add_picked(gradients, g_picked, actions, [exact, parts[1]], in_kernel=True)
        for i, state in enumerate(gradients[0 : 3 * plan.learned : 3]):
            gradients[3 * i] = None if state is None else state.to(parts[3 * i].dtype)
        return None, None, None, None, to_tables, *gradients, *slots


def reduce(
    pi: Head,
    linear: Linear,
    below: tuple[Head, Tensor] | None,
    slots: Slots | None,
    noise: Noise | None,
    temperature: float,
    direct: bool,
    detached: Linear = (),
    normalised: Head | None = None,
) -> Sums:
    return _apply(pi, linear, below, slots, noise, temperature, direct, detached, normalised, None)[0]


def lse_and_values(head: Head, slots: Slots | None, actions: Tensor) -> tuple[Tensor, Tensor]:
    """lse [B], and the base's z at `actions` [B, n]: together, because then their gradients meet in one table."""
    found, picked = _apply(head, (), None, slots, None, 1.0, True, (), None, actions)
    return found.lse, picked


def _apply(
    pi: Head,
    linear: Linear,
    below: tuple[Head, Tensor] | None,
    slots: Slots | None,
    noise: Noise | None,
    temperature: float,
    direct: bool,
    detached: Linear,
    normalised: Head | None,
    actions: Tensor | None,
) -> tuple[Sums, Any]:
    linear, detached = ([_plain_coefficient(*term) for term in terms] for terms in (linear, detached))
    heads = [pi]
    for _, head in linear:
        if not any(_same(head, known) for known in heads):
            heads.append(head)
    low = -1 if below is None else _fixed(heads, below[0])
    learned = len(heads)
    fixed = [(coefficient, _fixed(heads, head)) for coefficient, head in detached]
    normed = -1 if normalised is None else _fixed(heads, normalised)
    check(heads, learned)
    learning = [torch.is_grad_enabled() and head.state.requires_grad for head in heads[:learned]]
    plan = Plan(
        heads=len(heads),
        learned=learned,
        linear=len(linear) > 0,
        coefficients=_summed([(coefficient, _place(heads, head)) for coefficient, head in linear])[:3],
        detached=_summed(fixed) if fixed else None,
        below=low,
        normalised=normed,
        noise=noise is not None,
        temperature=temperature,
        direct=direct,
        size=forward_blocks(heads, [learning[0], *(direct and some for some in learning[1:])]),
        back=backward_blocks(heads[:learned]),
        learns=any(learning),
        precision=precision(pi.state.dtype),
    )
    bound = None if below is None else below[1].float().contiguous()
    extras = (bound, None if noise is None else noise.seed, actions)
    lse, mean, mass, fixed_mean, normaliser, picked = _passed(plan, heads, slots, extras)
    return Sums(lse, mean, mass, fixed_mean, lse.detach() if normed == 0 else normaliser), picked


def _passed(plan: Plan, heads: list[Head], slots: Slots | None, extras: tuple[Any, ...]) -> tuple[Any, ...]:
    """The pass itself; concurrently, where tables are learned, what their gradients can do before it is over."""
    parts: list[Any] = []
    tables: list[Any] = []
    for head in heads:
        bias = None if head.bias is None else head.bias.float().contiguous()
        parts += [head.state.contiguous(), head.table.detach().contiguous(), None if bias is None else bias.detach()]
        tables += [head.table if head.full_precision is None else head.full_precision.table, bias]
    parts += [None] * (PARTS - len(parts))
    tables = tables[: 2 * plan.learned]
    values = [] if slots is None else [slots.at(head).float().contiguous() for head in heads]
    few = Few(None if slots is None else slots.items, (), {} if slots is None else slots.sorted)
    left: list[Left] = []
    if not torch.is_grad_enabled() or not any(table is not None and table.requires_grad for table in tables):
        found: tuple[Any, ...] = _Reduce.apply(plan, extras, few, left, None, *parts, *values)  # type: ignore[no-untyped-call]
        return found
    sides = SideStreams(parts[0].device)
    # A leaf adds up its gradients on the stream that used it first, which would wait for the other at once.
    with nullcontext() if any(_leaf(table) for table in tables) else sides(TABLE_STREAM):
        few.sort_ahead(len(parts[1]), plan.back, parts[0])
        to_learn = _Tables.apply(left, len(parts[0]), *tables)  # type: ignore[no-untyped-call]
    found = _Reduce.apply(plan, extras, few, left, to_learn, *parts, *values)  # type: ignore[no-untyped-call]
    sides.join()
    return found


def _leaf(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad and tensor.is_leaf


def _plain_coefficient(coefficient: float | Tensor, head: Head) -> tuple[float, Head]:
    """A coefficient that stands on the device goes into the head."""
    return (1.0, head.scale(coefficient.detach())) if isinstance(coefficient, Tensor) else (float(coefficient), head)


def _fixed(heads: list[Head], head: Head) -> int:
    """The place of a head that gets no gradient: it may be any of the same values, and is added if there is none."""
    for i, known in enumerate(heads):
        if _same(head, known) or _same_values(head, known):
            return i
    heads.append(head.detach())
    return len(heads) - 1


def _summed(terms: list[tuple[float, int]]) -> tuple[float, ...]:
    weights = [0.0] * 4
    for weight, place in terms:
        weights[place] += weight
    return tuple(weights)


def _place(heads: list[Head], head: Head) -> int:
    return next(i for i, known in enumerate(heads) if _same(head, known))


def _same(one: Head, other: Head) -> bool:
    return one.replaces_base == other.replaces_base and all(
        getattr(one, name) is getattr(other, name) for name in NAMES
    )


def _same_values(one: Head, other: Head) -> bool:
    """A tensor that is held fixed is another object, but lies in the same place."""
    return one.replaces_base == other.replaces_base and all(
        mine is its
        if mine is None or its is None
        else (mine.data_ptr(), mine.shape, mine.stride()) == (its.data_ptr(), its.shape, its.stride())
        for mine, its in ((getattr(one, name), getattr(other, name)) for name in NAMES)
    )
