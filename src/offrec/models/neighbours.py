"""NeighbourTerm: adds the neighbours of the last items to a policy, with learned weights."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, logsigmoid

from offrec.catalogue import Head, logsumexp
from offrec.catalogue.head import MASKED
from offrec.catalogue.initial_values import compute_unless_meta
from offrec.catalogue.shard import Shard
from offrec.data.neighbours import NeighbourCounts

STEPS = 5  # the recent items whose neighbours are added
TINY = 1e-30  # the logarithm of 0 would be −inf


class NeighbourTerm(nn.Module):
    """Adds the items that occurred near the last items of the history in other sessions.

        π′(a) ∝ π(a) + Σ_j σ(w_j) share(a | item j steps back)
        w_j = r[j] + u[j] · state + c log(1 + n(item j steps back))

    A table of vectors needs many events to learn which items occur together; counts need few. The learned weights
    decide how much the counts contribute; σ(w) < 1, so that a network that is certain is not overruled. Training needs
    only the share of the logged item, without its own session.

    Args:
        n_items: Size of the catalogue.
        width: Width of the state.
        neighbours: Number of neighbours per item.
        counts: The counts of the stored items; None if a checkpoint will be loaded.
        shard: The range of items that this process stores; None: all.
    """

    items: Tensor
    shares: Tensor
    totals: Tensor
    own_shares: Tensor
    own_totals: Tensor

    from_log = ("items", "shares", "totals")  # counted in the log; a warm start does not copy them
    item_rows: ClassVar = {"items": 1, "shares": 1, "totals": 1}  # as in `Network`
    scale = 4.0  # as in the repeat term: weights are large compared with Adam's steps

    def __init__(
        self,
        n_items: int,
        width: int,
        neighbours: int,
        counts: NeighbourCounts | None = None,
        shard: Shard | None = None,
    ) -> None:
        super().__init__()
        self.n_items, self.shard = n_items, shard

        def by_recency() -> Tensor:
            return (-1.5 - 1.5 * torch.arange(1, STEPS + 1).log()) / self.scale

        self.by_recency = nn.Parameter(compute_unless_meta((STEPS,), by_recency))
        self.by_total = nn.Parameter(torch.zeros(()))
        self.by_state = nn.Parameter(torch.zeros(STEPS, width))
        rows = n_items + 1
        if shard is not None:
            rows = len(range(rows)[shard.rows(1)])
        self.register_buffer("items", torch.full((rows, neighbours), n_items, dtype=torch.int32))
        self.register_buffer("shares", torch.zeros(rows, neighbours))
        self.register_buffer("totals", torch.zeros(rows))
        for name in ("own_shares", "own_totals"):
            self.register_buffer(name, torch.zeros(0, STEPS), persistent=False)
        if counts is not None:
            for name in ("items", "shares", "totals", "own_shares", "own_totals"):
                setattr(self, name, torch.from_numpy(getattr(counts, name)))

    def log_weights(self, state: Tensor, totals: Tensor) -> Tensor:
        """Return log σ(w) [B, J] for states [B, d] and totals [B, J]; MASKED for items without neighbours."""
        steps = totals.shape[1]
        weights = self.by_recency[:steps] + linear(state, self.by_state[:steps]) + self.by_total * totals.log1p()
        return logsigmoid(self.scale * weights).masked_fill(totals <= 0, MASKED)

    def logged_and_total(self, state: Tensor, event: Tensor) -> tuple[Tensor, Tensor]:
        """Return log Σ_j σ(w_j) share(a) of the logged item and log Σ_j σ(w_j), without its session: [B] each.

        Args:
            state: [B, d] the states.
            event: [B] the index of the logged event.
        """
        weights = self.log_weights(state, self.own_totals[event])
        largest = weights.amax(1)
        masses = (weights - largest[:, None]).exp()
        logged = (masses * self.own_shares[event]).sum(1).clamp(min=TINY).log()
        return logged + largest, masses.sum(1).log() + largest

    @torch.no_grad()
    def append_items(self, number: int) -> None:
        """Append items without neighbours to the catalogue."""
        known, total = self.n_items, self.n_items + number

        def extend(rows: Tensor, value: float) -> Tensor:
            new = rows.new_full((number, *rows.shape[1:]), value)
            return torch.cat([rows[:known], new, rows[known:]])

        self.items = extend(self.items.masked_fill(self.items == known, total), total)
        self.shares, self.totals = extend(self.shares, 0.0), extend(self.totals, 0.0)
        self.n_items = total

    def near(self, recent: Tensor) -> Tensor:
        """Return the neighbours of the recent items [B, H]: [B, C], padded with n_items."""
        return self._rows(recent[:, :STEPS], self.items).flatten(1).long()

    def mix(self, head: Head, recent: Tensor, lse: Tensor | None = None) -> Head:
        """Return the head with the neighbours of the recent items added.

        Args:
            head: The logits of B rows.
            recent: [B, H] items, most recent first and padded with n_items.
            lse: [B] the head's logsumexp; if None, it is computed in a pass over the catalogue.
        """
        recent = recent[:, :STEPS]
        totals, shares, near = (self._rows(recent, table) for table in (self.totals, self.shares, self.items))
        weights = self.log_weights(head.state, totals) + (logsumexp(head) if lse is None else lse)[:, None]
        largest = weights.amax(1, keepdim=True)
        mass = (weights - largest).exp()[:, :, None] * shares
        items, mass = merge(near.flatten(1).long(), mass.flatten(1), self.n_items)
        is_item = items < self.n_items
        clamped = items.clamp(max=self.n_items - 1)
        before = head.at(clamped)
        after = torch.logaddexp(before, mass.clamp(min=TINY).log() + largest)
        if head.replaces_base and head.items is not None:
            corrected = (items[:, :, None] == head.items[:, None, :]).any(-1)
            before = before.where(corrected, 0.0)
        return head.with_corrections(items, (after - before).where(is_item, 0.0))

    def _rows(self, items: Tensor, table: Tensor) -> Tensor:
        if self.shard is None:
            return table[items] if table.ndim == 1 else embedding(items, table)
        rows = self.shard.lookup(items, table if table.ndim == 2 else table[:, None])
        return rows if table.ndim == 2 else rows[..., 0]


def merge(items: Tensor, mass: Tensor, n_items: int) -> tuple[Tensor, Tensor]:
    """Add up the mass [B, C] of equal items [B, C] in each row. Empty slots contain n_items."""
    items, order = items.sort(1)
    is_new = torch.ones_like(items)
    is_new[:, 1:] = items[:, 1:] != items[:, :-1]
    slot = is_new.cumsum(1) - 1
    merged = torch.zeros_like(mass).scatter_add_(1, slot, mass.gather(1, order))
    return torch.full_like(items, n_items).scatter_(1, slot, items), merged
