"""Sums over the catalogue in two parts: the bases, by a core that streams them, and the few corrected items, by hand.

A core (`tiled`, `kernels`) knows no corrections. It leaves out the items of a row that any of the heads corrects; their
values [B, K] are plain differentiable code here, merged with what the core found. Nothing here waits for the device.
"""

from dataclasses import replace
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from offrec.catalogue import reference, tiled
from offrec.catalogue.choice import chosen
from offrec.catalogue.head import GONE, MASKED, Below, Head, Linear, Within
from offrec.catalogue.noise import Noise, gumbel_noise

FEW = 64  # corrections of a row that are compared with each other rather than sorted
NOTHING = -3e38  # far below MASKED: an item that is masked still weighs more than one that is not there


class Reduced(NamedTuple):
    lse: Tensor  # [B] log Σ_a exp z(a)
    mean: Tensor  # [B] E_π[Σ_i c_i z_i(a)]; 0 without linear terms
    mass: Tensor  # [B] Σ π(a) over {a: z_below(a) ≤ bound}; 0 without a bound


def logsumexp(head: Head) -> Tensor:
    """log Σ_a exp z(a): [B]."""
    return reduce(head).lse


def log_prob(head: Head, actions: Tensor) -> Tensor:
    """log softmax(z) at actions: [B, n] → [B, n]."""
    if chosen(head) != "kernels":
        return head.at(actions) - logsumexp(head)[:, None]
    slots, stripped = Slots.of([head]), _Stripped()
    lse: Tensor
    z: Tensor
    lse, z = _core("kernels").lse_and_values(stripped(head), slots and slots.items, actions)
    if slots is not None:
        score = slots.at(head).masked_fill(slots.empty, NOTHING)
        lse = torch.logaddexp(lse.masked_fill(lse <= GONE, NOTHING), torch.logsumexp(score, 1))
    return head.corrected_at(z, actions) - lse[:, None]


def reduce(pi: Head, linear: Linear = (), below: Below | None = None) -> Reduced:
    """What π = softmax(z) expects of Σ_i c_i z_i, and its mass where another head is at or below a bound.

    Gradients reach the tensors of π and of every linear head; none pass the coefficients, the bound or its head.
    """
    _check(pi, linear, below)
    name = chosen(*_heads(pi, linear, below))
    if name == "reference":
        return Reduced(*reference.reduce(pi, linear, below))
    return _reduce(_core(name), pi, linear, below, None, 1.0, True)


def gumbel_softmax(pi: Head, linear: Linear, *, temperature: float, noise: Noise, hard: bool = False) -> Tensor:
    """Σ_a y_a Σ_i c_i z_i(a) with y = softmax((z + g) / temperature): [B].

    `hard` (straight-through): the value at the one item where z + g is largest; the gradient to π's z is that of y.
    """
    if not linear:
        raise ValueError("gumbel_softmax needs at least one linear term")
    _check(pi, linear, None)
    name = chosen(*_heads(pi, linear, None))
    if name == "reference":
        return reference.gumbel_softmax(pi, linear, temperature=temperature, noise=noise, hard=hard)
    if not hard:
        return _reduce(_core(name), pi, linear, None, noise, temperature, True).mean
    item = maximum(pi, noise)[1][:, None]
    value = _combined([(coefficient, head.at(item)) for coefficient, head in linear])[:, 0]
    parts = (pi.state, pi.table, pi.bias, pi.values)
    if not (torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts)):
        return value
    soft = _reduce(_core(name), pi, linear, None, noise, temperature, False).mean
    return value + (soft - soft.detach())


