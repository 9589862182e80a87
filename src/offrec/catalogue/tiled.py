"""Functions over a head, computed in tiles of items: the largest tensor is [B, tile], never [B, A].

On two CPU cores, multiplying tiles that fit into the cache is also about three times faster than the whole matrix.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from offrec.catalogue.head import ALL_MASKED, MASKED, Head, Linear, Support, UpperBound
from offrec.catalogue.noise import Noise, gumbel_noise
from offrec.catalogue.tile_values import Base, Corrected, Gradients, ItemsByTile

LOG2E = math.log2(math.e)
CACHE_FLOATS = 1 << 20  # size of a tile on a CPU: 4 MB of float32
DEVICE_FLOATS = 1 << 27  # size of a tile on a GPU: 512 MB


def tile_width(head: Head) -> int:
    """Return the number of items in a tile."""
    floats = CACHE_FLOATS if head.state.device.type == "cpu" else DEVICE_FLOATS
    return max(256, floats // max(1, head.n_rows))


def tiles(head: Head) -> Iterator[tuple[int, Tensor]]:
    """Yield (first item, logits [B, tile]) over the catalogue, including corrections."""
    if head.shard is not None:
        raise ValueError("this function does not support catalogues that several ranks store")
    width = tile_width(head)
    corrected = Corrected(head, width)
    for number, first in enumerate(range(0, head.n_items, width)):
        yield first, corrected.tile(number, first, min(first + width, head.n_items))


def reduce(
    pi: Head,
    linear: Linear,
    below: UpperBound | None,
    excluded: Tensor | None,
    noise: Noise | None,
    temperature: float,
    direct: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the sums of `offrec.catalogue.reduce` for heads without corrections.

    Weights are y = softmax((z + g) / temperature), and f = Σ c z.

    Args:
        pi: The policy's logits z.
        linear: The terms of f.
        below: A head and its upper bound [B].
        excluded: [B, K] items per row to exclude.
        noise: The seed of g, or None for g = 0.
        temperature: Temperature of the weights.
        direct: Whether gradients also flow through f. If not, f is a constant in the backward pass.

    Returns:
        The logsumexp, Σ y f, and y's mass where the head `below` is at most its bound, [B] each. A row without any item
        has a logsumexp below ALL_MASKED and zeros.
    """
    own: float | Tensor = sum((c for c, head in linear if _same(head, pi)), 0.0)
    others = [(c, head) for c, head in linear if not _same(head, pi)]
    plan = _Plan(
        own=own if any(_same(head, pi) for _, head in linear) else None,
        coefficients=[c.detach() if isinstance(c, Tensor) else c for c, _ in others],
        support=[head.support for head in (pi, *(head for _, head in others))],
        below=below and (below[0].detach(), below[1].detach()),
        excluded=excluded,
        noise=noise,
        temperature=temperature,
        direct=direct,
    )
    heads = [pi, *(head if direct else head.detach() for _, head in others)]
    parts = [part for head in heads for part in (head.state, head.table, head.bias)]
    lse, mean, mass = _Reduce.apply(plan, *parts)  # type: ignore[no-untyped-call]
    return lse, mean, mass


@torch.no_grad()
def maximum(head: Head, excluded: Tensor | None, noise: Noise | None) -> tuple[Tensor, Tensor]:
    """Return the largest z (+ g) per row and its item; MASKED and item A if every item of the row is excluded."""
    width = tile_width(head)
    excluded_items = ItemsByTile.of(excluded, head.n_items, width)
    best = torch.full((head.n_rows,), -torch.inf, dtype=head.dtype, device=head.state.device)
    items = torch.full((head.n_rows,), head.n_items, device=head.state.device)
    base = Base.of(head)
    for number, first in enumerate(range(0, head.n_items, width)):
        z = base.tile(first, min(first + width, head.n_items))
        if noise is not None:
            z += _noise(noise, z, first)
        if excluded_items is not None:
            excluded_items.fill(z, number, first, -torch.inf)
        value, column = z.max(1)
        better = ~(value <= best) & ~best.isnan()  # NaN is the largest value, as in `torch.max`
        best, items = torch.where(better, value, best), torch.where(better, column + first, items)
    return best.masked_fill_(items == head.n_items, MASKED), items


