"""The corrected items of each row, each once. What hangs on the items alone is computed once for all heads and passes
that share their tensor: an update asks for it a dozen times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from offrec.catalogue.backend import kernels_enabled, matched
from offrec.catalogue.head import MASKED, Head
from offrec.catalogue.noise import Noise, gumbel_noise

FEW = 64  # corrections of a row that are compared with each other rather than sorted


@dataclass(frozen=True)
class UniqueItems:
    """Items [B, K] compared with each other. A slot is an item's first place; its later ones are empty.

    No sort: that is many small kernels on a GPU.
    """

    items: Tensor  # [B, K] n_items in empty slots
    full: Tensor  # [B, K] 1 where a slot is not empty, 0 where it is
    log_counts: Tensor  # [B, K] log of how often the row has each item
    inside: Tensor  # [B, K] the items, and some item of the catalogue in empty slots
    version: int  # of the tensor compared: it may have been written to since
    sorted: dict[Any, Any] = field(default_factory=dict)  # what kernels make of the items, by the shape of their tiles


_known: Any = WeakTensorKeyDictionary()  # items → n_items → UniqueItems; which holds no reference to them


def unique_items(items: Tensor, n_items: int) -> UniqueItems:
    """Of items [B, K] of which those from `n_items` on are padding."""
    if items.is_inference() or torch.is_inference_mode_enabled():
        return _compute([items], n_items)[0]  # not to be kept: autograd would refuse it later
    return _kept(items, n_items) or _keep([items], n_items)[0]


def precompute_unique_items(one: Tensor, other: Tensor, n_items: int) -> None:
    """So that `unique_items` knows both: by kernels they are one."""
    if torch.is_inference_mode_enabled() or one.is_inference() or other.is_inference():
        return
    missing = [items for items in (one, other) if _kept(items, n_items) is None]
    together = len(missing) == 2 and one.shape == other.shape
    for every in [missing] if together else [[items] for items in missing]:
        _keep(every, n_items)


def _kept(items: Tensor, n_items: int) -> UniqueItems | None:
    found: UniqueItems | None = _known.setdefault(items, {}).get(n_items)
    return None if found is None or found.version != items._version else found


def _keep(every: Sequence[Tensor], n_items: int) -> list[UniqueItems]:
    found = _compute(every, n_items)
    for items, known in zip(every, found, strict=True):
        _known.setdefault(items, {})[n_items] = known
    return found


def _compute(every: Sequence[Tensor], n_items: int) -> list[UniqueItems]:
    versions = [0 if items.is_inference() else items._version for items in every]
    if kernels_enabled(every[0]) and every[0].numel() and every[0].shape[1] <= FEW:
        from offrec.catalogue.triton.few_items import unique_items as by_kernel  # needs triton

        return [
            UniqueItems(first, full, log_counts, inside, version)
            for (first, inside, full, log_counts), version in zip(by_kernel(every, n_items), versions, strict=True)
        ]
    return [_unique_here(items, n_items, version) for items, version in zip(every, versions, strict=True)]


def _unique_here(items: Tensor, n_items: int, version: int) -> UniqueItems:
    same = items[:, :, None] == items[:, None, :]
    first = items.masked_fill(same.tril(-1).any(2), n_items)
    inside, full = first.clamp(max=n_items - 1), (first < n_items).float()
    return UniqueItems(first, full, same.sum(2).log(), inside, version)


def score_unique_items(
    known: UniqueItems, by_place: Tensor, by_count: Tensor, product: Tensor | None, scale: float
) -> Tensor:
    """[B, K] scale · (by_place[:K] + by_count · log n + product) in full slots, 0 in empty ones; by_count: a number."""
    shape = known.items.shape
    if shape[1] > len(by_place) or (product is not None and product.shape != shape):  # a kernel would read beyond them
        its = None if product is None else tuple(product.shape)
        raise ValueError(f"{len(by_place)} places and products {its} do not fit items {tuple(shape)}")
    if kernels_enabled(known.items) and known.items.numel() and by_place.dtype == torch.float32:
        from offrec.catalogue.triton import few_items  # needs triton

        return few_items.score_unique_items(known.log_counts, known.full, by_place, by_count, product, scale)
    score = by_place[: shape[1]] + by_count * known.log_counts
    score = score if product is None else score + product
    return score * (scale * known.full)


class Slots:
    """The corrected items of a row, each once: [B, K], and the corrections' places among them."""

    def __init__(self, corrections: list[Tensor], n_items: int) -> None:
        self.corrections, self.n_items = corrections, n_items
        self._few = len(corrections) == 1 and corrections[0].shape[1] <= FEW
        self.sorted: dict[Any, Any] = {}
        if self._few:
            known = unique_items(corrections[0], n_items)
            self.items, self._inside = known.items, known.inside
            self._places: tuple[Tensor, ...] = (corrections[0],)
            self.sorted = known.sorted
        else:
            self._sort(corrections, n_items)
            self._inside = self.items.clamp(max=n_items - 1)

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
            part: Head | None = head
            while part is not None:
                if part.items is not None and part.items.shape[1]:
                    corrections[id(part.items)] = part.items
                part = None if part.support is None else part.support.head
        return Slots(list(corrections.values()), heads[0].n_items) if corrections else None

    @cached_property
    def empty(self) -> Tensor:
        """[B, K] which slots have no item; kernels see it themselves."""
        return self.items >= self.n_items

    def at(self, head: Head) -> Tensor:
        """z of the slots: [B, K]; anything where a slot is empty. No row of the table is read that is not needed."""
        mine = self._mine(head)
        if mine is None or head.values is None:
            z = head.base_at(self._inside)
        else:
            values = head.values.to(head.dtype)
            # A view, so that autograd sums the gradients of one pass in the same order, merged or not.
            z = values.view_as(values) if self._few and head.corrections_merged else self._added_up(mine, values)
            if not head.replaces_base:
                z = head.base_at(self._inside) + z
            elif len(self.corrections) > 1:
                taken = torch.zeros_like(self.empty).scatter_(1, mine, True)
                z = torch.where(taken, z, head.base_at(self._inside))
        if head.support is not None:
            z = z.masked_fill(self.at(head.support.head.detach()) < head.support.bound[:, None], MASKED)
        return z

    def _added_up(self, mine: Tensor, values: Tensor) -> Tensor:
        if self._few:
            return matched(values, mine, mine)
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