@torch.no_grad()
def maximum(head: Head, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
    """The largest z and its item, the lower one among equals: [B] each. With noise of z + g: a draw from softmax(z)."""
    name = chosen(head)
    if name == "reference":
        return reference.maximum(head, noise)
    slots, stripped = Slots.of([head]), _Stripped()
    values, items = _core(name).maximum(stripped(head), slots and slots.items, noise)
    if slots is None:
        return values, items
    z = slots.at(head) if noise is None else slots.at(head) + slots.noise(noise)
    best = z.masked_fill_(slots.empty, NOTHING).amax(1)
    item = slots.items.masked_fill(z < best[:, None], head.n_items).amin(1)
    better = (best > values) | ((best == values) & (item < items))
    return torch.where(better, best, values), torch.where(better, item, items)


def _reduce(
    core: ModuleType, pi: Head, linear: Linear, below: Below | None, noise: Noise | None, heat: float, direct: bool
) -> Reduced:
    slots, stripped = Slots.of(_heads(pi, linear, below)), _Stripped()
    bases = [(coefficient, stripped(head)) for coefficient, head in linear]
    low = below and (stripped(below[0]), below[1])
    excluded = slots and slots.items
    lse, mean, mass = core.reduce(stripped(pi), bases, low, excluded, noise, heat, direct)
    if slots is None:
        return Reduced(lse, mean, mass)
    score = z = slots.at(pi)
    if noise is not None:
        score = (z + slots.noise(noise)) / heat
    score = score.masked_fill(slots.empty, NOTHING)
    lse = lse.masked_fill(lse <= GONE, NOTHING)
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


class Slots:
    """The corrected items of a row, each once: [B, K], and the corrections' places among them."""

    def __init__(self, corrections: list[Tensor], n_items: int) -> None:
        self.corrections = corrections
        self._same: Tensor | None = None  # [B, K, K] which corrections of a row are of one item
        if len(corrections) == 1 and corrections[0].shape[1] <= FEW:
            self._compare(corrections[0], n_items)
        else:
            self._sort(corrections, n_items)
        self.empty = self.items >= n_items
        self._inside = self.items.clamp(max=n_items - 1)

    def _compare(self, items: Tensor, n_items: int) -> None:
        """A slot is a correction's own place, empty where an equal item comes before it. No sort: that is many small
        kernels on a GPU.
        """
        self._same = same = items[:, :, None] == items[:, None, :]
        self.items = items.masked_fill(same.tril(-1).any(2), n_items)
        self._places: tuple[Tensor, ...] = (items,)  # not looked at

    def _sort(self, corrections: list[Tensor], n_items: int) -> None:
        every = torch.cat(corrections, 1).clamp(max=n_items)
        item, order = every.sort(1)
        new = item[:, 1:] != item[:, :-1]
        slot = torch.cat([torch.zeros_like(item[:, :1]), new.cumsum(1)], 1)
        self.items = torch.full_like(item, n_items).scatter_(1, slot, item)
        places = torch.empty_like(slot).scatter_(1, order, slot)
        self._places = torch.split(places, [part.shape[1] for part in corrections], 1)

    @staticmethod
    def of(heads: list[Head]) -> "Slots | None":
        """None where nothing is corrected. Heads that share one tensor of items share its slots."""
        corrections: dict[int, Tensor] = {}
        for head in heads:
            within = head
            while True:
                if within.items is not None and within.items.shape[1]:
                    corrections[id(within.items)] = within.items
                if within.within is None:
                    break
                within = within.within.head
        return Slots(list(corrections.values()), heads[0].n_items) if corrections else None

    def at(self, head: Head) -> Tensor:
        """z of the slots: [B, K]; anything where a slot is empty. No row of the table is read that is not needed."""
        mine = self._mine(head)
        if mine is None or head.values is None:
            z = head.base_at(self._inside)
        else:
            z = self._added_up(mine, head.values.to(head.dtype))
            if not head.instead:
                z = head.base_at(self._inside) + z
            elif len(self.corrections) > 1:
                taken = torch.zeros_like(self.empty).scatter_(1, mine, True)
                z = torch.where(taken, z, head.base_at(self._inside))
        if head.within is not None:
            z = z.masked_fill(self.at(head.within.head.detach()) < head.within.bound[:, None], MASKED)
        return z

    def _added_up(self, mine: Tensor, values: Tensor) -> Tensor:
        if self._same is not None:
            return torch.where(self._same, values[:, None, :], 0.0).sum(-1)
        rows = torch.arange(len(mine), device=mine.device)[:, None].expand_as(mine)
        empty = torch.zeros(self.items.shape, dtype=values.dtype, device=mine.device)
        # unlike `scatter_add`, this adds in the same order every time, also on a GPU
        return empty.index_put((rows, mine), values, accumulate=True)

    def noise(self, noise: Noise) -> Tensor:
        rows = torch.arange(len(self.items), device=self.items.device)[:, None]
        return gumbel_noise(noise, rows, self.items)

    def _mine(self, head: Head) -> Tensor | None:
        for items, places in zip(self.corrections, self._places, strict=True):
            if items is head.items:
                return places
        return None


class _Stripped:
    """Heads without corrections, also within; the same base for the same head, since cores look for π by identity."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Head, Head]] = {}  # also the head itself: what lives keeps its id

    def __call__(self, head: Head) -> Head:
        if id(head) not in self._known:
            base, within = head.base, head.within
            bound = within and Within(self(within.head.detach()), within.bound)
            self._known[id(head)] = head, base if bound is None else replace(base, within=bound)
        return self._known[id(head)][1]


def _combined(terms: list[tuple[float | Tensor, Tensor]]) -> Tensor:
    """Σ c z, where no gradient passes c."""
    fixed = [(c.detach() if isinstance(c, Tensor) else c, z) for c, z in terms]
    total = fixed[0][0] * fixed[0][1]
    for coefficient, z in fixed[1:]:
        total = total + coefficient * z
    return total


def _heads(pi: Head, linear: Linear, below: Below | None) -> list[Head]:
    return [pi, *(head for _, head in linear), *([below[0]] if below else [])]


def _check(pi: Head, linear: Linear, below: Below | None) -> None:
    for head in _heads(pi, linear, below):
        if (head.rows, head.n_items) != (pi.rows, pi.n_items):
            raise ValueError(
                f"a head of {head.rows} rows and {head.n_items} items does not meet one of {pi.rows} and {pi.n_items}"
            )
    if below and below[1].shape != (pi.rows,):
        raise ValueError(f"a bound of shape {tuple(below[1].shape)} for {pi.rows} rows")


def _core(name: str) -> ModuleType:
    if name == "kernels":
        from offrec.catalogue import kernels  # needs triton

        return kernels
    return tiled
