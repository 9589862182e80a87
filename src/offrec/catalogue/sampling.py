"""Sample without replacement from softmax(z / T), at little more than the cost of its logsumexp.

Sampling with replacement and dropping repeated items gives a sample without replacement. One pass over the catalogue
stores the weight of each block of items. A draw chooses a block, then an item inside it. Sampled items are masked and
the weights of their blocks are recomputed, until the list is full. Noise on every item, as in `ranking.sample_k`, takes
three to four times as long.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from offrec.catalogue.head import ALL_MASKED, MASKED, Head
from offrec.catalogue.tiled import tiles

BLOCK = 64  # items per block
MAX_DRAWS = 64  # per row and round
MAX_FLOATS = 1 << 22  # floats read at once when sampling inside blocks


class RemainingItems:
    """The items that can still be sampled: log-weights of blocks, and the items already removed.

    Args:
        head: The logits of B rows.
        temperature: [B].
        allowed: [A] bool, the items that can be sampled, or None for all.
    """

    def __init__(self, head: Head, temperature: Tensor, allowed: Tensor | None = None) -> None:
        self.head, self.temperature = head, temperature.to(head.dtype)
        self.is_masked = None if allowed is None else ~allowed
        lse = torch.full((head.n_rows,), -math.inf, dtype=torch.double, device=head.state.device)
        firsts, weights = [], []
        for first, z in tiles(head):
            lse = torch.logaddexp(lse, z.logsumexp(1).double())
            if self.is_masked is not None:
                z.masked_fill_(self.is_masked[first : first + z.shape[1]], MASKED)
            blocks = -(-z.shape[1] // BLOCK)
            padded = pad(z / self.temperature[:, None], (0, blocks * BLOCK - z.shape[1]), value=-math.inf)
            weights.append(padded.view(head.n_rows, blocks, BLOCK).logsumexp(2))
            firsts.append(first + BLOCK * torch.arange(blocks, device=z.device))
        self.firsts, self.weights = torch.cat(firsts), torch.cat(weights, 1).double()  # [blocks], [B, blocks]
        self.ends = torch.cat([self.firsts[1:], self.firsts.new_tensor([head.n_items])])
        self.removed = self.firsts.new_empty(head.n_rows, 0)  # [B, n]; n_items is padding
        self.lse = lse  # [B] log Σ exp z over all items, removed, allowed or not

    def log_weight(self) -> Tensor:
        """Return the log-weight of all remaining items, [B]."""
        return self.weights.logsumexp(1)

    def any_left(self) -> Tensor:
        """Return whether an unmasked item remains, [B]. Weights use z / T, so they are multiplied by T first."""
        return self.log_weight() * self.temperature > ALL_MASKED

    def sample(self, rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """Sample n items with replacement for each of the rows: [len(rows), n]."""
        block = _sample_columns(self.weights[rows], n, generator)
        pairs = rows[:, None].expand(-1, n).flatten()
        items = [
            self._sample_inside(pairs[part], block.flatten()[part], generator)
            for part in torch.split(torch.arange(len(pairs), device=rows.device), self._blocks_at_once())
        ]
        return torch.cat(items).view(len(rows), n)

    def _sample_inside(self, rows: Tensor, block: Tensor, generator: torch.Generator) -> Tensor:
        return self.firsts[block] + _sample_columns(self.values(rows, block), 1, generator)[:, 0]

    def remove(self, items: Tensor) -> None:
        """Remove items [B, n], padded with n_items, and recompute the weights of their blocks."""
        self.removed = torch.cat([self.removed, items], 1)
        rows, column = (items < self.head.n_items).nonzero(as_tuple=True)
        block = torch.searchsorted(self.firsts, items[rows, column], right=True) - 1
        pairs = torch.unique(torch.stack([rows, block], 1), dim=0)
        for rows, block in (part.unbind(1) for part in torch.split(pairs, self._blocks_at_once())):
            self.weights[rows, block] = self.values(rows, block).logsumexp(1)

    def _blocks_at_once(self) -> int:
        corrections = 0 if self.head.items is None else self.head.items.shape[1]
        return max(1, MAX_FLOATS // (BLOCK * self.head.table.shape[1] + corrections + self.removed.shape[1] + BLOCK))

    def values(self, rows: Tensor, block: Tensor) -> Tensor:
        """Compute z / T of the items in one block per row: [P, BLOCK].

        Args:
            rows: [P] row indices.
            block: [P] the block of each row.

        Returns:
            Values; MASKED / T for removed items and −∞ beyond the end of a block.
        """
        head, first = self.head, self.firsts[block][:, None]
        offsets = torch.arange(BLOCK, device=rows.device)
        items = (first + offsets).clamp(max=head.n_items - 1)
        z = Head(head.state[rows], head.table, head.bias).at(items)
        if head.items is not None and head.values is not None:
            z = _correct_block(z, head.items[rows] - first, head.values[rows].to(z.dtype), head.replaces_base)
        if self.is_masked is not None:
            z = z.masked_fill(self.is_masked[items], MASKED)
        masked = z.new_full((1, 1), MASKED).expand(len(rows), self.removed.shape[1])
        z = _correct_block(z, self.removed[rows] - first, masked, True)
        beyond = offsets >= (self.ends[block][:, None] - first)
        return (z / self.temperature[rows, None]).masked_fill(beyond, -math.inf).double()


def _correct_block(z: Tensor, offset: Tensor, values: Tensor, replaces_base: bool) -> Tensor:
    """Apply values [P, H] at offsets [P, H] of blocks z [P, BLOCK]; offsets outside of the block are ignored."""
    inside = (offset >= 0) & (offset < BLOCK)
    row, column = inside.nonzero(as_tuple=True)
    flat = row * BLOCK + offset[row, column]
    z = z.contiguous()
    if replaces_base:
        z.view(-1).index_fill_(0, flat, 0.0)
    z.view(-1).index_add_(0, flat, values[row, column])
    return z


def _sample_columns(log_weights: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Sample n columns per row by their weight, with replacement: [B, n]."""
    mass = (log_weights - log_weights.amax(1, keepdim=True)).exp_().cumsum(1)
    uniform = torch.rand(len(mass), n, dtype=torch.double, device=mass.device, generator=generator)
    return torch.searchsorted(mass, uniform * mass[:, -1:], right=True).clamp_(max=mass.shape[1] - 1)


