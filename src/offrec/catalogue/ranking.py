"""Ranks and the best k items in one pass over tiles: no sort of the catalogue, no [rows × items] matrix."""

import torch
from torch import Tensor

from offrec.catalogue.backend import backend_for
from offrec.catalogue.head import Head
from offrec.catalogue.tiled import tiles

ROUNDING = 8.0  # a tie is a tie if rounding alone could have broken it: so many units in the last place; 3 were seen
FOLD = 16  # so many columns share a peak, and only where a peak is high enough are they looked at one by one


@torch.no_grad()
def rank(head: Head, target: Tensor) -> Tensor:
    """1 + how many other items are not below the target [B]: ties, and anything that is not a number, count against it.

    The target's own value is a dot product, the others' come from a matrix product, and the two round differently: what
    differs by no more than rounding is a tie.
    """
    bar, above = _bar(head, target), torch.zeros_like(target)
    if backend_for(head) == "kernels":
        from offrec.catalogue.triton import search  # needs triton

        return search.rank(head, target, bar[:, 0])
    for first, z in tiles(head):
        above += _not_below(z, bar, target - first)
    return above + 1


@torch.no_grad()
def top_k(head: Head, k: int) -> tuple[Tensor, Tensor]:
    """The k best values and their items, best first, the lower index first among equals: [B, k] each.

    As in `torch.sort`, what is not a number stands first.
    """
    if backend_for(head) == "kernels":
        from offrec.catalogue.triton import search  # needs triton

        return search.top_k(head, k)
    best = Best(head, k)
    for first, z in tiles(head):
        best.add(first, z)
    return best.sorted()


@torch.no_grad()
def sample_k(head: Head, k: int, generator: torch.Generator, temperature: Tensor | None = None) -> Tensor:
    """[B, k] items drawn from softmax(z / temperature [B]) one after the other without replacement, in the order drawn.

    Gumbel noise on every logit, then the k best (Kool et al. 2019). In double precision: single has too few numbers
    close to 0 for the smallest of a million draws, which would then tie. The generator lives on the head's device, and
    the draws hang on the tiles' width, so on the number of rows.
    """
    best = Best(head, k)
    for first, z in tiles(head):
        noise = torch.empty(z.shape, dtype=torch.double, device=z.device).exponential_(generator=generator)
        z = z if temperature is None else z / temperature[:, None]
        best.add(first, z - noise.log_())
    return best.sorted()[1]


@torch.no_grad()
def rank_and_top_k(head: Head, target: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """`rank` [B] and `top_k` [B, k] twice, each tile computed once."""
    if backend_for(head) == "kernels":
        return rank(head, target), *top_k(head, k)
    bar, above, best = _bar(head, target), torch.zeros_like(target), Best(head, k)
    for first, z in tiles(head):
        best.add(first, z)
        above += _not_below(z, bar, target - first)
    return above + 1, *best.sorted()


def _bar(head: Head, target: Tensor) -> Tensor:
    """[B, 1] the target's value, less what rounding may have added to another that equals it."""
    own = head.at(target[:, None])
    size = (head.state * head.table[target]).abs().sum(1, keepdim=True)
    if head.bias is not None:
        size += head.bias[target].abs()[:, None]
    if head.items is not None and head.values is not None:
        size += torch.where(head.items == target[:, None], head.values.abs(), 0.0).sum(1, keepdim=True)
    return own - ROUNDING * torch.finfo(own.dtype).eps * size


def _not_below(z: Tensor, bar: Tensor, column: Tensor) -> Tensor:
    """[B] how many of the tile's items other than the row's own are not below its bar. Overwrites z.

    A comparison in place that leaves zeros and ones is six times faster than one that makes booleans and counts them.
    """
    rows = ((column >= 0) & (column < z.shape[1])).nonzero()[:, 0]
    below = z.lt_(bar)
    below[rows, column[rows]] = 1.0
    return z.shape[1] - below.sum(1).long()


class Best:
    """The k best of the tiles seen so far, and a few that wait to be merged with them.

    An item waits if it beats the k-th best of the last merge. The t-th tile has about k / t such items, so merges, the
    costly part, grow rare. An item that only equals the k-th best stays out: those merged have lower indices.
    """

    def __init__(self, head: Head, k: int) -> None:
        self.k, self.rows, self.n_items = min(k, head.n_items), head.n_rows, head.n_items
        self.values = head.state.new_empty(head.n_rows, 0)
        self.items = torch.empty(head.n_rows, 0, dtype=torch.long, device=head.state.device)
        self.waiting: list[tuple[Tensor, Tensor, Tensor]] = []  # (row, item, value), each [n]

    def add(self, first: int, z: Tensor) -> None:
        if self.values.shape[1] < self.k:
            self._merge(z, torch.arange(first, first + z.shape[1], device=z.device).expand(self.rows, -1))
            return
        bar = self.values.amin(1)
        columns = z.shape[1] // FOLD
        folded = z[:, : columns * FOLD].view(self.rows, FOLD, columns)
        row, column = (~(folded.amax(1) <= bar[:, None])).nonzero(as_tuple=True)
        step = torch.arange(FOLD, device=z.device) * columns
        self._wait(bar, row, first + column[:, None] + step, folded[row, :, column])
        if columns * FOLD < z.shape[1]:
            rest = torch.arange(columns * FOLD, z.shape[1], device=z.device)
            self._wait(bar, torch.arange(self.rows, device=z.device), (first + rest).expand(self.rows, -1), z[:, rest])
        if sum(len(row) for row, _, _ in self.waiting) >= self.k * self.rows:
            self._merge_waiting()

    def _wait(self, bar: Tensor, row: Tensor, items: Tensor, values: Tensor) -> None:
        """Of items and values [n, m] in rows [n], those above the row's bar."""
        n, m = (~(values <= bar[row, None])).nonzero(as_tuple=True)
        self.waiting.append((row[n], items[n, m], values[n, m]))

    def _merge_waiting(self) -> None:
        row, item, value = (torch.cat(parts) for parts in zip(*self.waiting, strict=True))
        self.waiting = []
        row, order = row.sort(stable=True)
        count = row.bincount(minlength=self.rows)
        place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        shape = (self.rows, int(count.max()) if len(row) else 0)
        values = value.new_full(shape, -torch.inf).index_put_((row, place), value[order])
        items = item.new_full(shape, self.n_items).index_put_((row, place), item[order])
        self._merge(values, items)

    def _merge(self, values: Tensor, items: Tensor) -> None:
        values, items = torch.cat([self.values, values], 1), torch.cat([self.items, items], 1)
        k = min(self.k, values.shape[1])
        best, order = values.topk(k, 1)
        if values.numel() and int((~(values < best[:, -1:])).sum(1).max()) > k:
            order = _by_value_then_item(values, items)[:, :k]  # `topk` leaves open which of several equals it takes
        self.values, self.items = values.gather(1, order), items.gather(1, order)

    def sorted(self) -> tuple[Tensor, Tensor]:
        if self.waiting:
            self._merge_waiting()
        order = _by_value_then_item(self.values, self.items)
        return self.values.gather(1, order), self.items.gather(1, order)


def _by_value_then_item(values: Tensor, items: Tensor) -> Tensor:
    by_item = items.argsort(1)
    return by_item.gather(1, values.gather(1, by_item).sort(dim=1, descending=True, stable=True).indices)
