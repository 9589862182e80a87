"""The distinct items in each row whose values are corrected, collected from all heads of a pass."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from offrec.catalogue.corrections import MAX_COMPARED, UniqueItems, sum_matching, unique_items
from offrec.catalogue.head import MASKED, Head
from offrec.catalogue.noise import Noise, gumbel_noise


class Slots:
    """The distinct corrected items [B, K] of each row, and the slot of each correction.

    A slot contains one item; unused slots contain n_items.
    """

    def __init__(self, corrections: list[Tensor], n_items: int, unique: UniqueItems | None = None) -> None:
        """Collect the items of several correction lists [B, H].

        Args:
            corrections: The lists; each tensor occurs once.
            n_items: The size of the catalogue; larger indices are padding.
            unique: The list without duplicates, if `corrections` has a single list and it is already computed.
        """
        self.corrections, self.n_items = corrections, n_items
        self._compared = len(corrections) == 1 and corrections[0].shape[1] <= MAX_COMPARED
        self.pairs_by_tile: dict[Any, Any] = {}
        if self._compared:
            unique = unique or unique_items(corrections[0], n_items)
            self.items, self._clamped = unique.items, unique.clamped
            self._slots: tuple[Tensor, ...] = (corrections[0],)
            self.pairs_by_tile = unique.pairs_by_tile
        else:
            self._sort(corrections, n_items)
            self._clamped = self.items.clamp(max=n_items - 1)

    def _sort(self, corrections: list[Tensor], n_items: int) -> None:
        item, order = torch.cat(corrections, 1).clamp(max=n_items).sort(1)
        new = item[:, 1:] != item[:, :-1]
        slot = torch.cat([torch.zeros_like(item[:, :1]), new.cumsum(1)], 1)
        self.items = torch.full_like(item, n_items).scatter_(1, slot, item)
        slots = torch.empty_like(slot).scatter_(1, order, slot)
        self._slots = torch.split(slots, [part.shape[1] for part in corrections], 1)

    @staticmethod
    def of(heads: list[Head]) -> "Slots | None":
        """Collect the corrected items of heads and of their supports; None if no head corrects any item."""
        corrections: dict[int, Tensor] = {}
        unique: dict[int, UniqueItems] = {}
        for head in heads:
            part: Head | None = head
            while part is not None:
                if part.items is not None and part.items.shape[1]:
                    corrections[id(part.items)] = part.items
                    if part.unique is not None and part.unique.given is part.items:
                        unique.setdefault(id(part.items), part.unique)
                part = None if part.support is None else part.support.head
        if not corrections:
            return None
        known = unique.get(next(iter(corrections))) if len(corrections) == 1 else None
        return Slots(list(corrections.values()), heads[0].n_items, known)

    @cached_property
    def empty(self) -> Tensor:
        """[B, K] whether each slot is empty."""
        return self.items >= self.n_items

    def at(self, head: Head) -> Tensor:
        """Compute a head's z in each slot: [B, K]; the value of an empty slot is undefined.

        Only the required rows of the table are read.
        """
        slots = self._slots_of(head)
        if slots is None or head.values is None:
            z = head.base_at(self._clamped)
        else:
            values = head.values.to(head.dtype)
            # A view makes autograd sum the gradients of a pass in the same order, merged or not.
            merged = self._compared and head.corrections_merged
            z = values.view_as(values) if merged else self._merge(slots, values)
            if not head.replaces_base:
                z = head.base_at(self._clamped) + z
            elif len(self.corrections) > 1:
                corrected = torch.zeros_like(self.empty).scatter_(1, slots, True)
                z = torch.where(corrected, z, head.base_at(self._clamped))
        if head.support is not None:
            z = z.masked_fill(self.at(head.support.head.detach()) < head.support.bound[:, None], MASKED)
        return z

    def _merge(self, slots: Tensor, values: Tensor) -> Tensor:
        """Add up the corrections [B, H] of each slot: [B, K]."""
        if self._compared:
            return sum_matching(values, slots, slots)
        rows = torch.arange(len(slots), device=slots.device)[:, None].expand_as(slots)
        zeros = torch.zeros(self.items.shape, dtype=values.dtype, device=slots.device)
        # Unlike `scatter_add`, this is deterministic on a GPU.
        return zeros.index_put((rows, slots), values, accumulate=True)

    def noise(self, noise: Noise) -> Tensor:
        """Compute the Gumbel noise of each slot's item: [B, K]."""
        rows = torch.arange(len(self.items), device=self.items.device)[:, None]
        return gumbel_noise(noise, rows, self.items)

    def _slots_of(self, head: Head) -> Tensor | None:
        for items, slots in zip(self.corrections, self._slots, strict=True):
            if items is head.items:
                return slots
        return None
