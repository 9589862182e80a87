"""Differentiable sums over the catalogue with kernels; no tensor of size [rows × items] is ever written.

Next to a few numbers per row, the forward pass stores the expected item vector Σ π t (and Σ π f t), as attention stores
its output. So the gradient of the states needs no second pass, and the backward pass recomputes tiles only for the
tables. Operands are float32 (as TF32, or exactly if torch is set so) or bfloat16; sums are float32.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from offrec.catalogue.head import Head, Linear, UpperBound
from offrec.catalogue.noise import Noise
from offrec.catalogue.slots import Slots
from offrec.catalogue.streams import SideStreams
from offrec.catalogue.triton.backward import (
    FACTORS,
    TableGradients,
    add_picked,
    row_gradients,
    state_gradient,
    transposed_table,
)
from offrec.catalogue.triton.forward import PassSettings, SlotValues, combine, round_states, stream_catalogue
from offrec.catalogue.triton.launch import backward_blocks, check, forward_blocks, has_separate_pass, precision

TENSORS = ("state", "table", "bias", "items", "values")  # of a head
PARTS = 12  # state, table and bias of four heads
TABLE_STREAM = 4  # number of the side stream that computes the tables' gradients


class Sums(NamedTuple):
    """The sums of one pass, [B] each; those that were not requested are undefined."""

    lse: Tensor
    mean: Tensor
    mass: Tensor
    detached_mean: Tensor
    normaliser: Tensor


class _Tables(torch.autograd.Function):
    """A separate autograd node for the tables' gradients.

    They are the longest kernel of a backward pass, and the rest of the graph need not wait for them. The forward output
    is a placeholder; in the backward pass, `_Reduce` leaves the work to do in `deferred`.
    """

    @staticmethod
    def forward(ctx: Any, deferred: list[TableGradients], n_rows: int, *tables: Any) -> Tensor:
        ctx.deferred, ctx.dtypes = deferred, [None if table is None else table.dtype for table in tables]
        return torch.empty(FACTORS, n_rows, device=tables[0].device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factors: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[2:]
        wanted = [needed[i] or needed[i + 1] for i in range(0, len(needed), 2)]
        gradients = zip(ctx.deferred.pop().compute(wanted), ctx.dtypes, strict=True)
        return None, None, *(None if gradient is None else gradient.to(dtype) for gradient, dtype in gradients)


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        settings: PassSettings,
        extras: tuple[Any, ...],
        slots: SlotValues,
        deferred: list[TableGradients],
        tables: Any,
        columns: Any,
        *tensors: Any,
    ) -> tuple[Any, ...]:
        """Run the forward pass.

        `tables` is the output of `_Tables`, or None if no table needs a gradient. `columns` is π's table, transposed,
        if a separate pass computes the gradient of its state.
        """
        bound, seed, actions = extras
        exact, table, bias = tensors[:3]
        parts = round_states(tensors[:PARTS], settings)
        slots = slots.with_values(tensors[PARTS:])
        needed = ctx.needs_input_grad[6:]
        wanted = [settings.learns and needed[3 * i] and (i == 0 or settings.direct) for i in range(3)]
        summed = [False] * 3 if settings.separate else wanted
        scalars, vectors = stream_catalogue(settings, parts, (bound, seed), slots, summed)
        sums, expected = combine(settings, scalars, vectors, (bound, seed), slots, len(table))
        picked = None
        if actions is not None:
            picked = (exact.float()[:, None] * table[actions].float()).sum(-1)
            picked = picked if bias is None else picked + bias[actions]
        ctx.save_for_backward(*extras, slots.items, exact, sums, expected, *parts, *slots.values)
        ctx.settings, ctx.slots, ctx.deferred, ctx.columns = settings, slots.with_values(()), deferred, columns
        ctx.wanted, ctx.summed = wanted, summed
        ctx.set_materialize_grads(False)
        _, lse, mean, mass, detached_mean, normaliser = sums.unbind()
        ctx.mark_non_differentiable(detached_mean, normaliser)
        return lse, mean, mass, detached_mean, normaliser, picked

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g_lse: Any, g_mean: Any, g_mass: Any, g_detached: Any, g_normaliser: Any, g_picked: Any
    ) -> tuple[Any, ...]:
        settings: PassSettings = ctx.settings
        bound, seed, actions, _, exact, sums, expected, *tensors = ctx.saved_tensors
        parts, slots = tensors[:PARTS], ctx.slots.with_values(tensors[PARTS:])
        given = (g_lse, g_mean, g_mass if settings.below >= 0 else None)
        factors, states, to_slots = row_gradients(
            settings, parts, (bound, seed), slots, given, sums, expected, ctx.summed
        )
        if settings.separate and ctx.wanted[0]:
            states[0] = state_gradient(settings, parts, (bound, seed), slots, sums[0], factors, ctx.columns, given)
        to_tables = None
        if ctx.needs_input_grad[4]:
            # Adding the picked items' part to a bfloat16 table afterwards would round it a second time.
            inside = g_picked is not None and parts[1].dtype == torch.bfloat16
            picked = None if g_picked is None else (g_picked, actions, exact, inside)
            ctx.deferred[:] = [
                TableGradients(settings, parts, (bound, seed), slots, sums[0], factors, given, picked)
            ]  # fmt: skip
            to_tables = factors
        gradients: list[Tensor | None] = [None] * PARTS
        gradients[0 : 3 * settings.learned : 3] = states[: settings.learned]
        if g_picked is not None:
            add_picked(gradients, g_picked, actions, [exact, parts[1]], in_kernel=True)
        for i, state in enumerate(gradients[0 : 3 * settings.learned : 3]):
            gradients[3 * i] = None if state is None else state.to(parts[3 * i].dtype)
        return None, None, None, None, to_tables, None, *gradients, *to_slots


def reduce(
    pi: Head,
    linear: Linear,
    below: UpperBound | None,
    slots: Slots | None,
    noise: Noise | None,
    temperature: float,
    direct: bool,
    detached: Linear = (),
    normalised: Head | None = None,
) -> Sums:
    """Compute the sums of `offrec.catalogue.reduction.reduce_with_detached`, including corrections.

    Args:
        pi: The policy's logits z; weights are softmax((z + g) / temperature).
        linear: The terms of the differentiable mean.
        below: A head and its upper bound [B].
        slots: The corrected items of all heads.
        noise: The seed of g, or None for g = 0.
        temperature: Temperature of the weights.
        direct: Whether gradients also flow through the linear heads' values.
        detached: The terms of the second mean, without gradients.
        normalised: The head whose logsumexp is computed, without gradients.
    """
    return _apply(pi, linear, below, slots, noise, temperature, direct, detached, normalised, None)[0]


def lse_and_values(head: Head, slots: Slots | None, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Compute lse [B] and the base's z at actions [B, n] as one node, so that their gradients share one table."""
    sums, picked = _apply(head, (), None, slots, None, 1.0, True, (), None, actions)
    return sums.lse, picked


