"""Sums over the catalogue in two parts: a pass over the bases, and the few corrected items.

A core (`tiled` or `triton.reduction`) leaves out the items of a row that any of the heads corrects. Their values [B, K]
are ordinary differentiable code. They are merged with the core's sums here or, with kernels, inside the core: on a GPU
the merge would otherwise launch a hundred small kernels. This module never synchronises with the device.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from offrec.catalogue import reference, stored_weights, tiled
from offrec.catalogue.backend import backend_for
from offrec.catalogue.head import ALL_MASKED, Head, Linear, Support, UpperBound
from offrec.catalogue.noise import Noise
from offrec.catalogue.sharded import EMPTY, LocalHeads, best_items
from offrec.catalogue.slots import Slots


class Reduced(NamedTuple):
    """The sums of one pass over the catalogue."""

    lse: Tensor  # [B] log Σ_a exp z(a)
    mean: Tensor  # [B] E_π[Σ_i c_i z_i(a)]; 0 without linear terms
    mass: Tensor  # [B] Σ π(a) over {a: z_below(a) ≤ bound}; 0 without a bound


class DetachedSums(NamedTuple):
    """Additional sums that the same pass computes without gradients."""

    mean: Tensor  # [B] E_π[Σ_i c_i z_i(a)] of other coefficients and heads
    lse: Tensor  # [B] log Σ_a exp z(a) of another head


def logsumexp(head: Head) -> Tensor:
    """Compute log Σ_a exp z(a): [B]."""
    return reduce(head).lse


def log_prob(head: Head, actions: Tensor) -> Tensor:
    """Compute log softmax(z) at given items.

    Args:
        head: The logits of B rows.
        actions: [B, n] item indices.

    Returns:
        [B, n] log-probabilities, differentiable.
    """
    if head.shard is not None or backend_for(head) != "kernels":
        return head.at(actions) - logsumexp(head)[:, None]
    from offrec.catalogue.triton import reduction  # needs triton

    lse, z = reduction.lse_and_values(head, Slots.of([head]), actions)
    return head.apply_corrections(z, actions) - lse[:, None]


def reduce(pi: Head, linear: Linear = (), below: UpperBound | None = None) -> Reduced:
    """Compute expectations under π = softmax(z) in one pass over the catalogue.

    Gradients reach the tensors of π and of every linear head, but not the coefficients, the bound or its head.

    Args:
        pi: The policy's logits.
        linear: Terms (c_i, z_i); the pass computes E_π[Σ_i c_i z_i(a)].
        below: A head and an upper bound [B]; the pass computes π's mass on items whose value is at most the bound.

    Returns:
        The logsumexp, the mean and the mass, [B] each.

    Raises:
        ValueError: If heads differ in rows or items, or the bound is not [B].

    Example:
        >>> reduce(pi, [(1.0, q), (-0.1, pi)]).mean  # E_π[q(a) − 0.1 z(a)]
    """
    _check(_heads(pi, linear, below), below)
    if pi.shard is not None:
        return _reduce_sharded(pi, linear, below)
    name = backend_for(*_heads(pi, linear, below))
    if name == "reference":
        return Reduced(*reference.reduce(pi, linear, below))
    return _reduce(name, pi, linear, below, None, 1.0, True)


def reduce_with_detached(
    pi: Head, linear: Linear, detached: Linear = (), normalised: Head | None = None
) -> tuple[Reduced, DetachedSums]:
    """Compute `reduce` and, without gradients, a second mean and another head's logsumexp.

    The kernels compute all sums in one pass.

    Args:
        pi: The policy's logits.
        linear: Terms (c_i, z_i) of the differentiable mean.
        detached: Terms of the second mean, which is 0 without terms.
        normalised: The head whose logsumexp is computed; if None, the logsumexp is 0.
    """
    heads = _heads(pi, [*linear, *detached], None) + ([] if normalised is None else [normalised])
    _check(heads)
    if pi.shard is not None:
        return _reduce_with_detached_sharded(pi, linear, detached, normalised)
    if backend_for(*heads) == "kernels":
        from offrec.catalogue.triton import reduction  # needs triton

        all_sums = reduction.reduce(pi, linear, None, Slots.of(heads), None, 1.0, True, detached, normalised)
        return Reduced(*all_sums[:3]), DetachedSums(all_sums.detached_mean, all_sums.normaliser)
    sums = reduce(pi, linear)
    with torch.no_grad():
        mean = reduce(pi, detached).mean if detached else torch.zeros_like(sums.lse)
        lse = logsumexp(normalised) if normalised is not None else torch.zeros_like(sums.lse)
    return sums, DetachedSums(mean, lse)


def gumbel_softmax(pi: Head, linear: Linear, *, temperature: float, noise: Noise, hard: bool = False) -> Tensor:
    """Compute Σ_a y_a Σ_i c_i z_i(a) with the relaxed sample y = softmax((z + g) / temperature).

    Args:
        pi: The policy's logits z.
        linear: Terms (c_i, z_i), at least one.
        temperature: Temperature of the relaxation.
        noise: The seed of the Gumbel noise g.
        hard: Use the straight-through estimator: return the value at the item with the largest z + g, but
            backpropagate through y to π's logits.

    Returns:
        [B] values.

    Raises:
        ValueError: If `linear` is empty.
    """
    if not linear:
        raise ValueError("gumbel_softmax needs at least one linear term")
    _check(_heads(pi, linear, None))
    name = "tiled" if pi.shard is not None else backend_for(*_heads(pi, linear, None))
    if name == "reference":
        return reference.gumbel_softmax(pi, linear, temperature=temperature, noise=noise, hard=hard)
    if not hard:
        return _noisy_mean(pi, linear, noise, temperature, True)
    item = maximum(pi, noise)[1][:, None]
    value = _linear_combination([(coefficient, head.at(item)) for coefficient, head in linear])[:, 0]
    parts = (pi.state, pi.table, pi.bias, pi.values)
    if not (torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts)):
        return value
    soft = _noisy_mean(pi, linear, noise, temperature, False)
    return value + (soft - soft.detach())


@torch.no_grad()
def maximum(head: Head, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
    """Return the largest z per row and its item; the lower index among equal values.

    Args:
        head: The logits of B rows.
        noise: If given, z + g is maximised, which samples the item from softmax(z).

    Returns:
        Values and items, [B] each.
    """
    if head.shard is not None:

        def search(part: Head, local: LocalHeads) -> tuple[Tensor, Tensor]:
            value, item = maximum(part, local.noise(noise))
            return value[:, None], item[:, None]

        values, items = best_items(head, 1, search)
        return values[:, 0], items[:, 0]
    name = backend_for(head)
    if name == "reference":
        return reference.maximum(head, noise)
    slots, bases = Slots.of([head]), _Bases()
    values, items = _core_maximum(name, bases(head), None if slots is None else slots.items, noise)
    if slots is None:
        return values, items
    z = slots.at(head) if noise is None else slots.at(head) + slots.noise(noise)
    z = z.masked_fill(slots.empty, EMPTY)  # not in place: z may be the head's own values
    best = z.amax(1)
    item = slots.items.masked_fill(z < best[:, None], head.n_items).amin(1)
    better = (best > values) | ((best == values) & (item < items))
    return torch.where(better, best, values), torch.where(better, item, items)


def _core_maximum(name: str, head: Head, excluded: Tensor | None, noise: Noise | None) -> tuple[Tensor, Tensor]:
    if name == "kernels":
        from offrec.catalogue.triton import search  # needs triton

        return search.maximum(head, excluded, noise)
    return tiled.maximum(head, excluded, noise)


def _reduce(
    name: str, pi: Head, linear: Linear, below: UpperBound | None, noise: Noise | None, temperature: float, direct: bool
) -> Reduced:
    slots, bases = Slots.of(_heads(pi, linear, below)), _Bases()
    if name == "kernels":
        from offrec.catalogue.triton import reduction  # needs triton

        return Reduced(*reduction.reduce(pi, linear, below, slots, noise, temperature, direct)[:3])
    linear_bases = [(coefficient, bases(head)) for coefficient, head in linear]
    below_base = below and (bases(below[0]), below[1])
    excluded = None if slots is None else slots.items
    if not linear and below is None and noise is None and stored_weights.stores_weights(base := bases(pi)):
        lse = stored_weights.logsumexp(base, excluded)
        mean = mass = torch.zeros_like(lse)
    else:
        lse, mean, mass = tiled.reduce(bases(pi), linear_bases, below_base, excluded, noise, temperature, direct)
    if slots is None:
        return Reduced(lse, mean, mass)
    score = z = slots.at(pi)
    if noise is not None:
        score = (z + slots.noise(noise)) / temperature
    score = score.masked_fill(slots.empty, EMPTY)
    lse = lse.masked_fill(lse <= ALL_MASKED, EMPTY)
    whole = torch.logaddexp(lse, torch.logsumexp(score, 1))
    if not linear and below is None:
        return Reduced(whole, mean, mass)
    share, probabilities = (lse - whole).exp(), (score - whole[:, None]).exp()
    if linear:
        f = _linear_combination([(coefficient, z if head is pi else slots.at(head)) for coefficient, head in linear])
        f = f.masked_fill(slots.empty, 0.0)
        mean = share * mean + (probabilities * (f if direct else f.detach())).sum(1)
    if below is not None:
        is_below = (slots.at(below[0].detach()) <= below[1][:, None]) & ~slots.empty
        mass = share * mass + torch.where(is_below, probabilities, 0.0).sum(1)
    return Reduced(whole, mean, mass)


def _noisy_mean(pi: Head, linear: Linear, noise: Noise, temperature: float, direct: bool) -> Tensor:
    """Compute Σ_a y_a Σ_i c_i z_i(a) for y = softmax((z + g) / temperature): [B]."""
    if pi.shard is None:
        return _reduce(backend_for(*_heads(pi, linear, None)), pi, linear, None, noise, temperature, direct).mean
    local = LocalHeads(_heads(pi, linear, None))
    head, terms = local(pi), local.linear(linear)

    def compute() -> tuple[Tensor, ...]:
        if backend_for(*_heads(head, terms, None)) == "reference":
            raise ValueError("catalogue=reference does not support samples over several ranks; use tiled")
        name = backend_for(*_heads(head, terms, None))
        return _reduce(name, head, terms, None, local.noise(noise), temperature, direct)[:2]

    return local.combine(*local.sums(compute, pi, 1))[1]


def _reduce_sharded(pi: Head, linear: Linear, below: UpperBound | None) -> Reduced:
    """Compute `reduce` over the items of all ranks."""
    local = LocalHeads(_heads(pi, linear, below))
    bound = below and (local(below[0]), below[1])
    return Reduced(*local.combine(*local.sums(lambda: reduce(local(pi), local.linear(linear), bound), pi, 2)))


def _reduce_with_detached_sharded(
    pi: Head, linear: Linear, detached: Linear, normalised: Head | None
) -> tuple[Reduced, DetachedSums]:
    """Compute `reduce_with_detached` over the items of all ranks."""
    others = [] if normalised is None else [normalised]
    local = LocalHeads([*_heads(pi, [*linear, *detached], None), *others])

    def compute() -> tuple[Tensor, ...]:
        prior = None if normalised is None else local(normalised)
        sums, more = reduce_with_detached(local(pi), local.linear(linear), local.linear(detached), prior)
        return sums.lse, sums.mean, more.mean, more.lse

    lse, mean, detached_mean, prior_lse = local.sums(compute, pi, 3)
    lse, mean, detached_mean = local.combine(lse, mean, detached_mean.detach())
    if normalised is not None:
        empty = prior_lse if local.shard.size else prior_lse + EMPTY
        prior_lse = local.combine(empty.detach())[0]
    return Reduced(lse, mean, torch.zeros_like(lse)), DetachedSums(detached_mean.detach(), prior_lse.detach())


class _Bases:
    """Removes corrections from heads and from their supports.

    Returns the same base for the same head within one call, because the tiled core recognises π among the linear heads
    by the identity of its tensors.
    """

    def __init__(self) -> None:
        self._bases: dict[int, tuple[Head, Head]] = {}  # includes the head itself, so that its id stays valid

    def __call__(self, head: Head) -> Head:
        if id(head) not in self._bases:
            base, support = head.base, head.support
            constraint = support and Support(self(support.head.detach()), support.bound)
            self._bases[id(head)] = head, base if constraint is None else replace(base, support=constraint)
        return self._bases[id(head)][1]


def _linear_combination(terms: list[tuple[float | Tensor, Tensor]]) -> Tensor:
    """Σ c z, without gradients to the coefficients."""
    constants = [(c.detach() if isinstance(c, Tensor) else c, z) for c, z in terms]
    total = constants[0][0] * constants[0][1]
    for coefficient, z in constants[1:]:
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
                f"{pi.n_items} items, like the first head"
            )
    if below and below[1].shape != (pi.n_rows,):
        raise ValueError(f"the bound has shape {tuple(below[1].shape)}; expected [{pi.n_rows}] for {pi.n_rows} rows")
