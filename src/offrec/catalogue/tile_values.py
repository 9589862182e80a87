"""What the tiled functions are made of: a head's values in one tile, the places of corrections in it, its gradients."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offrec.catalogue.head import MASKED, Head


class Places:
    """Places [B, H] of items in the rows, by tile, so that each tile touches only its own. Waits for the device."""

    def __init__(self, items: Tensor, n_items: int, width: int) -> None:
        self.row, self.place = (items < n_items).nonzero(as_tuple=True)
        self.item = items[self.row, self.place]
        n_tiles = -(-n_items // width)
        self.edges = [0, len(self.item)]
        if n_tiles > 1:
            self.item, order = self.item.sort(stable=True)
            self.row, self.place = self.row[order], self.place[order]
            marks = torch.arange(n_tiles + 1, device=items.device) * width
            self.edges = torch.searchsorted(self.item, marks.to(items.dtype)).tolist()

    @staticmethod
    def of(items: Tensor | None, n_items: int, width: int) -> "Places | None":
        return None if items is None or items.numel() == 0 else Places(items, n_items, width)

    def mine(self, number: int) -> slice:
        return slice(self.edges[number], self.edges[number + 1])

    def flat(self, z: Tensor, number: int, first: int) -> Tensor:
        """The places of the tile `number`, whose first item is `first`, in z [B, tile] laid flat."""
        mine = self.mine(number)
        return self.row[mine] * z.shape[1] + (self.item[mine] - first)

    def fill(self, z: Tensor, number: int, first: int, value: float) -> None:
        if self.edges[number] < self.edges[number + 1]:
            z.view(-1).index_fill_(0, self.flat(z, number, first), value)


@dataclass(frozen=True)
class Base:
    """A head's values by tile, without corrections."""

    state: Tensor
    table: Tensor
    bias: Tensor | None
    support: "tuple[Base, Tensor] | None" = None

    @staticmethod
    def of(head: Head) -> "Base":
        bound = head.support
        support = None if bound is None else (Base.of(bound.head), bound.bound[:, None])
        return Base(head.state.to(head.dtype), head.table, head.bias, support)

    def rows(self, first: int, last: int) -> Tensor:
        """The table's rows of a tile."""
        return self.table[first:last].to(self.state.dtype)

    def tile(self, first: int, last: int, out: Tensor | None = None) -> Tensor:
        columns = self.rows(first, last).T
        if self.bias is None:
            z = torch.mm(self.state, columns, out=out)
        else:
            z = torch.addmm(self.bias[first:last].to(self.state.dtype), self.state, columns, out=out)
        return z if self.support is None else z.masked_fill_(self._beyond(first, last), MASKED)

    def kept(self, y: Tensor, first: int, last: int) -> Tensor:
        """y [B, tile], 0 where `support` masks."""
        return y.masked_fill(self._beyond(first, last), 0.0)

    def _beyond(self, first: int, last: int) -> Tensor:
        assert self.support is not None
        other, bound = self.support
        return other.tile(first, last) < bound


class Corrected:
    """A head's values by tile, corrections included."""

    def __init__(self, head: Head, width: int) -> None:
        self.base = Base(head.state.to(head.dtype), head.table, head.bias)
        self.replaces_base = head.replaces_base
        self.support = None if head.support is None else (Corrected(head.support.head, width), head.support.bound)
        self.places = Places.of(head.items, head.n_items, width)
        if self.places is not None and head.values is not None:
            self.values = head.values[self.places.row, self.places.place].to(head.dtype)

    def tile(self, number: int, first: int, last: int) -> Tensor:
        z = self.base.tile(first, last)
        if self.places is not None and (values := self.values[self.places.mine(number)]).numel():
            if self.replaces_base:
                self.places.fill(z, number, first, 0.0)
            z.view(-1).scatter_add_(0, self.places.flat(z, number, first), values)
        if self.support is not None:
            other, bound = self.support
            z.masked_fill_(other.tile(number, first, last) < bound[:, None], MASKED)
        return z


class Gradients:
    """A head's gradients, gathered tile by tile from y [B, tile]; z gets scale · y, with one scale for each row."""

    def __init__(self, base: Base, parts: Sequence[Tensor | None], needed: Sequence[bool], scale: Tensor) -> None:
        self.base, self.scale = base, scale
        state, table, bias = parts
        self.state = torch.zeros_like(base.state) if needed[0] else None
        self.table = torch.empty_like(table) if needed[1] and table is not None else None
        self.bias = torch.empty_like(bias) if needed[2] and bias is not None else None
        self.scaled = base.state * scale[:, None] if needed[1] else None
        self.kind = state.dtype if state is not None else None

    def add(self, y: Tensor, first: int, last: int) -> None:
        if self.state is not None:
            self.state.addmm_(y, self.base.rows(first, last))
        if self.table is not None and self.scaled is not None:
            self.table[first:last] = y.T @ self.scaled
        if self.bias is not None:
            self.bias[first:last] = self.scale @ y

    def parts(self) -> tuple[Tensor | None, ...]:
        state = None if self.state is None else self.state.mul_(self.scale[:, None]).to(self.kind)
        return state, self.table, self.bias
