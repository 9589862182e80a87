"""A head: a function over the whole catalogue that is never written out.

    z(a) = base(a) + Σ_h values[h] · 1[items[h] = a]        base(a) = state · table[a] + bias[a]

The sum is the short list of per-row corrections: the repeat term, a mask, a neighbourhood's scores. Where `instead` is
set, a corrected item loses its base: z(a) is the sum alone. Every policy, learned or not, is such a head, so ranking,
top-k and probabilities are written once for all of them.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

MASKED = -1e30  # finite: 0 · (−inf) would be NaN


@dataclass(frozen=True)
class Head:
    state: Tensor  # [B, d]; d may be 0
    table: Tensor  # [A, d]
    bias: Tensor | None = None  # [A]
    items: Tensor | None = None  # [B, H] items corrected; equal ones add up; A and above are padding
    values: Tensor | None = None  # [B, H]
    instead: bool = False  # corrections stand instead of the base, not on top of it

    def __post_init__(self) -> None:
        if self.state.ndim != 2 or self.table.ndim != 2 or self.state.shape[1] != self.table.shape[1]:
            raise ValueError(f"state {tuple(self.state.shape)} and table {tuple(self.table.shape)} do not meet")
        if self.bias is not None and self.bias.shape != self.table.shape[:1]:
            raise ValueError(f"bias {tuple(self.bias.shape)} does not fit table {tuple(self.table.shape)}")
        if (self.items is None) != (self.values is None):
            raise ValueError("corrections need both items and values")
        if self.items is not None and self.values is not None:
            rows = self.state.shape[0]
            if self.items.shape != self.values.shape or self.items.ndim != 2 or self.items.shape[0] != rows:
                raise ValueError(f"corrections {tuple(self.items.shape)} / {tuple(self.values.shape)} for {rows} rows")

    @property
    def rows(self) -> int:
        return self.state.shape[0]

    @property
    def n_items(self) -> int:
        return self.table.shape[0]

    def at(self, actions: Tensor) -> Tensor:
        """z at given actions: [B, n] → [B, n]."""
        z = torch.einsum("bd,bnd->bn", self.state, self.table[actions])
        if self.bias is not None:
            z = z + self.bias[actions]
        if self.items is not None and self.values is not None:
            same = self.items[:, None, :] == actions[:, :, None]  # [B, n, H]
            z = z.masked_fill(same.any(-1), 0.0) if self.instead else z
            z = z + torch.where(same, self.values[:, None, :], 0.0).sum(-1)  # 0 · NaN would spoil the whole row
        return z

    def corrected(self, items: Tensor, values: Tensor) -> "Head":
        """The same head with more corrections."""
        if self.items is None or self.values is None:
            return replace(self, items=items, values=values)
        return replace(self, items=torch.cat([self.items, items], 1), values=torch.cat([self.values, values], 1))

    def masked(self, items: Tensor) -> "Head":
        """The same head where `items` [B, H] can no longer be chosen (padding: n_items)."""
        return self.corrected(items, torch.full(items.shape, MASKED, dtype=self.state.dtype, device=items.device))

    def rows_slice(self, first: int, last: int) -> "Head":
        return replace(
            self,
            state=self.state[first:last],
            items=None if self.items is None else self.items[first:last],
            values=None if self.values is None else self.values[first:last],
        )
