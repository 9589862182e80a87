"""One pass over the catalogue that finds the items of each row that may be among the k best; see `screening`."""

import torch
from torch import Tensor

from offrec.catalogue.head import MASKED, Head
from offrec.catalogue.screening import Product, Screening
from offrec.catalogue.slots import Slots
from offrec.catalogue.tiled import LOG2E

MAX_K = 1000
MAX_REREAD = 1000  # items per row, on average, that are read again at most
FOLD = 32  # items that share one maximum in the pass
TILE_FLOATS = 1 << 20
MAX_TILE = 1 << 17  # items; larger tiles of few rows would not fit into the cache
PAIRS_AT_ONCE = 1 << 15  # (row, item) pairs that are read again at once


class ScreenedPass:
    """A pass over the base of a head, without the items that are corrected.

    The corrections may depend on the logsumexp of the pass. So they are passed to `finish`, and the pass itself only
    needs to know which items are corrected.

    Args:
        head: The logits of B rows; `Screening.supports` returns True for it.
        k: Items per list.
        screening: The screening of the head's table.
        corrected: [B, H] all items that the head of `finish` corrects; indices from A on are padding; None without any.
        allowed: [A] bool, the items that a list may contain, or None for all. The logsumexp includes the others.
        lse: Whether the logsumexp is needed.
        precise: Whether to use float32 products; a logsumexp always needs them.

    Attributes:
        is_worth_repeating: Whether a pass with float32 products may succeed if this one did not.
        succeeded: False if too many items are near the k-th best, or the bound of the error is not finite. Then no
            other method can be called.
    """

    @torch.no_grad()
    def __init__(
        self,
        head: Head,
        k: int,
        screening: Screening,
        corrected: Tensor | None,
        allowed: Tensor | None = None,
        lse: bool = True,
        precise: bool = False,
    ) -> None:
        self.k, self.n_rows, self.n_items, self.allowed = k, head.n_rows, head.n_items, allowed
        product = screening.product(head, lse or precise)
        self.corrected = None if corrected is None else _unique(corrected, head.n_items)
        self.candidates = _Candidates(product, k, head.n_rows)
        self.total = _LogSum(head.n_rows) if lse else None
        can_screen = 0 < k <= min(MAX_K, head.n_items // (2 * FOLD)) and head.n_rows > 0
        self.is_worth_repeating = can_screen and product.is_exact
        self.succeeded = can_screen and bool(product.error.isfinite().all()) and self._collect(product)
        if not self.succeeded:
            screening.passes.repeated += 1
        elif product.is_exact:
            screening.passes.int8 += 1
        else:
            screening.passes.float32 += 1

    @torch.no_grad()
    def logsumexp(self, head: Head) -> Tensor:
        """Return log Σ_a exp z(a) of a head with few corrections, all of them among the corrected items: [B]."""
        assert self.total is not None
        if self.corrected is None:
            return self.total.log()
        is_padding = self.corrected >= self.n_items
        z = head.at(self.corrected.clamp(max=self.n_items - 1)).double().masked_fill(is_padding, -torch.inf)
        return torch.logaddexp(self.total.log(), z.logsumexp(1))

    @torch.no_grad()
    def finish(self, head: Head) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the best items.

        Args:
            head: The head with its corrections. Its corrected items are those of the pass.

        Returns:
            [B, k] items, best first, with the lower index first among equal values; their values, MASKED where a row
            has fewer items; and the logsumexp [B], if it was computed.
        """
        slots = Slots.of([head])
        z = None if slots is None else slots.at(head)
        sums = None if self.total is None else self.total.log()
        if slots is not None and z is not None and sums is not None:
            sums = torch.logaddexp(sums, z.double().masked_fill(slots.empty, -torch.inf).logsumexp(1))
        row, item, _ = self.candidates.parts[0]
        parts = torch.split(torch.arange(len(row)), PAIRS_AT_ONCE)
        values = torch.cat([_exact_values(head, row[part], item[part]) for part in parts])
        if slots is not None and z is not None:
            if self.allowed is not None:
                z = z.masked_fill(~self.allowed[slots.items.clamp(max=self.n_items - 1)], MASKED)
            own_row, column = (~slots.empty).nonzero(as_tuple=True)
            row, item = torch.cat([row, own_row]), torch.cat([item, slots.items[own_row, column]])
            values = torch.cat([values, z[own_row, column]])
        order = item.argsort()
        order = order[values[order].argsort(descending=True, stable=True)]
        row, item, values = row[order], item[order], values[order]
        items = _pad_rows(row, item, self.n_rows, 0, self.k)
        return items, _pad_rows(row, values, self.n_rows, MASKED, self.k), sums

    def _collect(self, product: Product) -> bool:
        """Run the pass; return False if there are too many candidates."""
        rows, candidates = self.n_rows, self.candidates
        width = max(FOLD * 64, min(MAX_TILE, TILE_FLOATS // rows) // FOLD * FOLD)
        width = min(width, -(-self.n_items // FOLD) * FOLD)
        corrected = None if self.corrected is None else _by_item(self.corrected, self.n_items)
        buffer, lowest = product.buffer(width), product.lowest
        for first in range(0, self.n_items, width):
            last = min(first + width, self.n_items)
            product.tile(first, last, buffer[: last - first])
            buffer[last - first :] = lowest
            if corrected is not None:
                item, row = _between(corrected, first, last)
                buffer.view(-1).index_fill_(0, (item - first) * rows + row, lowest)
            z = buffer
            if self.allowed is not None:
                z = buffer.clone()
                z[: last - first].masked_fill_(~self.allowed[first:last, None], lowest)
            folded = _fold(z)
            candidates.add(first, z, folded)
            if candidates.are_too_many:
                candidates.prune()
                if candidates.are_too_many:
                    return False
            if self.total is not None:
                self.total.add(buffer, folded if self.allowed is None else _fold(buffer))
        candidates.prune()
        return not candidates.are_too_many


class _Candidates:
    """Collects the items of each row that may be among the k best."""

    def __init__(self, product: Product, k: int, rows: int) -> None:
        self.product, self.k, self.rows = product, k, rows
        self.bound = torch.full((rows,), -torch.inf)
        self.top: Tensor | None = None  # [k, B] the largest of the maxima of groups of items
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []  # (row, item, z̃), each [n]
        self.count, self.limit = 0, rows * max(4 * k, 64)

    def add(self, first: int, z: Tensor, folded: Tensor) -> None:
        """Add a tile z [items, B], folded to the maxima of FOLD items, [items / FOLD, B]."""
        groups = len(folded)
        self._raise_bound(folded)
        group, row = (folded.float() >= self.bound).nonzero(as_tuple=True)
        values = z.view(FOLD, groups, self.rows)[:, group, row].float()  # [FOLD, n]
        step, n = ((values >= self.bound[row]) & (values > self.product.lowest)).nonzero(as_tuple=True)
        self.parts.append((row[n], first + step * groups + group[n], values[step, n]))
        self.count += len(n)
        if self.count > self.limit:
            self.prune()

    def _raise_bound(self, folded: Tensor) -> None:
        """Raise the bound: k maxima of different groups are values of k items, so the k-th largest z̃ is no lower."""
        while len(folded) % 2 == 0 and len(folded) >= 8 * self.k:  # sorting fewer maxima is faster
            folded = torch.maximum(folded[: len(folded) // 2], folded[len(folded) // 2 :])
        known = folded if self.top is None else torch.cat([self.top, folded])
        if len(known) >= self.k:
            self.top = known.topk(self.k, 0).values
            self.bound = torch.maximum(self.bound, self.product.lower_bound(self.top[-1].float()))

    def prune(self) -> None:
        """Remove the items below the bound of the k-th largest z̃ so far."""
        row, item, value = (torch.cat(parts) for parts in zip(*self.parts, strict=True))
        if len(row):
            padded = _pad_rows(row, value, self.rows, -torch.inf)
            if padded.shape[1] >= self.k:
                bound = self.product.lower_bound(padded.topk(self.k, 1).values[:, -1])
                self.bound = torch.maximum(self.bound, bound)
        chosen = value >= self.bound[row]
        self.parts = [(row[chosen], item[chosen], value[chosen])]
        self.count = len(self.parts[0][0])
        self.limit = max(self.limit, 2 * self.count)

    @property
    def are_too_many(self) -> bool:
        """Whether reading the candidates again would take longer than a full pass."""
        return self.count > self.rows * (MAX_REREAD + 4 * self.k)


class _LogSum:
    """Accumulates log Σ exp z per row over tiles [items, B]."""

    def __init__(self, rows: int) -> None:
        self.top = torch.full((rows,), MASKED)
        self.total = torch.zeros(rows, dtype=torch.double)

    def add(self, z: Tensor, folded: Tensor) -> None:
        """Add a tile, which is overwritten."""
        higher = torch.maximum(self.top, folded.amax(0))
        self.total *= (self.top - higher).double().exp()
        self.top = higher
        # On CPUs, `exp2` is several times faster than `exp`.
        weights = torch.add(higher * -LOG2E, z, alpha=LOG2E, out=z).exp2_()
        self.total += weights.sum(0).double()

    def log(self) -> Tensor:
        return self.total.log() + self.top.double()


def _fold(z: Tensor) -> Tensor:
    """Return the maxima of every FOLD items, a constant distance apart: [items, B] → [items / FOLD, B]."""
    folded = z
    while len(folded) > len(z) // FOLD:  # halves are contiguous, so this is faster than `amax` for any number of rows
        half = len(folded) // 2
        folded = torch.maximum(folded[:half], folded[half:])
    return folded


def _unique(items: Tensor, n_items: int) -> Tensor:
    """Replace duplicates in each row of items [B, H] by padding."""
    items = items.clamp(max=n_items).sort(1).values
    items[:, 1:] = items[:, 1:].masked_fill(items[:, 1:] == items[:, :-1], n_items)
    return items


def _by_item(items: Tensor, n_items: int) -> tuple[Tensor, Tensor]:
    """Return items [B, H] without padding, in ascending order, and their rows."""
    row, column = (items < n_items).nonzero(as_tuple=True)
    item, order = items[row, column].sort()
    return item, row[order]


def _between(corrected: tuple[Tensor, Tensor], first: int, last: int) -> tuple[Tensor, Tensor]:
    item, row = corrected
    start, end = torch.searchsorted(item, torch.tensor([first, last])).tolist()
    return item[start:end], row[start:end]


def _exact_values(head: Head, row: Tensor, item: Tensor) -> Tensor:
    """Compute the base at pairs (row, item): [n]. Double precision makes it independent of the order of summation."""
    z = (head.state[row].double() * head.table[item]).sum(1)
    return (z if head.bias is None else z + head.bias[item]).float()


def _pad_rows(row: Tensor, values: Tensor, rows: int, fill: float, width: int | None = None) -> Tensor:
    """Arrange values [n] of rows [n] as a matrix [rows, width]; values of a row keep their order."""
    order = row.argsort(stable=True)
    count = row.bincount(minlength=rows)
    column = torch.arange(len(row)) - (count.cumsum(0) - count)[row[order]]
    width = int(count.max()) if width is None else width
    inside = column < width
    matrix = values.new_full((rows, width), fill)
    matrix[row[order][inside], column[inside]] = values[order][inside]
    return matrix