@dataclass(frozen=True)
class _Plan:
    """The arguments of `_Reduce` that receive no gradient."""

    own: float | Tensor | None  # the coefficient of π's z in f; None if π is not in f
    coefficients: list[float | Tensor]  # of the other heads in f
    support: list[Support | None]  # of π and the other heads
    below: UpperBound | None
    excluded: Tensor | None
    noise: Noise | None
    temperature: float
    direct: bool

    @property
    def linear(self) -> bool:
        return self.own is not None or bool(self.coefficients)


class _Pass:
    """One pass over the tiles: π's scores, f, and the items at or below the bound. Buffers are reused between tiles."""

    def __init__(self, plan: _Plan, parts: tuple[Tensor | None, ...]) -> None:
        heads = []
        for i, support in enumerate(plan.support):
            state, table, bias = parts[3 * i : 3 * i + 3]
            assert state is not None
            assert table is not None
            heads.append(Head(state, table, bias, support=support))
        self.plan = plan
        self.head = heads[0]
        self.bases = [Base.of(head) for head in heads]
        self.below = None if plan.below is None else Base.of(plan.below[0])
        self.width = max(1, min(tile_width(self.head) // 2, self.head.n_items))  # a pass uses two or three buffers
        self.excluded = ItemsByTile.of(plan.excluded, self.head.n_items, self.width)
        self.buffers: dict[str, Tensor] = {}
        self._concatenate(list(zip(self.bases[1:], plan.coefficients, strict=True)))

    def _concatenate(self, terms: list[tuple[Base, float | Tensor]]) -> None:
        """Concatenate the heads of a sum into one wider head."""
        plain = [(base, c) for base, c in terms if base.support is None]
        self.plain, self.supported = [base for base, _ in plain], [(base, c) for base, c in terms if base.support]
        self.concatenated = torch.cat([base.state * c for base, c in plain], 1) if plain else None
        self.bias: Tensor | None = None
        for bias in (base.bias.to(base.state.dtype) * c for base, c in plain if base.bias is not None):
            self.bias = bias if self.bias is None else self.bias + bias

    def __iter__(self) -> Iterator[tuple[int, int, Tensor]]:
        """Yield (first, last, π's z [B, tile])."""
        for number, first in enumerate(range(0, self.head.n_items, self.width)):
            self.number = number
            last = min(first + self.width, self.head.n_items)
            yield first, last, self.bases[0].tile(first, last, self.buffer("z", last - first))

    def buffer(self, name: str, width: int) -> Tensor:
        """Return a buffer [B, width] that is reused for every tile."""
        if name not in self.buffers:
            state = self.bases[0].state
            self.buffers[name] = state.new_empty(self.head.n_rows * self.width)
        return self.buffers[name][: self.head.n_rows * width].view(self.head.n_rows, width)

    def scores(self, z: Tensor, first: int) -> Tensor:
        """Compute (z + g) / temperature, MASKED for excluded items; without noise this is z itself, overwritten."""
        if self.plan.noise is not None:
            z = torch.add(z, _noise(self.plan.noise, z, first), out=self.buffer("scores", z.shape[1]))
            z.div_(self.plan.temperature)
        if self.excluded is not None:
            self.excluded.fill(z, self.number, first, MASKED)
        return z

    def weights(self, scores: Tensor, offset: Tensor, copy: bool) -> Tensor:
        """Compute exp(scores − offset [B]), in place or into a copy."""
        out = self.buffer("weights", scores.shape[1]) if copy else scores
        # On CPUs, MKL's `exp` is three times slower than `exp2`, and seventy times slower for results near 0.
        return torch.sub(scores, offset[:, None], out=out).mul_(LOG2E).exp2_()

    def f(self, z: Tensor, first: int, last: int) -> Tensor:
        """Compute Σ c z of the tile; overwrites z."""
        own = 0.0 if self.plan.own is None else self.plan.own
        if isinstance(own, Tensor):
            z, own = z.mul_(own), 1.0
        if self.concatenated is None:
            z.mul_(own)
        else:
            z.addmm_(self.concatenated, torch.cat([base.rows(first, last) for base in self.plain], 1).T, beta=own)
        if self.bias is not None:
            z.add_(self.bias[first:last])
        for base, c in self.supported:
            z.add_(base.tile(first, last, self.buffer("supported", last - first)).mul_(c))
        return z

    def is_below(self, first: int, last: int) -> Tensor:
        """Return 1.0 for items at or below the bound, 0.0 for others: [B, tile]."""
        assert self.below is not None
        assert self.plan.below is not None
        return self.below.tile(first, last, self.buffer("below", last - first)).le_(self.plan.below[1][:, None])


class _Reduce(torch.autograd.Function):
    """Computes the sums. The forward pass stores three numbers per row; the backward pass recomputes each tile."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *parts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        tiled = _Pass(plan, parts)
        state = tiled.bases[0].state
        top = state.new_full(state.shape[:1], -torch.inf)
        total, mean, mass = (torch.zeros_like(top) for _ in range(3))
        for first, last, z in tiled:
            scores = tiled.scores(z, first)
            higher = torch.maximum(top, scores.amax(1))
            shrink = (top - higher).exp_()
            copy = plan.linear and scores is z  # f still needs z
            weight = tiled.weights(scores, higher, copy)
            top, total = higher, total.mul_(shrink).add_(weight.sum(1))
            if plan.linear:
                mean.mul_(shrink).add_(tiled.f(z, first, last).mul_(weight).sum(1))
            if plan.below is not None:
                mass.mul_(shrink).add_(tiled.is_below(first, last).mul_(weight).sum(1))
        lse = total.log().add_(top)
        empty = lse <= ALL_MASKED
        mean, mass = mean.div_(total).masked_fill_(empty, 0.0), mass.div_(total).masked_fill_(empty, 0.0)
        ctx.plan = plan
        ctx.save_for_backward(lse, mean, mass, *parts)
        ctx.set_materialize_grads(False)
        constant = [] if plan.linear else [mean]
        ctx.mark_non_differentiable(*constant, *([] if plan.below else [mass]))
        return lse, mean, mass

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_lse: Any, to_mean: Any, to_mass: Any) -> tuple[Tensor | None, ...]:
        lse, mean, mass, *parts = ctx.saved_tensors
        plan, needed = ctx.plan, ctx.needs_input_grad[1:]
        tiled = _Pass(plan, tuple(parts))
        to_lse, to_mean, to_mass = (
            None if g is None else g.masked_fill(lse <= ALL_MASKED, 0.0) for g in (to_lse, to_mean, to_mass)
        )
        gradients = _gradients(tiled, parts, needed, to_mean)
        rest = torch.zeros_like(lse) if to_lse is None else to_lse
        if to_mean is not None:
            own = plan.own if plan.own is not None and plan.direct else 0.0
            rest = rest + to_mean * (plan.temperature * own - mean)
        if to_mass is not None:
            rest = rest - to_mass * mass
        for first, last, z in tiled:
            scores = tiled.scores(z, first)
            copy = to_mean is not None and scores is z
            weight = tiled.weights(scores, lse, copy)
            for base, other in zip(tiled.bases[1:], gradients[1:], strict=True):
                if other is not None:
                    y = weight if base.support is None else base.zero_outside_support(weight, first, last)
                    other.add(y, first, last)
            if gradients[0] is not None:  # the gradient of π's z: y · (rest + to_mean · f + to_mass · is_below)
                factor = rest[:, None]
                if to_mean is not None:
                    factor = tiled.f(z, first, last).mul_(to_mean[:, None]).add_(factor)
                if to_mass is not None:
                    factor = tiled.is_below(first, last).mul_(to_mass[:, None]).add_(factor)
                gradients[0].add(weight.mul_(factor), first, last)
        return None, *(part for one in gradients for part in (one.parts() if one else (None, None, None)))


def _gradients(tiled: _Pass, parts: list[Any], needed: list[bool], to_mean: Tensor | None) -> list[Gradients | None]:
    """Create the gradient accumulators of the heads; None for a head that needs no gradient."""
    plan, state = tiled.plan, tiled.bases[0].state
    scales: list[Any] = [state.new_full(state.shape[:1], 1 / plan.temperature)]
    scales += [to_mean * c if to_mean is not None else None for c in plan.coefficients]
    gradients: list[Gradients | None] = []
    for i, (base, scale) in enumerate(zip(tiled.bases, scales, strict=True)):
        own = slice(3 * i, 3 * i + 3)
        wanted = scale is not None and any(needed[own])
        gradients.append(Gradients(base, parts[own], needed[own], scale) if wanted else None)
    return gradients


def _same(head: Head, pi: Head) -> bool:
    return all(getattr(head, name) is getattr(pi, name) for name in ("state", "table", "bias", "support"))


def _noise(noise: Noise, z: Tensor, first: int) -> Tensor:
    rows, items = (torch.arange(n, device=z.device) for n in z.shape)
    return gumbel_noise(noise, rows[:, None], items + first)
