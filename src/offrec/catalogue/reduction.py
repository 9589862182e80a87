"""Sums over the catalogue in two parts: the bases, by a core that streams them, and the few corrected items, by hand.

A core (`tiled`, `kernels`) leaves out the items of a row that any of the heads corrects. Their values [B, K] are plain
differentiable code; they are merged with what the core found here or, on a GPU, where that would be a hundred small
kernels, by `kernels` itself. Nothing here waits for the device.
"""

from dataclasses import replace
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from offrec.catalogue import reference, tiled
from offrec.catalogue.backend import backend_for
from offrec.catalogue.head import ALL_MASKED, Head, Linear, Support, UpperBound
from offrec.catalogue.noise import Noise
from offrec.catalogue.slots import Slots

NOTHING = -3e38  # far below MASKED: an item that is masked still weighs more than one that is not there


class Reduced(NamedTuple):
    lse: Tensor  # [B] log Σ_a exp z(a)
    mean: Tensor  # [B] E_π[Σ_i c_i z_i(a)]; 0 without linear terms
    mass: Tensor  # [B] Σ π(a) over {a: z_below(a) ≤ bound}; 0 without a bound


class DetachedSums(NamedTuple):
    """Further sums that one pass can compute without gradients."""

    mean: Tensor  # [B] E_π[Σ_i c_i z_i(a)] of other coefficients and heads
    lse: Tensor  # [B] log Σ_a exp z(a) of another head


def logsumexp(head: Head) -> Tensor:
    """log Σ_a exp z(a): [B]."""
    return reduce(head).lse


def log_prob(head: Head, actions: Tensor) -> Tensor:
    """log softmax(z) at actions: [B, n] → [B, n]."""
    if backend_for(head) != "kernels":
        return head.at(actions) - logsumexp(head)[:, None]
    lse: Tensor
    z: Tensor
    lse, z = _core("kernels").lse_and_values(head, Slots.of([head]), actions)
    return head.apply_corrections(z, actions) - lse[:, None]


def reduce(pi: Head, linear: Linear = (), below: UpperBound | None = None) -> Reduced:
    """What π = softmax(z) expects of Σ_i c_i z_i, and its mass where another head is at or below a bound.

    Gradients reach the tensors of π and of every linear head; none pass the coefficients, the bound or its head.
    """
    _check(_heads(pi, linear, below), below)
    name = backend_for(*_heads(pi, linear, below))
    if name == "reference":
        return Reduced(*reference.reduce(pi, linear, below))
    return _reduce(name, pi, linear, below, None, 1.0, True)


def reduce_with_detached(
    pi: Head, linear: Linear, detached: Linear = (), normalised: Head | None = None
) -> tuple[Reduced, DetachedSums]:
    """`reduce`, plus sums without gradients: E_π of `detached` and the logsumexp of `normalised`.

    The kernels compute all of it in one pass. A sum that was not requested is 0.
    """
    every = _heads(pi, [*linear, *detached], None) + ([] if normalised is None else [normalised])
    _check(every)
    if backend_for(*every) == "kernels":
        sums = _core("kernels").reduce(pi, linear, None, Slots.of(every), None, 1.0, True, detached, normalised)
        return Reduced(sums.lse, sums.mean, sums.mass), DetachedSums(sums.detached_mean, sums.normaliser)
    sums = reduce(pi, linear)
    with torch.no_grad():
        mean = reduce(pi, detached).mean if detached else torch.zeros_like(sums.lse)
        lse = logsumexp(normalised) if normalised is not None else torch.zeros_like(sums.lse)
    return sums, DetachedSums(mean, lse)


def gumbel_softmax(pi: Head, linear: Linear, *, temperature: float, noise: Noise, hard: bool = False) -> Tensor:
    """Σ_a y_a Σ_i c_i z_i(a) with y = softmax((z + g) / temperature): [B].

    `hard` (straight-through): the value at the one item where z + g is largest; the gradient to π's z is that of y.
    """
    if not linear:
        raise ValueError("gumbel_softmax needs at least one linear term")
    _check(_heads(pi, linear, None))
    name = backend_for(*_heads(pi, linear, None))
    if name == "reference":
        return reference.gumbel_softmax(pi, linear, temperature=temperature, noise=noise, hard=hard)
    if not hard:
        return _reduce(name, pi, linear, None, noise, temperature, True).mean
    item = maximum(pi, noise)[1][:, None]
    value = _combined([(coefficient, head.at(item)) for coefficient, head in linear])[:, 0]
    parts = (pi.state, pi.table, pi.bias, pi.values)
    if not (torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts)):
        return value
    soft = _reduce(name, pi, linear, None, noise, temperature, False).mean
    return value + (soft - soft.detach())


