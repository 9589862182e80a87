"""A head: a function over the whole catalogue that is never materialised.

    z(a) = base(a) + Σ_h values[h] · 1[items[h] = a]        base(a) = state · table[a] + bias[a]

The sum is a short list of corrections per row: the repeat term, a mask, the scores of neighbours. With `replaces_base`
a corrected item has no base: z(a) is only the sum. With `support`, items below a bound in another head are masked.
Every policy, learned or not, is a head, so ranking, top-k and probabilities are implemented once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import embedding

from offrec.catalogue.backend import kernels_read
from offrec.catalogue.corrections import UniqueItems, sum_matching
from offrec.catalogue.shard import Shard

MASKED = -1e30  # finite: 0 · (−inf) would be NaN
ALL_MASKED = MASKED / 10  # a logsumexp below this means that every item of the row is masked
MAX_COMPARISONS = 1 << 24  # (action, correction) pairs compared at once


@dataclass(frozen=True)
class Support:
    """A constraint on the items of each row: their value in another head must reach a bound."""

    head: "Head"
    bound: Tensor  # [B]


@dataclass(frozen=True)
class Head:
    """Logits z(a) of B rows over a catalogue of A items, in factored form.

    Example:
        >>> state, table = torch.randn(32, 64), torch.randn(50_000, 64)
        >>> top_k(Head(state, table), 10)[1].shape
        torch.Size([32, 10])

    Raises:
        ValueError: If the shapes of the tensors do not fit together.
    """

    state: Tensor  # [B, d]; d may be 0
    table: Tensor  # [A, d]
    bias: Tensor | None = None  # [A]
    items: Tensor | None = None  # [B, H] corrected items; duplicates add up; indices from A on are padding
    values: Tensor | None = None  # [B, H] the corrections
    replaces_base: bool = False  # whether corrections replace the base instead of being added to it
    support: Support | None = None  # items outside the support are MASKED
    corrections_merged: bool = False  # an item's first occurrence has its whole correction, others 0
    unique: UniqueItems | None = None  # `items` without duplicates, if already computed
    full_precision: "Head | None" = None  # the float32 head of a bfloat16 one; single items are read from it
    shard: Shard | None = None  # the range of items in `table` and `bias`, if other ranks store the others

    def __post_init__(self) -> None:
        if self.state.ndim != 2 or self.table.ndim != 2 or self.state.shape[1] != self.table.shape[1]:
            raise ValueError(
                f"state {tuple(self.state.shape)} does not fit table {tuple(self.table.shape)}; "
                "expected [rows, width] and [items, width]"
            )
        if self.bias is not None and self.bias.shape != self.table.shape[:1]:
            raise ValueError(f"bias {tuple(self.bias.shape)} does not fit table {tuple(self.table.shape)}")
        if (self.items is None) != (self.values is None):
            raise ValueError("corrections need both items and values")
        if self.items is not None and self.values is not None:
            rows = self.state.shape[0]
            if self.items.shape != self.values.shape or self.items.ndim != 2 or self.items.shape[0] != rows:
                shapes = f"items {tuple(self.items.shape)} and values {tuple(self.values.shape)}"
                raise ValueError(f"corrections have {shapes}; expected one shape [rows, n] for {rows} rows")
        if self.support is not None and (
            self.support.head.n_rows != self.n_rows
            or self.support.head.n_items != self.n_items
            or self.support.bound.shape != self.state.shape[:1]
        ):
            raise ValueError(f"support needs a head and bounds for {self.n_rows} rows and {self.n_items} items")

    @property
    def n_rows(self) -> int:
        """B, the number of rows."""
        return self.state.shape[0]

    @property
    def n_items(self) -> int:
        """A, the number of items in the catalogue."""
        return self.table.shape[0] if self.shard is None else self.shard.n_items

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values: at least float32, for operands of any dtype."""
        return torch.promote_types(self.state.dtype, torch.float32)

    @property
    def product_error(self) -> float:
        """The largest error of a pass over the catalogue, relative to Σ |state · row|.

        Operands have a mantissa of 7 bits in bfloat16 and of 10 bits in TF32, and both operands are rounded.
        """
        if self.state.dtype == torch.bfloat16:
            return 2.0**-7
        return 2.0**-9 if self.state.is_cuda and torch.get_float32_matmul_precision() != "highest" else 0.0

    @property
    def base(self) -> "Head":
        """The head without corrections and without support."""
        if self.items is None and self.support is None:
            return self
        return Head(self.state, self.table, self.bias, shard=self.shard)

    def at(self, actions: Tensor) -> Tensor:
        """Compute z at actions [B, n]: [B, n]."""
        return self.apply_corrections(self.base_at(actions), actions)

    def base_at(self, actions: Tensor) -> Tensor:
        """Compute the base at actions [B, n]: [B, n]."""
        if self.full_precision is not None:
            return self.full_precision.base_at(actions)
        if self.shard is not None:
            from offrec.catalogue import sharded  # it imports this module

            return sharded.base_at(self, actions)
        if self.state.dtype == self.table.dtype and kernels_read(self.table, actions):
            from offrec.catalogue.triton.few_items import values_at  # needs triton

            return values_at(self.state, self.table, self.bias, actions)
        rows, state = embedding(actions, self.table).to(self.dtype), self.state.to(self.dtype)
        # On a GPU, a matrix product could use TF32; values of individual items are computed in full precision.
        z = (state[:, None] * rows).sum(-1) if state.is_cuda else torch.einsum("bd,bnd->bn", state, rows)
        return z if self.bias is None else z + self.bias[actions]

    def rows(self, items: Tensor) -> Tensor:
        """Return the table's rows at items [B]: [B, d]."""
        return self.table[items] if self.shard is None else self.shard.lookup(items, self.table)

    def apply_corrections(self, z: Tensor, actions: Tensor) -> Tensor:
        """Apply the head's corrections to the base values z [B, n] at actions [B, n]."""
        if self.items is not None and self.items.numel() * actions.shape[1] > MAX_COMPARISONS and actions.shape[1] > 1:
            width = max(1, MAX_COMPARISONS // self.items.numel())
            parts = zip(torch.split(z, width, 1), torch.split(actions, width, 1), strict=True)
            return torch.cat([self.apply_corrections(*part) for part in parts], 1)
        if self.items is not None and self.values is not None:
            if self.replaces_base:
                z = z.masked_fill((self.items[:, None, :] == actions[:, :, None]).any(-1), 0.0)
            z = z + sum_matching(self.values, self.items, actions)
        if self.support is not None:
            z = z.masked_fill(self.support.head.at(actions) < self.support.bound[:, None], MASKED)
        return z

    def with_corrections(self, items: Tensor, values: Tensor) -> "Head":
        """Return the head with further corrections [B, H]."""
        if self.items is not None and self.values is not None:
            items, values = torch.cat([self.items, items], 1), torch.cat([self.values, values], 1)
        return replace(self, items=items, values=values, corrections_merged=False, unique=None)

    def mask(self, items: Tensor) -> "Head":
        """Return the head with items [B, H] masked, so that they cannot be chosen (padding: n_items)."""
        return self.with_corrections(items, torch.full(items.shape, MASKED, dtype=self.dtype, device=items.device))

    def detach(self) -> "Head":
        """Return the head with all its tensors detached from the graph."""
        return replace(
            self,
            state=self.state.detach(),
            table=self.table.detach(),
            bias=None if self.bias is None else self.bias.detach(),
            values=None if self.values is None else self.values.detach(),
            support=None if self.support is None else Support(self.support.head.detach(), self.support.bound.detach()),
            full_precision=self.full_precision and self.full_precision.detach(),
        )

    def scale(self, factor: float | Tensor) -> "Head":
        """Return the head with values factor · z; the factor is positive."""
        return replace(
            self,
            state=self.state * factor,
            bias=None if self.bias is None else self.bias * factor,
            values=None if self.values is None else self.values * factor,
            full_precision=self.full_precision and self.full_precision.scale(factor),
        )

    def as_bfloat16(self, converted: dict[int, Tensor] | None = None) -> "Head":
        """Return the head with bfloat16 operands for products over the catalogue.

        Single items are still read in full precision; otherwise the gradients of a frequent item would be summed in
        bfloat16.

        Args:
            converted: Tables already converted in this update, by the address of the original. Pass one dictionary for
                several heads to convert a table that they share only once.
        """
        converted = {} if converted is None else converted
        table = converted.get(self.table.data_ptr())
        if table is None or table.shape != self.table.shape or (self.table.requires_grad > table.requires_grad):
            table = converted[self.table.data_ptr()] = self.table.bfloat16()
        table = table if self.table.requires_grad else table.detach()
        return replace(self, state=self.state.bfloat16(), table=table, full_precision=self.base)

    def slice_rows(self, first: int, last: int) -> "Head":
        """Return the head of the rows first … last − 1."""
        support = self.support
        return replace(
            self,
            state=self.state[first:last],
            items=None if self.items is None else self.items[first:last],
            values=None if self.values is None else self.values[first:last],
            support=support and Support(support.head.slice_rows(first, last), support.bound[first:last]),
            unique=None,
            full_precision=self.full_precision and self.full_precision.slice_rows(first, last),
        )


Linear = Sequence[tuple[float | Tensor, Head]]  # the terms (c_i, z_i) of Σ_i c_i z_i; a tensor c_i is 0-d
UpperBound = tuple[Head, Tensor]  # a head, and an upper bound [B] on its values
