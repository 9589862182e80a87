"""Item lists with their probabilities: the k best items of each row, or k items sampled without replacement.

A list l_1 … l_k sampled without replacement from q ∝ exp(z / T) (Plackett–Luce) has, position by position,

    log q(l_j | l_1 … l_{j−1}) = z(l_j) / T − log(Σ_{i ≥ j} exp(z(l_i) / T) + R)

where R is the total weight of the items that are not in the list. The denominator is a sum over the remaining items,
not the total minus the items already sampled: if the list has nearly all the mass, that difference is rounding error.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from offrec.catalogue.allowed_items import restrict
from offrec.catalogue.backend import backend_for
from offrec.catalogue.head import MASKED, Head
from offrec.catalogue.ranking import BestItems, sample_k, top_k
from offrec.catalogue.reduction import logsumexp
from offrec.catalogue.sampling import sample_without_replacement
from offrec.catalogue.screened_pass import ScreenedPass
from offrec.catalogue.screening import Screening
from offrec.catalogue.tiled import tiles


@dataclass(frozen=True)
class ItemLists:
    """One list of k items per row."""

    items: Tensor  # [B, k]
    values: Tensor  # [B, k] z; MASKED where the row has fewer than k items
    lse: Tensor  # [B] log Σ_a exp z(a); NaN if it was not requested
    log_probs: Tensor | None = (
        None  # [B, k] log-probability of each position given the previous ones; None: not sampled
    )


@torch.no_grad()
def top_lists(
    head: Head, k: int, allowed: Tensor | None = None, screening: Screening | None = None, lse: bool = True
) -> ItemLists:
    """Return the k best items of each row and the logsumexp, computing each tile once.

    Args:
        head: The logits of B rows.
        k: Items per list. Rows with fewer unmasked items are padded with value MASKED.
        allowed: [A] bool, the items that a list may contain, or None for all. The logsumexp includes the others.
        screening: The screening of the head's table, for a faster pass on a CPU; None to read all values in float32.
        lse: Whether the logsumexp is needed. Without it, a screening can use int8 products.
    """
    if backend_for(head) == "kernels":
        values, items = top_k(head if allowed is None else restrict(head, allowed), k)
        return ItemLists(items, values, logsumexp(head).double() if lse else _not_computed(head))
    if screening is not None:
        screened = ScreenedPass(head, k, screening, head.items, allowed, lse)
        if not screened.succeeded and screened.is_worth_repeating:
            screened = ScreenedPass(head, k, screening, head.items, allowed, lse, precise=True)
        if screened.succeeded:
            return finish_lists(screened, head)
    best, total = BestItems(head, k), _LogSum(head)
    is_masked = None if allowed is None else ~allowed
    for first, z in tiles(head):
        if lse:
            total.add(z)
        if is_masked is not None:
            z.masked_fill_(is_masked[first : first + z.shape[1]], MASKED)
        best.add(first, z)
    values, items = best.sorted()
    return ItemLists(items, values, total.log() if lse else _not_computed(head))


def finish_lists(screened: ScreenedPass, head: Head) -> ItemLists:
    """Return the lists of a screened pass that succeeded, for a head with its corrections."""
    items, values, sums = screened.finish(head)
    return ItemLists(items, values, _not_computed(head) if sums is None else sums)


def _not_computed(head: Head) -> Tensor:
    return torch.full((head.n_rows,), torch.nan, dtype=torch.double, device=head.state.device)


@torch.no_grad()
def sample_lists(
    head: Head, k: int, temperature: Tensor, generator: torch.Generator, allowed: Tensor | None = None
) -> ItemLists:
    """Sample k items per row without replacement from softmax(z / temperature).

    Args:
        head: The logits of B rows.
        k: Items per list. Rows with fewer unmasked items are padded with value MASKED.
        temperature: [B], one per row.
        generator: On the head's device.
        allowed: [A] bool, the items that a list may contain, or None for all. The logsumexp includes the others.
    """
    if head.support is not None:
        masked = head if allowed is None else restrict(head, allowed)
        lists = _sample_with_noise(masked, k, temperature, generator)
        return lists if allowed is None else replace(lists, lse=logsumexp(head).double())
    items, remaining = sample_without_replacement(head, k, temperature, generator, allowed)
    missing = items == head.n_items
    items = items.masked_fill(missing, 0)
    values = head.at(items).masked_fill(missing, MASKED)
    log_probs = position_log_probs(values.double() / temperature[:, None], remaining.log_weight())
    return ItemLists(items, values, remaining.lse, log_probs)


def _sample_with_noise(head: Head, k: int, temperature: Tensor, generator: torch.Generator) -> ItemLists:
    """Implement `sample_lists` by `sample_k`, for heads with a support."""
    items = sample_k(head, k, generator, temperature)
    total, tempered = _LogSum(head), _LogSum(head)
    for _, z in tiles(head.mask(items)):
        total.add(z)
        tempered.add(z / temperature[:, None])
    values = head.at(items)
    lse = torch.logaddexp(total.log(), torch.logsumexp(values.double(), 1))
    return ItemLists(items, values, lse, position_log_probs(values.double() / temperature[:, None], tempered.log()))


def position_log_probs(values: Tensor, others: Tensor | None = None) -> Tensor:
    """Compute the log-probability of each position of a sampled list, given the positions before it.

    Args:
        values: [B, k] log-weights of the sampled items, in the order they were sampled.
        others: [B] log of the total weight of all other items, or None without other items.

    Returns:
        [B, k] log-probabilities.
    """
    remaining = values.flip(1).logcumsumexp(1).flip(1)
    return values - (remaining if others is None else torch.logaddexp(remaining, others[:, None]))


class _LogSum:
    """Accumulates log Σ exp z per row over tiles."""

    def __init__(self, head: Head) -> None:
        self.total = torch.full((head.n_rows,), -torch.inf, dtype=torch.double, device=head.state.device)

    def add(self, z: Tensor) -> None:
        self.total = torch.logaddexp(self.total, z.logsumexp(1).double())

    def log(self) -> Tensor:
        return self.total
