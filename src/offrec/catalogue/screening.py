"""The k best items of each row on a CPU, in two steps: a fast pass over the catalogue, then exact values of few items.

The pass computes z̃(a) with |z̃(a) − z(a)| ≤ e for all items of a row. Let t be the k-th largest z̃. Then k items have
z ≥ t − e, so each of the k best items has z ≥ t − e and z̃ ≥ t − 2e. All items with z̃ ≥ t − 2e are read again, in double
precision, and sorted. So the lists of a pass depend neither on its precision nor on the other rows of a batch.

The bound e is not an estimate. It follows from the largest norms of the table's rows and of their rounding errors.
Items that a head corrects take no part in the pass: their values are computed exactly. If many items are within 2e of
the k-th best, or a bound is infinite, the pass fails. It is repeated with float32 products, whose bound is lower. If
that fails too, the caller reads all values in float32; then near ties may be sorted differently.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from offrec.catalogue.head import Head
from offrec.catalogue.products import least_time, table_by_states

MIN_ITEMS = 10_000  # smaller catalogues fit into the cache, and one pass in float32 is as fast
ROWS_AT_ONCE = 1 << 15  # of the table, when its norms and its copy are computed
FLOAT32 = 2.0**-24  # largest relative error of rounding to nearest
UNDERFLOW = 1e-30  # products may flush denormal numbers to 0
LARGEST = 127  # int8 numbers are between −127 and 127
LARGEST_BIAS = 1 << 20  # in the unit of an int8 product
MAX_INT8_WIDTH = 512  # larger sums may be inexact as float32


@dataclass
class Passes:
    """Counts the passes of a screening."""

    float32: int = 0
    int8: int = 0
    repeated: int = 0  # of int8 or float32 that failed, because many items were near the k-th best


class Screening:
    """What a pass over an item table needs to bound its errors and, if it is faster on this CPU, an int8 copy.

    Args:
        head: A head with the table and the bias. Their values must not change afterwards.
        int8: Whether to use an int8 copy for passes without logsumexp; None to measure whether it is faster.

    Attributes:
        uses_int8: Whether an int8 copy is used. It is created by the first pass that reads it.
        passes: Counts the passes.
    """

    def __init__(self, head: Head, int8: bool | None = None) -> None:
        self.passes = Passes()
        width = head.table.shape[1]
        self.uses_int8 = width <= MAX_INT8_WIDTH and (is_int8_faster(width) if int8 is None else int8)
        norms = [part.norm(dim=1).max() for part in torch.split(head.table, ROWS_AT_ONCE)]
        self.norm = float(torch.stack(norms).max())  # NaN if a weight is NaN, so that passes fail
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
        if precise or not self.uses_int8:
            return Product.in_float32(self, head)
        if self._rounded is None:
            self._rounded = _RoundedTable.of(head.table, head.bias)
        return Product.in_int8(self, self._rounded, head)

    def sizes(self, head: Head) -> Tensor:
        """Return Σ |state · row| + |bias| at most: [B]."""
        norm: Tensor = head.state.double().norm(dim=1)
        return norm * self.norm + self.largest_bias


def _sample_of(head: Head) -> Tensor:
    rows = slice(0, None, max(1, head.n_items // 16))
    if head.bias is None:
        return head.table[rows].clone()
    return torch.cat([head.table[rows], head.bias[rows, None]], 1)


@dataclass(frozen=True)
class _RoundedTable:
    """An int8 copy of a table, and the bias in float32.

    The mean of each column is subtracted before rounding, and the mean of the bias. That changes all values of a state
    by the same number, so the order stays the same. Each column has its own unit: its largest number becomes 127.
    """

    table: Tensor  # [A, d] int8
    units: Tensor  # [d] double
    norm: float  # the largest norm of a row in these units, before rounding
    error: float  # the largest norm of a row's rounding error, in these units
    bias: Tensor | None  # [A]
    largest_bias: float

    @staticmethod
    def of(table: Tensor, bias: Tensor | None) -> "_RoundedTable":
        parts = torch.split(table, ROWS_AT_ONCE)
        mean = torch.stack([part.double().sum(0) for part in parts]).sum(0) / len(table)
        largest = torch.stack([(part - mean).abs().amax(0) for part in parts]).amax(0)
        units = torch.where(largest > 0, largest / LARGEST, 1.0)
        copy = torch.empty(table.shape, dtype=torch.int8)
        norms, errors = [], []
        for own, part in zip(torch.split(copy, ROWS_AT_ONCE), parts, strict=True):
            exact = (part - mean) / units
            rounded = exact.round()
            own.copy_(rounded)
            norms.append(exact.norm(dim=1).max())
            errors.append((exact - rounded).norm(dim=1).max())
        norm, error = (float(torch.stack(each).max()) for each in (norms, errors))
        centred = None if bias is None else (bias.double() - bias.double().mean()).float()
        return _RoundedTable(copy, units, norm, error, centred, 0.0 if centred is None else float(centred.abs().max()))


@dataclass(frozen=True)
class Product:
    """Values z̃ of all items, tile by tile, with [items, rows]: this product is faster than with [rows, items].

    Values of an int8 product are integers in a unit of their own, and a constant per row is subtracted from them.
    """

    table: Tensor  # [A, K]
    state: Tensor  # [B, K]
    bias: Tensor | None  # [A]
    error: Tensor  # [B] e, in this unit
    unit: float

    @staticmethod
    def in_float32(table: Screening, head: Head) -> "Product":
        error = 1.01 * (head.state.shape[1] + 4) * FLOAT32 * table.sizes(head) + UNDERFLOW
        return Product(head.table, head.state, head.bias, error.float(), 1.0)

    @staticmethod
    def in_int8(table: Screening, rounded: _RoundedTable, head: Head) -> "Product":
        state = head.state.double() * rounded.units
        largest = float(state.abs().max()) if head.n_rows else 0.0
        unit = max(largest / LARGEST, rounded.largest_bias / LARGEST_BIAS) or 1.0
        state /= unit
        own = state.round()
        of_operands = own.norm(dim=1) * rounded.error + (state - own).norm(dim=1) * rounded.norm
        of_values = (FLOAT32 * table.sizes(head) + UNDERFLOW) / unit  # exact values are rounded to float32
        error = 1.01 * (of_operands + of_values) + 1.0  # 1 for the bias; sums of integers are exact
        bias = None if rounded.bias is None else (rounded.bias / unit).round_().int()
        return Product(rounded.table, own.to(torch.int8), bias, error.float(), unit)

    @property
    def is_exact(self) -> bool:
        """Whether the values are sums of integers."""
        return self.table.dtype == torch.int8

    @property
    def lowest(self) -> float:
        """A value below all others."""
        return torch.iinfo(torch.int32).min if self.is_exact else -torch.inf

    def lower_bound(self, kth: Tensor) -> Tensor:
        """Return the smallest z̃ that an item of the k best can have, if the k-th largest z̃ is `kth` [B]."""
        return (kth - 2.02 * self.error).nan_to_num(nan=-torch.inf)  # kth is −∞ while a row has fewer than k items

    def buffer(self, items: int) -> Tensor:
        """Create a buffer for a tile."""
        return torch.empty(items, len(self.state), dtype=torch.int32 if self.is_exact else torch.float32)

    def tile(self, first: int, last: int, out: Tensor) -> None:
        """Compute z̃ of items first … last − 1 into out [items, B]."""
        rows = self.table[first:last]
        values = torch._int_mm(rows, self.state.T, out=out) if self.is_exact else table_by_states(rows, self.state, out)
        if self.bias is not None:
            torch.add(values, self.bias[first:last, None], out=out)
        elif values is not out:
            out.copy_(values)


@cache
def is_int8_faster(width: int) -> bool:
    """Return whether int8 products over a table of this width are exact, and are faster on this CPU."""
    return _is_int8_exact(width) and has_fast_int8()


@cache
def has_fast_int8(width: int = 64) -> bool:
    """Measure whether an int8 product takes at most 3/4 of float32's time on this CPU.

    The result for one width is used for all, so that a server measures only once, before it starts threads.
    """
    if not _is_int8_exact(width):
        return False
    table, own, sums = _int8_operands(width)
    floats, state, out = table.float(), own.float(), torch.empty(sums.shape)
    seconds = least_time(lambda: torch._int_mm(table, own.T, out=sums))
    return seconds < 0.75 * least_time(lambda: table_by_states(floats, state, out))


def _is_int8_exact(width: int) -> bool:
    table, own, sums = _int8_operands(width)
    try:
        torch._int_mm(table, own.T, out=sums)
    except (AttributeError, RuntimeError):  # a private function, which another version may not have
        return False
    expected = LARGEST**2 * width
    return bool((sums[:, ::2] == expected).all() and (sums[:, 1::2] == -expected).all())


def _int8_operands(width: int, rows: int = 32, items: int = 8192) -> tuple[Tensor, Tensor, Tensor]:
    """Return a table [items, width], states [rows, width] whose products are the largest possible, and a buffer."""
    table = torch.full((items, width), LARGEST, dtype=torch.int8)
    own = table[:rows].clone()
    own[1::2] = -LARGEST
    return table, own, torch.empty(items, rows, dtype=torch.int32)
