"""Functions over heads whose items are stored by several ranks. Each rank passes over its own items.

A rank's head has the rank's table rows and the corrections of its items, with all other corrections as padding. The
ordinary functions compute its sums or its best items, and the ranks combine them: sums by their logsumexp, best items
by value, then item. All ranks of the group must call the same functions in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from offrec.catalogue.corrections import UniqueItems
from offrec.catalogue.head import ALL_MASKED, Head, Linear, Support
from offrec.catalogue.noise import Noise
from offrec.catalogue.shard import Shard

T = TypeVar("T")
EMPTY = -3e38  # the logsumexp of a rank without unmasked items, far below MASKED


class LocalHeads:
    """The heads of this rank's items. Equal heads and tensors stay identical objects.

    Args:
        heads: Heads over the whole catalogue, with one shard.
    """

    def __init__(self, heads: Sequence[Head]) -> None:
        shard = heads[0].shard
        if shard is None or any(head.shard != shard for head in heads):
            raise ValueError("all heads of a pass must have the same shard; got different ones")
        self.shard: Shard = shard
        self._items: dict[int, tuple[Tensor, Tensor]] = {}
        self._heads: dict[int, tuple[Head, Head]] = {}
        tensors = {id(one): one for head in heads for part in _chain(head) for one in (part.state, part.values)}
        copies = shard.replicate(*tensors.values())
        self._copies = dict(zip(tensors, copies, strict=True))

    def __call__(self, head: Head) -> Head:
        """Return the head of this rank's items."""
        if id(head) not in self._heads:
            self._heads[id(head)] = head, self._localise(head)
        return self._heads[id(head)][1]

    def _localise(self, head: Head) -> Head:
        unique = head.unique if head.unique is not None and head.unique.given is head.items else None
        local_unique = None if unique is None else local_unique_items(unique, self.shard)
        items = local_unique.given if local_unique is not None else self._local_items(head.items)
        state = self._copies[id(head.state)]
        assert state is not None
        return replace(
            head,
            state=state,
            items=items,
            values=self._copies[id(head.values)],
            support=head.support and Support(self(head.support.head), head.support.bound),
            unique=local_unique,
            full_precision=head.full_precision and self(head.full_precision),
            shard=None,
        )

    def _local_items(self, items: Tensor | None) -> Tensor | None:
        if items is None:
            return None
        if id(items) not in self._items:
            self._items[id(items)] = items, self.shard.local(items)
        return self._items[id(items)][1]

    def linear(self, terms: Linear) -> Linear:
        """Return linear terms of this rank's items."""
        return [(coefficient, self(head)) for coefficient, head in terms]

    def noise(self, noise: Noise | None) -> Noise | None:
        """Return the noise of this rank's items."""
        return None if noise is None else noise.from_item(self.shard.first)

    def combine(self, lse: Tensor, *means: Tensor) -> tuple[Tensor, ...]:
        """Combine this rank's sums with those of the others."""
        return self.shard.combine(lse.masked_fill(lse <= ALL_MASKED, EMPTY), *means)

    def sums(self, compute: Callable[[], tuple[Tensor, ...]], head: Head, number: int) -> tuple[Tensor, ...]:
        """Return what `compute` returns, the logsumexp and `number` means; those of no items if this rank has none."""
        if self.shard.size:
            return compute()
        zero = 0.0 * self(head).state.sum(1).to(head.dtype)  # connected, because all ranks sum the state's gradient
        return zero + EMPTY, *[zero] * number


def _chain(head: Head) -> list[Head]:
    """Return a head, the heads of its support, and their heads in full precision."""
    others = [head.full_precision, None if head.support is None else head.support.head]
    return [head, *(one for other in others if other is not None for one in _chain(other))]


def local_unique_items(unique: UniqueItems, shard: Shard) -> UniqueItems:
    """Return the items of this rank among unique items of each row. The result is cached with its source."""
    key = ("shard", shard.first, shard.size)
    if key not in unique.pairs_by_tile:
        items = shard.local(unique.items)
        filled = unique.filled * (items < shard.size)
        clamped = items.clamp(max=max(0, shard.size - 1))
        unique.pairs_by_tile[key] = UniqueItems(shard.local(unique.given), items, filled, unique.log_counts, clamped)
    local: UniqueItems = unique.pairs_by_tile[key]
    return local


def base_at(head: Head, actions: Tensor) -> Tensor:
    """Compute the base of a head at actions [B, n]: the owner of an item computes its value."""
    local = LocalHeads([head])
    shard, base = local.shard, local(head).base
    index = actions - shard.first
    inside = (index >= 0) & (index < shard.size)
    if not shard.size:
        return shard.sum((0.0 * base.state.sum(1, keepdim=True).to(head.dtype)).expand(actions.shape))
    return shard.sum(torch.where(inside, base.base_at(torch.where(inside, index, 0)), 0.0))


def rows_at(shard: Shard, table: Tensor, items: Tensor) -> Tensor:
    """Return the rows of a table [A, d] or a vector [A] at items [B]."""
    return shard.lookup(items, table) if table.ndim == 2 else shard.lookup(items, table[:, None])[:, 0]


@torch.no_grad()
def best_items(
    head: Head, k: int, search: Callable[[Head, LocalHeads], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return the k best values and items of all ranks; `search` returns this rank's, at most k per row."""
    local = LocalHeads([head])
    shard, k = local.shard, min(k, head.n_items)
    values = torch.full((head.n_rows, k), -torch.inf, dtype=torch.double, device=head.state.device)
    items = torch.full((head.n_rows, k), head.n_items, device=head.state.device)
    if shard.size:
        local_values, index = search(local(head), local)
        values[:, : index.shape[1]] = local_values
        items[:, : index.shape[1]] = torch.where(index < shard.size, index + shard.first, head.n_items)
    values, items = (shard.gather(part).transpose(0, 1).flatten(1) for part in (values, items))
    order = by_value_then_item(values, items)[:, :k]
    return values.gather(1, order).to(head.dtype), items.gather(1, order)


@torch.no_grad()
def count(head: Head, target: Tensor, count_local: Callable[[Head, Tensor], Tensor]) -> Tensor:
    """Sum counts [B] over ranks; `count_local` gets this rank's head and targets, −1 where another rank has them."""
    local = LocalHeads([head])
    shard = local.shard
    index = shard.local(target)
    number = torch.zeros_like(target)
    if shard.size:
        number = count_local(local(head), torch.where(index < shard.size, index, -1))
    return shard.sum(number)


def by_value_then_item(values: Tensor, items: Tensor) -> Tensor:
    """Return the order [B, n] by value, largest first, then by item."""
    by_item = items.argsort(1)
    return by_item.gather(1, values.gather(1, by_item).sort(dim=1, descending=True, stable=True).indices)
