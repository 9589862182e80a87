"""A head: a function over the whole catalogue that is never written out.

    z(a) = base(a) + Σ_h values[h] · 1[items[h] = a]        base(a) = state · table[a] + bias[a]

The sum is the short list of per-row corrections: the repeat term, a mask, a neighbourhood's scores. Where `instead` is
set, a corrected item loses its base: z(a) is the sum alone. Where `support` is set, items that another head puts below
a bound are masked. Every policy, learned or not, is such a head, so ranking, top-k and probabilities are written once
for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import embedding

from offrec.catalogue.backend import kernels_fit, matched

MASKED = -1e30  # finite: 0 · (−inf) would be NaN
ALL_MASKED = MASKED / 10  # a logsumexp this low says that nothing is left to choose from
PAIRS = 1 << 24  # actions held against corrections at a time


@dataclass(frozen=True)
class Support:
    """Only items of a certain value in another head, the δ-behaviour policy's constraint: z(a) ≥ bound."""

    head: "Head"
    bound: Tensor  # [B]


@dataclass(frozen=True)
class Head:
    state: Tensor  # [B, d]; d may be 0
    table: Tensor  # [A, d]
    bias: Tensor | None = None  # [A]
    items: Tensor | None = None  # [B, H] items corrected; equal ones add up; A and above are padding
    values: Tensor | None = None  # [B, H]
    replaces_base: bool = False  # corrections stand instead of the base, not on top of it
    support: Support | None = None  # items below its bound are MASKED, whatever their value here
    corrections_merged: bool = False  # an item's whole correction stands at its first place of the row, 0 at its others
    full_precision: "Head | None" = None  # the head before its operands became bfloat16; single items are read from it

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
        if self.support is not None and (
            self.support.head.n_rows != self.n_rows
            or self.support.head.n_items != self.n_items
            or self.support.bound.shape != self.state.shape[:1]
        ):
            raise ValueError(f"support needs a head and bounds for {self.n_rows} rows and {self.n_items} items")

    @property
    def n_rows(self) -> int:
        return self.state.shape[0]

    @property
    def n_items(self) -> int:
        return self.table.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """What values are computed in: at least single precision."""
        return torch.promote_types(self.state.dtype, torch.float32)

    @property
    def product_error(self) -> float:
        """What a pass over the catalogue may be off by, as a share of Σ |state · row|: operands of seven bits, or of
        ten (TF32) where torch is told so, both rounded.
        """
        if self.state.dtype == torch.bfloat16:
            return 2.0**-7
        return 2.0**-9 if self.state.is_cuda and torch.get_float32_matmul_precision() != "highest" else 0.0

    @property
    def base(self) -> "Head":
        """The same head without corrections and without `support`."""
        if self.items is None and self.support is None:
            return self
        return Head(self.state, self.table, self.bias)

    def at(self, actions: Tensor) -> Tensor:
        """z at given actions: [B, n] → [B, n]."""
        return self.apply_corrections(self.base_at(actions), actions)

    def apply_corrections(self, z: Tensor, actions: Tensor) -> Tensor:
        """z at given actions from the base's z there."""
        if self.items is not None and self.items.numel() * actions.shape[1] > PAIRS and actions.shape[1] > 1:
            width = max(1, PAIRS // self.items.numel())
            parts = zip(torch.split(z, width, 1), torch.split(actions, width, 1), strict=True)
            return torch.cat([self.apply_corrections(*part) for part in parts], 1)
        if self.items is not None and self.values is not None:
            if self.replaces_base:
                z = z.masked_fill((self.items[:, None, :] == actions[:, :, None]).any(-1), 0.0)
            z = z + matched(self.values, self.items, actions)
        if self.support is not None:
            z = z.masked_fill(self.support.head.at(actions) < self.support.bound[:, None], MASKED)
        return z

    def base_at(self, actions: Tensor) -> Tensor:
        """The base at given actions: [B, n] → [B, n]."""
        if self.full_precision is not None:
            return self.full_precision.base_at(actions)
        if self.state.dtype == self.table.dtype and kernels_fit(self.table, actions):
            from offrec.catalogue.triton.few_items import values_at  # needs triton

            return values_at(self.state, self.table, self.bias, actions)
        rows, state = embedding(actions, self.table).to(self.dtype), self.state.to(self.dtype)
        # on a GPU a matrix product may be TF32, and what is asked of few items is asked exactly
        z = (state[:, None] * rows).sum(-1) if state.is_cuda else torch.einsum("bd,bnd->bn", state, rows)
        return z if self.bias is None else z + self.bias[actions]

    def with_corrections(self, items: Tensor, values: Tensor) -> "Head":
        """The same head with more corrections."""
        if self.items is None or self.values is None:
            return replace(self, items=items, values=values, corrections_merged=False)
        both = torch.cat([self.items, items], 1), torch.cat([self.values, values], 1)
        return replace(self, items=both[0], values=both[1], corrections_merged=False)

    def mask(self, items: Tensor) -> "Head":
        """The same head where `items` [B, H] can no longer be chosen (padding: n_items)."""
        return self.with_corrections(items, torch.full(items.shape, MASKED, dtype=self.dtype, device=items.device))

    def detach(self) -> "Head":
        """The same values, held fixed."""
        return replace(
            self,
            state=self.state.detach(),
            table=self.table.detach(),
            bias=None if self.bias is None else self.bias.detach(),
            values=None if self.values is None else self.values.detach(),
            support=None if self.support is None else Support(self.support.head.detach(), self.support.bound.detach()),
            full_precision=self.full_precision and self.full_precision.detach(),
        )

    def scale(self, by: float | Tensor) -> "Head":
        """by · z, where `by` is a positive number."""
        return replace(
            self,
            state=self.state * by,
            bias=None if self.bias is None else self.bias * by,
            values=None if self.values is None else self.values * by,
            full_precision=self.full_precision and self.full_precision.scale(by),
        )

    def as_bfloat16(self, known: dict[int, Tensor] | None = None) -> "Head":
        """Operands of products as bfloat16. What is asked of few items is still read from the wide ones, so that an
        item taken often does not sum up its gradients in bfloat16. `known`: narrow tables, by where the wide ones lie.
        """
        known = {} if known is None else known
        narrow = known.get(self.table.data_ptr())
        if narrow is None or narrow.shape != self.table.shape or (self.table.requires_grad > narrow.requires_grad):
            narrow = known[self.table.data_ptr()] = self.table.bfloat16()
        table = narrow if self.table.requires_grad else narrow.detach()
        return replace(self, state=self.state.bfloat16(), table=table, full_precision=self.base)

    def slice_rows(self, first: int, last: int) -> "Head":
        support = self.support
        return replace(
            self,
            state=self.state[first:last],
            items=None if self.items is None else self.items[first:last],
            values=None if self.values is None else self.values[first:last],
            support=support and Support(support.head.slice_rows(first, last), support.bound[first:last]),
            full_precision=self.full_precision and self.full_precision.slice_rows(first, last),
        )


Linear = Sequence[tuple[float | Tensor, Head]]  # Σ_i c_i z_i: coefficients (0-d where tensors) and heads
UpperBound = tuple[Head, Tensor]  # a head, and a bound [B] on its values