def sample_without_replacement(
    head: Head, k: int, temperature: Tensor, generator: torch.Generator, allowed: Tensor | None = None
) -> tuple[Tensor, RemainingItems]:
    """Sample k items per row without replacement, out of all items or of those that `allowed` [A] marks.

    Returns:
        [B, k] items in the order they were sampled, n_items where no item was left; and the items that remain.
    """
    remaining = RemainingItems(head, temperature, allowed)
    lists = torch.full((head.n_rows, k), head.n_items, device=head.state.device)
    length = torch.zeros_like(lists[:, 0])
    rows = torch.arange(head.n_rows, device=head.state.device)
    while True:
        rows = rows[(length[rows] < k) & remaining.any_left()[rows]]
        if not len(rows):
            return lists, remaining
        n = min(MAX_DRAWS, int(k - length[rows].min()))
        sampled = remaining.sample(rows, n, generator)
        repeated = (sampled[:, :, None] == sampled[:, None, :]).tril(-1).any(2)
        position = length[rows, None] + (~repeated).cumsum(1) - 1
        accepted = ~repeated & (position < k)
        row, column = accepted.nonzero(as_tuple=True)
        lists[rows[row], position[row, column]] = sampled[row, column]
        length[rows] += accepted.sum(1)
        new = torch.full((head.n_rows, n), head.n_items, device=sampled.device)
        new[rows] = sampled.masked_fill(~accepted, head.n_items)
        remaining.remove(new)
