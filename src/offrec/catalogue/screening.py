"""The k best items of each row on a CPU, in two steps: a fast pass over the catalogue, then exact values of few items.

The pass computes z̃(a) with |z̃(a) − z(a)| ≤ e for all items of a row. Let t be the k-th largest z̃. Then k items have
z ≥ t − e, so each of the k best items has z ≥ t − e and z̃ ≥ t − 2e. All items with z̃ ≥ t − 2e are read again, in double
precision, and sorted. So the lists of a pass depend neither on its precision nor on the other rows of a batch.

The bound e is not an estimate. It follows from the largest norms of the table's rows and of their rounding errors.
Items that a head corrects take no part in the pass: their values are computed exactly. If many items are within 2e of
the k-th best, or a bound is infinite, the pass fails. It is repeated with float32 products, whose bound is lower. If
that fails too, the caller reads all values in float32; then near ties may be sorted differently.
"""

import time
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from offrec.catalogue.head import Head

MIN_ITEMS = 10_000  # smaller catalogues fit into the cache, and one pass in float32 is as fast
MIN_BFLOAT16_ROWS = 8  # a bfloat16 product of fewer rows is not faster: both read the table from memory
ROWS_AT_ONCE = 1 << 15  # of the table, when its norms and its copy are computed
FLOAT32, BFLOAT16 = 2.0**-24, 2.0**-8  # largest relative errors of rounding to nearest
UNDERFLOW = 1e-30  # bfloat16 products may flush denormal numbers to 0


@dataclass
class Passes:
    """Counts the passes of a screening."""

    float32: int = 0
    bfloat16: int = 0
    repeated: int = 0  # all values were read again in float32, because many items were near the k-th best


class Screening:
    """What a pass over an item table needs to bound its errors and, if it is faster on this CPU, a bfloat16 copy.

    Args:
        head: A head with the table and the bias. Their values must not change afterwards.
        bfloat16: Whether to use a bfloat16 copy for passes without logsumexp; None to measure whether it is faster.

    Attributes:
        uses_bfloat16: Whether a bfloat16 copy is used. It is created by the first pass that reads it.
        passes: Counts the passes.
    """

    def __init__(self, head: Head, bfloat16: bool | None = None) -> None:
        self.passes = Passes()
        self.uses_bfloat16 = is_bfloat16_faster(head.table.shape[1]) if bfloat16 is None else bfloat16
        self.norm = max(float(part.norm(dim=1).max()) for part in torch.split(head.table, ROWS_AT_ONCE))
        self.largest_bias = 0.0 if head.bias is None else float(head.bias.abs().max())
        self._sample = _sample_of(head)
        self._rounded: _RoundedTable | None = None

    @staticmethod
    def supports(head: Head) -> bool:
        """Return whether lists of such heads can be screened."""
        return (
            head.state.device.type == "cpu"
            and head.state.dtype == head.table.dtype == torch.float32
            and head.state.shape[1] > 0
            and head.shard is None
            and head.support is None
            and head.full_precision is None
            and head.n_items >= MIN_ITEMS
        )

    def fits(self, head: Head) -> bool:
        """Return whether a sample of the rows of a head's table, and of its bias, equals the screening's."""
        own, other = self._sample, _sample_of(head)
        return own.shape == other.shape and torch.equal(own, other)

    def product(self, head: Head, precise: bool) -> "Product":
        """Return the product for a pass over a head.

        Args:
            head: The head.
            precise: Whether to use float32, as a logsumexp needs, because it sums errors.
        """
        if precise or head.n_rows < MIN_BFLOAT16_ROWS or not self.uses_bfloat16:
            return Product.in_float32(self, head)
        if self._rounded is None:
            self._rounded = _RoundedTable.of(head.table, head.bias)
        return Product.in_bfloat16(self._rounded, head)


