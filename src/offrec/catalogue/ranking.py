"""Ranks and top-k in one pass over tiles, without sorting the catalogue and without a [rows × items] matrix."""

import torch
from torch import Tensor

from offrec.catalogue.backend import backend_for
from offrec.catalogue.head import Head
from offrec.catalogue.noise import Noise, precise_gumbel_noise
from offrec.catalogue.sharded import LocalHeads, best_items, by_value_then_item, count, rows_at
from offrec.catalogue.tiled import tiles

ROUNDING = 8.0  # values that differ by fewer units in the last place are a tie; differences up to 3 were observed
FOLD = 16  # columns that share one maximum; they are read individually only if it exceeds the threshold


@torch.no_grad()
def rank(head: Head, target: Tensor) -> Tensor:
    """Compute the rank of a target item per row: 1 + the number of other items that are not below it.

    Ties and NaN count against the target. The target's value is a dot product and the others come from a matrix
    product; the two round differently, so values that differ only by rounding are ties.

    Args:
        head: The logits of B rows.
        target: [B] item indices.

    Returns:
        [B] ranks, 1 is best.
    """
    threshold = _tie_threshold(head, target)
    if head.shard is not None:
        return 1 + count(head, target, lambda part, own: _rank(part, own, threshold) - 1)
    return _rank(head, target, threshold)


def _rank(head: Head, target: Tensor, threshold: Tensor) -> Tensor:
    """Return 1 + the number of items, other than the target, that are not below the threshold [B, 1]."""
    if backend_for(head) == "kernels":
        from offrec.catalogue.triton import search  # needs triton

        return search.rank(head, target, threshold[:, 0])
    not_below = torch.zeros_like(target)
    for first, z in tiles(head):
        not_below += _count_not_below(z, threshold, target - first)
    return not_below + 1