def _apply(
    pi: Head,
    linear: Linear,
    below: UpperBound | None,
    slots: Slots | None,
    noise: Noise | None,
    temperature: float,
    direct: bool,
    detached: Linear,
    normalised: Head | None,
    actions: Tensor | None,
) -> tuple[Sums, Any]:
    linear, detached = ([_with_float_coefficient(*term) for term in terms] for terms in (linear, detached))
    heads = [pi]
    for _, head in linear:
        if not any(_same_tensors(head, known) for known in heads):
            heads.append(head)
    below_index = -1 if below is None else _index_of_detached(heads, below[0])
    learned = len(heads)
    detached_terms = [(coefficient, _index_of_detached(heads, head)) for coefficient, head in detached]
    normalised_index = -1 if normalised is None else _index_of_detached(heads, normalised)
    check(heads, learned)
    learning = [torch.is_grad_enabled() and head.state.requires_grad for head in heads[:learned]]
    separate = has_separate_pass(heads, learning)
    summed = [False] * learned if separate else [learning[0], *(direct and some for some in learning[1:])]
    settings = PassSettings(
        heads=len(heads),
        learned=learned,
        linear=len(linear) > 0,
        coefficients=_sum_by_head([(coefficient, _index(heads, head)) for coefficient, head in linear])[:3],
        detached=_sum_by_head(detached_terms) if detached_terms else None,
        below=below_index,
        normalised=normalised_index,
        noise=noise is not None,
        temperature=temperature,
        direct=direct,
        forward_blocks=forward_blocks(heads, summed),
        backward_blocks=backward_blocks(heads[:learned]),
        learns=any(learning),
        precision=precision(pi.state.dtype),
        separate=separate,
    )
    bound = None if below is None else below[1].float().contiguous()
    extras = (bound, None if noise is None else noise.seed, actions)
    lse, mean, mass, detached_mean, normaliser, picked = _run(settings, heads, slots, extras)
    return Sums(lse, mean, mass, detached_mean, lse.detach() if normalised_index == 0 else normaliser), picked


