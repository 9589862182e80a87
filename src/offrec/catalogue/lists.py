"""Lists to show and how likely they were: the best k of each row, or k drawn one after the other.

A list drawn without replacement from q ∝ exp(z / T) (Plackett–Luce) has, place by place,

    log q(l_j | l_1 … l_{j−1}) = z(l_j) / T − log(Σ_{i ≥ j} exp(z(l_i) / T) + R)       R: what the items not drawn weigh

Sums of what is left, not the whole less what is gone: where the list holds nearly all of the mass, the latter would be
nothing but rounding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from offrec.catalogue.backend import backend_for
from offrec.catalogue.head import MASKED, Head
from offrec.catalogue.ranking import Best, sample_k, top_k
from offrec.catalogue.reduction import logsumexp
from offrec.catalogue.sampling import draw_lists
from offrec.catalogue.tiled import tiles


@dataclass(frozen=True)
class ItemLists:
    items: Tensor  # [B, k]
    values: Tensor  # [B, k] z
    lse: Tensor  # [B] log Σ_a exp z(a) over what may be shown
    log_probs: Tensor | None = None  # [B, k] of each place given those before; None where nothing was drawn


@torch.no_grad()
def top_lists(head: Head, k: int) -> ItemLists:
    """`top_k` and `logsumexp`, each tile computed once."""
    if backend_for(head) == "kernels":
        values, items = top_k(head, k)
        return ItemLists(items, values, logsumexp(head).double())
    best, total = Best(head, k), _Sum(head)
    for first, z in tiles(head):
        total.add(z)
        best.add(first, z)
    values, items = best.sorted()
    return ItemLists(items, values, total.log())


@torch.no_grad()
def sample_lists(head: Head, k: int, temperature: Tensor, generator: torch.Generator) -> ItemLists:
    """k items of each row drawn at a temperature [B] of its own. Where fewer can be drawn, the rest are MASKED."""
    if head.support is not None:
        return _raced_lists(head, k, temperature, generator)
    items, left = draw_lists(head, k, temperature, generator)
    missing = items == head.n_items
    items = items.masked_fill(missing, 0)
    values = head.at(items).masked_fill(missing, MASKED)
    return ItemLists(items, values, left.own, position_log_probs(values.double() / temperature[:, None], left.log()))


def _raced_lists(head: Head, k: int, temperature: Tensor, generator: torch.Generator) -> ItemLists:
    """The same by `sample_k`, for heads that others bound."""
    items = sample_k(head, k, generator, temperature)
    own, heated = _Sum(head), _Sum(head)
    for _, z in tiles(head.mask(items)):
        own.add(z)
        heated.add(z / temperature[:, None])
    values = head.at(items)
    whole = torch.logaddexp(own.log(), torch.logsumexp(values.double(), 1))
    return ItemLists(items, values, whole, position_log_probs(values.double() / temperature[:, None], heated.log()))


def position_log_probs(values: Tensor, rest: Tensor | None = None) -> Tensor:
    """[B, k] log-probability of each place given those before. `values` [B, k]: log-weights of the items drawn. `rest`
    [B]: that of all others together; None: there are none.
    """
    left = values.flip(1).logcumsumexp(1).flip(1)
    return values - (left if rest is None else torch.logaddexp(left, rest[:, None]))


class _Sum:
    """log Σ exp over tiles, row by row."""

    def __init__(self, head: Head) -> None:
        self.total = torch.full((head.n_rows,), -torch.inf, dtype=torch.double, device=head.state.device)

    def add(self, z: Tensor) -> None:
        self.total = torch.logaddexp(self.total, z.logsumexp(1).double())

    def log(self) -> Tensor:
        return self.total