@torch.no_grad()
def top_k(head: Head, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best values and their items, best first; the lower index comes first among equal values.

    As in `torch.sort`, NaN is larger than every number.

    Args:
        head: The logits of B rows.
        k: Items per row; at most the size of the catalogue is returned.

    Returns:
        Values and items, [B, k] each.
    """
    if head.shard is not None:
        return best_items(head, k, lambda part, _: top_k(part, k))
    if backend_for(head) == "kernels":
        from offrec.catalogue.triton import search  # needs triton

        return search.top_k(head, k)
    candidates = BestItems(head, k)
    for first, z in tiles(head):
        candidates.add(first, z)
    return candidates.sorted()


@torch.no_grad()
def rank_and_top_k(head: Head, target: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `rank` and `top_k`, with each tile computed once.

    Returns:
        Ranks [B], and the k best values and items, [B, k] each.
    """
    if head.shard is not None or backend_for(head) == "kernels":
        return rank(head, target), *top_k(head, k)
    threshold, not_below, candidates = _tie_threshold(head, target), torch.zeros_like(target), BestItems(head, k)
    for first, z in tiles(head):
        candidates.add(first, z)
        not_below += _count_not_below(z, threshold, target - first)
    return not_below + 1, *candidates.sorted()


@torch.no_grad()
def sample_k(head: Head, k: int, generator: torch.Generator, temperature: Tensor | None = None) -> Tensor:
    """Sample k items per row from softmax(z / temperature) without replacement.

    Adds Gumbel noise to every logit and returns the k best (Kool et al. 2019). The noise is a hash of a seed, the row
    and the item, so that draws depend neither on the size of a tile nor on how many ranks store the catalogue.

    Args:
        head: The logits of B rows.
        k: Items per row.
        generator: On the head's device. It draws the seed of the noise.
        temperature: [B], or None for 1.

    Returns:
        [B, k] items in the order they were sampled.
    """
    noise = Noise(torch.randint(1 << 62, (), device=head.state.device, generator=generator))
    if head.shard is None:
        return _best_with_noise(head, k, noise, temperature)[1]

    def search(part: Head, local: LocalHeads) -> tuple[Tensor, Tensor]:
        return _best_with_noise(part, k, noise.from_item(local.shard.first), temperature)

    return best_items(head, k, search)[1]


def _best_with_noise(head: Head, k: int, noise: Noise, temperature: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the k largest z / temperature + g and their items, [B, k] each."""
    candidates, rows = BestItems(head, k), torch.arange(head.n_rows, device=head.state.device)[:, None]
    for first, z in tiles(head):
        items = torch.arange(first, first + z.shape[1], device=z.device)
        z = z if temperature is None else z / temperature[:, None]
        candidates.add(first, z + precise_gumbel_noise(noise, rows, items))
    return candidates.sorted()


def _tie_threshold(head: Head, target: Tensor) -> Tensor:
    """Return the target's value minus the largest rounding error of an equal value, [B, 1]."""
    value = head.at(target[:, None])
    size = (head.state * head.rows(target)).abs().sum(1, keepdim=True)
    if head.bias is not None:
        bias = head.bias[target] if head.shard is None else rows_at(head.shard, head.bias, target)
        size += bias.abs()[:, None]
    if head.items is not None and head.values is not None:
        size += torch.where(head.items == target[:, None], head.values.abs(), 0.0).sum(1, keepdim=True)
    return value - ROUNDING * torch.finfo(value.dtype).eps * size


def _count_not_below(z: Tensor, threshold: Tensor, column: Tensor) -> Tensor:
    """Count the items of a tile, except the target in `column`, that are not below the threshold [B, 1]: [B].

    Overwrites z: an in-place comparison that leaves zeros and ones is six times faster than counting booleans.
    """
    rows = ((column >= 0) & (column < z.shape[1])).nonzero()[:, 0]
    below = z.lt_(threshold)
    below[rows, column[rows]] = 1.0
    return z.shape[1] - below.sum(1).long()


class BestItems:
    """Collects the k best items over tiles, with candidates that are not merged yet.

    An item becomes a candidate if it beats the k-th best of the last merge. The t-th tile has about k / t
    candidates, so merges, the expensive part, become rare. An item that equals the k-th best is not a candidate,
    because merged items have lower indices.
    """

    def __init__(self, head: Head, k: int) -> None:
        self.k, self.rows, self.n_items = min(k, head.n_items), head.n_rows, head.n_items
        self.values = head.state.new_empty(head.n_rows, 0)
        self.items = torch.empty(head.n_rows, 0, dtype=torch.long, device=head.state.device)
        self.candidates: list[tuple[Tensor, Tensor, Tensor]] = []  # (row, item, value), each [n]

    def add(self, first: int, z: Tensor) -> None:
        """Add a tile z [B, tile] whose first item is `first`."""
        if self.values.shape[1] < self.k:
            self._merge(z, torch.arange(first, first + z.shape[1], device=z.device).expand(self.rows, -1))
            return
        threshold = self.values.amin(1)
        columns = z.shape[1] // FOLD
        folded = z[:, : columns * FOLD].view(self.rows, FOLD, columns)
        row, column = (~(folded.amax(1) <= threshold[:, None])).nonzero(as_tuple=True)
        step = torch.arange(FOLD, device=z.device) * columns
        self._add_candidates(threshold, row, first + column[:, None] + step, folded[row, :, column])
        if columns * FOLD < z.shape[1]:
            rest = torch.arange(columns * FOLD, z.shape[1], device=z.device)
            every_row = torch.arange(self.rows, device=z.device)
            self._add_candidates(threshold, every_row, (first + rest).expand(self.rows, -1), z[:, rest])
        if sum(len(row) for row, _, _ in self.candidates) >= self.k * self.rows:
            self._merge_candidates()

    def _add_candidates(self, threshold: Tensor, row: Tensor, items: Tensor, values: Tensor) -> None:
        """Add the items and values [n, m] of rows [n] that are above the threshold [B] of their row."""
        n, m = (~(values <= threshold[row, None])).nonzero(as_tuple=True)
        self.candidates.append((row[n], items[n, m], values[n, m]))

    def _merge_candidates(self) -> None:
        row, item, value = (torch.cat(parts) for parts in zip(*self.candidates, strict=True))
        self.candidates = []
        row, order = row.sort(stable=True)
        count = row.bincount(minlength=self.rows)
        column = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        shape = (self.rows, int(count.max()) if len(row) else 0)
        values = value.new_full(shape, -torch.inf).index_put_((row, column), value[order])
        items = item.new_full(shape, self.n_items).index_put_((row, column), item[order])
        self._merge(values, items)

    def _merge(self, values: Tensor, items: Tensor) -> None:
        values, items = torch.cat([self.values, values], 1), torch.cat([self.items, items], 1)
        k = min(self.k, values.shape[1])
        best, order = values.topk(k, 1)
        if values.numel() and int((~(values < best[:, -1:])).sum(1).max()) > k:
            order = by_value_then_item(values, items)[:, :k]  # `topk` does not define the order of equal values
        self.values, self.items = values.gather(1, order), items.gather(1, order)

    def sorted(self) -> tuple[Tensor, Tensor]:
        """Return the best values and items, [B, k] each, best first."""
        if self.candidates:
            self._merge_candidates()
        order = by_value_then_item(self.values, self.items)
        return self.values.gather(1, order), self.items.gather(1, order)