@torch.no_grad()
def maximum(head: Head, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
    """The largest z and its item, the lower one among equals: [B] each. With noise of z + g: a draw from softmax(z)."""
    name = backend_for(head)
    if name == "reference":
        return reference.maximum(head, noise)
    slots, stripped = Slots.of([head]), _Stripped()
    values, items = _core(name).maximum(stripped(head), slots and slots.items, noise)
    if slots is None:
        return values, items
    z = slots.at(head) if noise is None else slots.at(head) + slots.noise(noise)
    z = z.masked_fill(slots.empty, NOTHING)  # not in place: it may be the head's own values
    best = z.amax(1)
    item = slots.items.masked_fill(z < best[:, None], head.n_items).amin(1)
    better = (best > values) | ((best == values) & (item < items))
    return torch.where(better, best, values), torch.where(better, item, items)


def _reduce(
    name: str, pi: Head, linear: Linear, below: UpperBound | None, noise: Noise | None, heat: float, direct: bool
) -> Reduced:
    slots, stripped = Slots.of(_heads(pi, linear, below)), _Stripped()
    if name == "kernels":
        return Reduced(*_core(name).reduce(pi, linear, below, slots, noise, heat, direct)[:3])
    bases = [(coefficient, stripped(head)) for coefficient, head in linear]
    low = below and (stripped(below[0]), below[1])
    excluded = None if slots is None else slots.items
    lse, mean, mass = tiled.reduce(stripped(pi), bases, low, excluded, noise, heat, direct)
    if slots is None:
        return Reduced(lse, mean, mass)
    score = z = slots.at(pi)
    if noise is not None:
        score = (z + slots.noise(noise)) / heat
    score = score.masked_fill(slots.empty, NOTHING)
    lse = lse.masked_fill(lse <= ALL_MASKED, NOTHING)
    whole = torch.logaddexp(lse, torch.logsumexp(score, 1))
    if not linear and below is None:
        return Reduced(whole, mean, mass)
    share, chances = (lse - whole).exp(), (score - whole[:, None]).exp()
    if linear:
        f = _combined([(coefficient, z if head is pi else slots.at(head)) for coefficient, head in linear])
        f = f.masked_fill(slots.empty, 0.0)
        mean = share * mean + (chances * (f if direct else f.detach())).sum(1)
    if below is not None:
        inside = (slots.at(below[0].detach()) <= below[1][:, None]) & ~slots.empty
        mass = share * mass + torch.where(inside, chances, 0.0).sum(1)
    return Reduced(whole, mean, mass)


class _Stripped:
    """Heads without corrections, also within; the same base for the same head, since cores look for π by identity."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Head, Head]] = {}  # also the head itself: what lives keeps its id

    def __call__(self, head: Head) -> Head:
        if id(head) not in self._known:
            base, support = head.base, head.support
            bound = support and Support(self(support.head.detach()), support.bound)
            self._known[id(head)] = head, base if bound is None else replace(base, support=bound)
        return self._known[id(head)][1]


def _combined(terms: list[tuple[float | Tensor, Tensor]]) -> Tensor:
    """Σ c z, where no gradient passes c."""
    fixed = [(c.detach() if isinstance(c, Tensor) else c, z) for c, z in terms]
    total = fixed[0][0] * fixed[0][1]
    for coefficient, z in fixed[1:]:
        total = total + coefficient * z
    return total


def _heads(pi: Head, linear: Linear, below: UpperBound | None) -> list[Head]:
    return [pi, *(head for _, head in linear), *([below[0]] if below else [])]


def _check(heads: list[Head], below: UpperBound | None = None) -> None:
    pi = heads[0]
    for head in heads:
        if (head.n_rows, head.n_items) != (pi.n_rows, pi.n_items):
            raise ValueError(
                f"a head has {head.n_rows} rows and {head.n_items} items; expected {pi.n_rows} rows and "
                f"{pi.n_items} items, as the first head has"
            )
    if below and below[1].shape != (pi.n_rows,):
        raise ValueError(f"a bound of shape {tuple(below[1].shape)} for {pi.n_rows} rows")


def _core(name: str) -> ModuleType:
    if name == "kernels":
        from offrec.catalogue.triton import reduction  # needs triton

        return reduction
    return tiled