def _run(settings: PassSettings, heads: list[Head], slots: Slots | None, extras: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run the pass; if tables are learned, prepare their gradients concurrently on a side stream."""
    parts: list[Any] = []
    tables: list[Any] = []
    for head in heads:
        bias = None if head.bias is None else head.bias.float().contiguous()
        parts += [head.state.contiguous(), head.table.detach().contiguous(), None if bias is None else bias.detach()]
        tables += [head.table if head.full_precision is None else head.full_precision.table, bias]
    parts += [None] * (PARTS - len(parts))
    tables = tables[: 2 * settings.learned]
    values = [] if slots is None else [slots.at(head).float().contiguous() for head in heads]
    slot_values = SlotValues(None if slots is None else slots.items, (), {} if slots is None else slots.pairs_by_tile)
    deferred: list[TableGradients] = []
    if not torch.is_grad_enabled() or not any(table is not None and table.requires_grad for table in tables):
        columns = transposed_table(parts[1]) if settings.separate else None
        fixed = settings, extras, slot_values, deferred, None, columns
        outputs: tuple[Any, ...] = _Reduce.apply(*fixed, *parts, *values)  # type: ignore[no-untyped-call]
        return outputs
    sides = SideStreams(parts[0].device)
    # Autograd accumulates the gradient of a leaf on the stream that first used it, which would have to wait.
    with nullcontext() if any(_is_leaf(table) for table in tables) else sides(TABLE_STREAM):
        picks = extras[2] if parts[1].dtype == torch.bfloat16 else None
        columns = transposed_table(parts[1]) if settings.separate else None
        slot_values.sort_for_backward(len(parts[1]), settings.backward_blocks, parts[0], picks)
        placeholder = _Tables.apply(deferred, len(parts[0]), *tables)  # type: ignore[no-untyped-call]
    with_tables = settings, extras, slot_values, deferred, placeholder, columns
    outputs = _Reduce.apply(*with_tables, *parts, *values)  # type: ignore[no-untyped-call]
    sides.join(retain=columns)
    return outputs


def _is_leaf(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad and tensor.is_leaf


def _with_float_coefficient(coefficient: float | Tensor, head: Head) -> tuple[float, Head]:
    """Move a coefficient that is a tensor on the device into the head."""
    return (1.0, head.scale(coefficient.detach())) if isinstance(coefficient, Tensor) else (float(coefficient), head)


def _index_of_detached(heads: list[Head], head: Head) -> int:
    """Return the index of a head with the same values, appending the head if there is none; it gets no gradient."""
    for i, known in enumerate(heads):
        if _same_tensors(head, known) or _same_memory(head, known):
            return i
    heads.append(head.detach())
    return len(heads) - 1


def _sum_by_head(terms: list[tuple[float, int]]) -> tuple[float, ...]:
    coefficients = [0.0] * 4
    for coefficient, index in terms:
        coefficients[index] += coefficient
    return tuple(coefficients)


def _index(heads: list[Head], head: Head) -> int:
    return next(i for i, known in enumerate(heads) if _same_tensors(head, known))


def _same_tensors(one: Head, other: Head) -> bool:
    same_kind = one.replaces_base == other.replaces_base
    return same_kind and all(getattr(one, name) is getattr(other, name) for name in TENSORS)


def _same_memory(one: Head, other: Head) -> bool:
    """Return whether two heads read the same memory; a detached tensor is another object with the same data."""
    return one.replaces_base == other.replaces_base and all(
        mine is its
        if mine is None or its is None
        else (mine.data_ptr(), mine.shape, mine.stride()) == (its.data_ptr(), its.shape, its.stride())
        for mine, its in ((getattr(one, name), getattr(other, name)) for name in TENSORS)
    )