def _sample_of(head: Head) -> Tensor:
    rows = slice(0, None, max(1, head.n_items // 16))
    if head.bias is None:
        return head.table[rows].clone()
    return torch.cat([head.table[rows], head.bias[rows, None]], 1)


@dataclass(frozen=True)
class _RoundedTable:
    """A bfloat16 copy of a table. Two more columns contain the bias, as a sum of two bfloat16 numbers.

    The means of the rows and of the bias are subtracted before rounding. That changes all values of a state by the same
    number, so the order stays the same, and the errors of smaller numbers are smaller.
    """

    table: Tensor  # [A, d + 2]
    norm: float  # the largest norm of a row, before rounding
    error: float  # the largest norm of a row's rounding error
    largest_bias: float

    @staticmethod
    def of(table: Tensor, bias: Tensor | None) -> "_RoundedTable":
        copy = torch.zeros(len(table), table.shape[1] + 2, dtype=torch.bfloat16)
        mean, norm, error = table.mean(0).double(), 0.0, 0.0
        for first in range(0, len(table), ROWS_AT_ONCE):
            own = slice(first, first + ROWS_AT_ONCE)
            part, rows = copy[own, :-2], table[own] - mean
            part.copy_(rows)
            norm = max(norm, float(rows.norm(dim=1).max()))
            error = max(error, float((rows - part).norm(dim=1).max()))
        if bias is None:
            return _RoundedTable(copy, norm, error, 0.0)
        centred = bias.double() - bias.double().mean()
        copy[:, -2] = centred
        copy[:, -1] = centred - copy[:, -2]
        return _RoundedTable(copy, norm, error, float(centred.abs().max()))


@dataclass(frozen=True)
class Product:
    """Values z̃ of all items, tile by tile, with [items, rows]: this product is faster than with [rows, items]."""

    table: Tensor  # [A, K]
    columns: Tensor  # [K, B]
    bias: Tensor | None  # [A], unless it is part of the table
    error: Tensor  # [B] e
    rounding: float  # the relative error of rounding z̃ itself, next to e

    @staticmethod
    def in_float32(table: Screening, head: Head) -> "Product":
        sizes = head.state.double().norm(dim=1) * table.norm + table.largest_bias  # Σ |state · row| + |bias| at most
        error = 1.01 * (head.state.shape[1] + 4) * FLOAT32 * sizes + UNDERFLOW
        return Product(head.table, head.state.T, head.bias, error.float(), 0.0)

    @staticmethod
    def in_bfloat16(table: _RoundedTable, head: Head) -> "Product":
        state = head.state.bfloat16()
        exact, own = head.state.double(), state.double()
        of_operands = own.norm(dim=1) * table.error + (exact - own).norm(dim=1) * table.norm
        sizes = own.norm(dim=1) * (table.norm + table.error) + table.largest_bias * (1 + BFLOAT16)
        of_sums = (table.table.shape[1] + 8) * 2 * FLOAT32 * sizes  # products are summed in float32
        error = 1.01 * (of_operands + of_sums + table.largest_bias * BFLOAT16**2) + UNDERFLOW
        columns = torch.cat([state, state.new_ones(len(state), 2)], 1).T
        return Product(table.table, columns, None, error.float(), BFLOAT16)

    def lower_bound(self, kth: Tensor) -> Tensor:
        """Return the smallest z̃ that an item of the k best can have, if the k-th largest z̃ is `kth` [B]."""
        bound = kth - 2.02 * self.error - 2.02 * self.rounding * kth.abs()
        return bound.nan_to_num(nan=-torch.inf)  # kth is −∞ while a row has fewer than k items

    def tile(self, first: int, last: int, out: Tensor) -> None:
        """Compute z̃ of items first … last − 1 into out [items, B]."""
        rows = self.table[first:last]
        if self.bias is None:
            torch.mm(rows, self.columns, out=out)
        else:
            torch.addmm(self.bias[first:last, None], rows, self.columns, out=out)


@cache
def is_bfloat16_faster(width: int, rows: int = 32, items: int = 8192) -> bool:
    """Measure whether a bfloat16 product over a table of this width takes at most 3/4 of the time of float32."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        table, columns = torch.ones(items, width, dtype=dtype), torch.ones(width, rows, dtype=dtype)
        out = torch.empty(items, rows, dtype=dtype)
        times = []
        for _ in range(4):
            start = time.process_time()  # of all threads: other processes do not change it
            torch.mm(table, columns, out=out)
            times.append(time.process_time() - start)
        seconds[dtype] = min(times[1:])
    return seconds[torch.bfloat16] < 0.75 * seconds[torch.float32]
