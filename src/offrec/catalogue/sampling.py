"""Lists drawn from softmax(z / T) without replacement, at little more than the cost of its logsumexp.

Items drawn one by one with replacement, repeats dropped, are items drawn without. So a pass over the catalogue keeps
the weight of each block of items; a draw picks a block and then an item in it; what was drawn is masked and its blocks
are weighed anew, until the list is full. Noise on every item, as in `order.sample_k`, costs three to four times that.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from offrec.catalogue.head import ALL_MASKED, MASKED, Head
from offrec.catalogue.tiled import tiles

BLOCK = 64
MOST = 64  # draws of a row at a time
FLOATS = 1 << 22  # read at a time to look into blocks


class Remaining:
    """What is left to be drawn from: log-weights of blocks, and the items gone."""

    def __init__(self, head: Head, temperature: Tensor) -> None:
        self.head, self.heat = head, temperature.to(head.dtype)
        own = torch.full((head.n_rows,), -math.inf, dtype=torch.double, device=head.state.device)
        firsts, weights = [], []
        for first, z in tiles(head):
            own = torch.logaddexp(own, z.logsumexp(1).double())
            blocks = -(-z.shape[1] // BLOCK)
            padded = pad(z / self.heat[:, None], (0, blocks * BLOCK - z.shape[1]), value=-math.inf)
            weights.append(padded.view(head.n_rows, blocks, BLOCK).logsumexp(2))
            firsts.append(first + BLOCK * torch.arange(blocks, device=z.device))
        self.firsts, self.weights = torch.cat(firsts), torch.cat(weights, 1).double()  # [blocks], [B, blocks]
        self.ends = torch.cat([self.firsts[1:], self.firsts.new_tensor([head.n_items])])
        self.gone = self.firsts.new_empty(head.n_rows, 0)  # [B, n]; n_items is padding
        self.own = own  # [B] log Σ exp z, of all

    def log(self) -> Tensor:
        """[B] the log-weight of all that is left."""
        return self.weights.logsumexp(1)

    def some(self) -> Tensor:
        """[B] whether anything is left. Weights are of z / T, and so is what says that all of them are MASKED."""
        return self.log() * self.heat > ALL_MASKED

    def draw(self, rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """[len(rows), n] items, with replacement."""
        block = _pick(self.weights[rows], n, generator)
        pairs = rows[:, None].expand(-1, n).flatten()
        found = [
            self._inside(pairs[part], block.flatten()[part], generator)
            for part in torch.split(torch.arange(len(pairs), device=rows.device), self._together())
        ]
        return torch.cat(found).view(len(rows), n)

    def _inside(self, rows: Tensor, block: Tensor, generator: torch.Generator) -> Tensor:
        return self.firsts[block] + _pick(self.values(rows, block), 1, generator)[:, 0]

    def remove(self, items: Tensor) -> None:
        """Items [B, n], padded with n_items: they are gone, and the blocks they stood in weigh less."""
        self.gone = torch.cat([self.gone, items], 1)
        rows, place = (items < self.head.n_items).nonzero(as_tuple=True)
        block = torch.searchsorted(self.firsts, items[rows, place], right=True) - 1
        pairs = torch.unique(torch.stack([rows, block], 1), dim=0)
        for rows, block in (part.unbind(1) for part in torch.split(pairs, self._together())):
            self.weights[rows, block] = self.values(rows, block).logsumexp(1)

    def _together(self) -> int:
        corrections = 0 if self.head.items is None else self.head.items.shape[1]
        return max(1, FLOATS // (BLOCK * self.head.table.shape[1] + corrections + self.gone.shape[1] + BLOCK))

    def values(self, rows: Tensor, block: Tensor) -> Tensor:
        """[P, BLOCK] z / T in blocks of rows [P], what is gone MASKED / T, what stands beyond the block's end −∞."""
        head, first = self.head, self.firsts[block][:, None]
        places = torch.arange(BLOCK, device=rows.device)
        z = Head(head.state[rows], head.table, head.bias).at((first + places).clamp(max=head.n_items - 1))
        if head.items is not None and head.values is not None:
            z = _corrected(z, head.items[rows] - first, head.values[rows].to(z.dtype), head.replaces_base)
        z = _corrected(
            z, self.gone[rows] - first, z.new_full((1, 1), MASKED).expand(len(rows), self.gone.shape[1]), True
        )
        beyond = places >= (self.ends[block][:, None] - first)
        return (z / self.heat[rows, None]).masked_fill(beyond, -math.inf).double()


def _corrected(z: Tensor, place: Tensor, values: Tensor, replaces_base: bool) -> Tensor:
    """z [P, BLOCK] with values [P, H] at places [P, H], those outside of the block left out."""
    inside = (place >= 0) & (place < BLOCK)
    row, which = inside.nonzero(as_tuple=True)
    flat = row * BLOCK + place[row, which]
    z = z.contiguous()
    if replaces_base:
        z.view(-1).index_fill_(0, flat, 0.0)
    z.view(-1).index_add_(0, flat, values[row, which])
    return z


def _pick(log_weights: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """[B, n] columns drawn by their weight, with replacement."""
    mass = (log_weights - log_weights.amax(1, keepdim=True)).exp_().cumsum(1)
    uniform = torch.rand(len(mass), n, dtype=torch.double, device=mass.device, generator=generator)
    return torch.searchsorted(mass, uniform * mass[:, -1:], right=True).clamp_(max=mass.shape[1] - 1)


def draw_lists(head: Head, k: int, temperature: Tensor, generator: torch.Generator) -> tuple[Tensor, Remaining]:
    """[B, k] items in the order drawn, n_items where nothing was left, and what remains after them."""
    left = Remaining(head, temperature)
    lists = torch.full((head.n_rows, k), head.n_items, device=head.state.device)
    filled = torch.zeros_like(lists[:, 0])
    rows = torch.arange(head.n_rows, device=head.state.device)
    while True:
        rows = rows[(filled[rows] < k) & left.some()[rows]]
        if not len(rows):
            return lists, left
        n = min(MOST, int(k - filled[rows].min()))
        drawn = left.draw(rows, n, generator)
        again = (drawn[:, :, None] == drawn[:, None, :]).tril(-1).any(2)
        place = filled[rows, None] + (~again).cumsum(1) - 1
        kept = ~again & (place < k)
        row, which = kept.nonzero(as_tuple=True)
        lists[rows[row], place[row, which]] = drawn[row, which]
        filled[rows] += kept.sum(1)
        fresh = torch.full((head.n_rows, n), head.n_items, device=drawn.device)
        fresh[rows] = drawn.masked_fill(~kept, head.n_items)
        left.remove(fresh)
