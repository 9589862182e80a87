"""Building blocks of the tiled functions: values, corrections and gradients of a head in one tile."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offrec.catalogue.head import MASKED, Head
from offrec.catalogue.products import add_weighted_rows, rows_by_columns, weighted_states


class ItemsByTile:
    """Items [B, H] of each row, grouped by tile. Creating it synchronises with the device."""

    def __init__(self, items: Tensor, n_items: int, width: int) -> None:
        self.row, self.column = (items < n_items).nonzero(as_tuple=True)
        self.item = items[self.row, self.column]
        n_tiles = -(-n_items // width)
        self.edges = [0, len(self.item)]
        if n_tiles > 1:
            self.item, order = self.item.sort(stable=True)
            self.row, self.column = self.row[order], self.column[order]
            firsts = torch.arange(n_tiles + 1, device=items.device) * width
            self.edges = torch.searchsorted(self.item, firsts.to(items.dtype)).tolist()

    @staticmethod
    def of(items: Tensor | None, n_items: int, width: int) -> "ItemsByTile | None":
        """Group items by tile. Return None if there are no items."""
        return None if items is None or items.numel() == 0 else ItemsByTile(items, n_items, width)

    def in_tile(self, number: int) -> slice:
        """Return the range of the tile's entries."""
        return slice(self.edges[number], self.edges[number + 1])

    def flat_index(self, z: Tensor, number: int, first: int) -> Tensor:
        """Return the index of each entry in z [B, tile], flattened; the first item of tile `number` is `first`."""
        entries = self.in_tile(number)
        return self.row[entries] * z.shape[1] + (self.item[entries] - first)

    def fill(self, z: Tensor, number: int, first: int, value: float) -> None:
        """Set the tile's entries of z [B, tile] to a value."""
        if self.edges[number] < self.edges[number + 1]:
            z.view(-1).index_fill_(0, self.flat_index(z, number, first), value)


@dataclass(frozen=True)
class Base:
    """A head's values by tile, without corrections."""

    state: Tensor  # [B, d]
    table: Tensor  # [A, d]
    bias: Tensor | None  # [A]
    support: "tuple[Base, Tensor] | None" = None  # with a bound [B, 1]

    @staticmethod
    def of(head: Head) -> "Base":
        """Take the base of a head, and of its support."""
        support = head.support
        constraint = None if support is None else (Base.of(support.head), support.bound[:, None])
        return Base(head.state.to(head.dtype), head.table, head.bias, constraint)

    def rows(self, first: int, last: int) -> Tensor:
        """Return the table's rows of a tile: [tile, d]."""
        return self.table[first:last].to(self.state.dtype)

    def tile(self, first: int, last: int, out: Tensor | None = None) -> Tensor:
        """Compute the values of items first … last − 1: [B, tile], in `out` or in a new tensor."""
        bias = None if self.bias is None else self.bias[first:last].to(self.state.dtype)
        z = rows_by_columns(self.state, self.rows(first, last), bias, out)
        return z if self.support is None else z.masked_fill_(self._outside_support(first, last), MASKED)

    def zero_outside_support(self, y: Tensor, first: int, last: int) -> Tensor:
        """Return y [B, tile] with 0 for the items that the support masks."""
        return y.masked_fill(self._outside_support(first, last), 0.0)

    def _outside_support(self, first: int, last: int) -> Tensor:
        assert self.support is not None
        other, bound = self.support
        return other.tile(first, last) < bound


class Corrected:
    """A head's values by tile, including corrections."""

    def __init__(self, head: Head, width: int) -> None:
        self.base = Base(head.state.to(head.dtype), head.table, head.bias)
        self.replaces_base = head.replaces_base
        self.support = None if head.support is None else (Corrected(head.support.head, width), head.support.bound)
        self.items = ItemsByTile.of(head.items, head.n_items, width)
        if self.items is not None and head.values is not None:
            self.values = head.values[self.items.row, self.items.column].to(head.dtype)

    def tile(self, number: int, first: int, last: int) -> Tensor:
        """Compute the values of tile `number`, the items first … last − 1: [B, tile]."""
        z = self.base.tile(first, last)
        if self.items is not None and (values := self.values[self.items.in_tile(number)]).numel():
            if self.replaces_base:
                self.items.fill(z, number, first, 0.0)
            z.view(-1).scatter_add_(0, self.items.flat_index(z, number, first), values)
        if self.support is not None:
            other, bound = self.support
            z.masked_fill_(other.tile(number, first, last) < bound[:, None], MASKED)
        return z


class Gradients:
    """A head's gradients, accumulated over tiles from y [B, tile]; the gradient of z is scale [B] · y."""

    def __init__(self, base: Base, parts: Sequence[Tensor | None], needed: Sequence[bool], scale: Tensor) -> None:
        self.base, self.scale = base, scale
        state, table, bias = parts
        self.state = torch.zeros_like(base.state) if needed[0] else None
        self.table = torch.empty_like(table) if needed[1] and table is not None else None
        self.bias = torch.empty_like(bias) if needed[2] and bias is not None else None
        self.scaled_state = base.state * scale[:, None] if needed[1] else None
        self.state_dtype = state.dtype if state is not None else None

    def add(self, y: Tensor, first: int, last: int) -> None:
        """Add the tile of items first … last − 1."""
        if self.state is not None:
            add_weighted_rows(self.state, y, self.base.rows(first, last))
        if self.table is not None and self.scaled_state is not None:
            weighted_states(y, self.scaled_state, self.table[first:last])
        if self.bias is not None:
            self.bias[first:last] = self.scale @ y

    def parts(self) -> tuple[Tensor | None, ...]:
        """Return the gradients of state, table and bias."""
        state = None if self.state is None else self.state.mul_(self.scale[:, None]).to(self.state_dtype)
        return state, self.table, self.bias
