"""Replace ids by consecutive integers: sessions in the order of first appearance, items in the order of their ids."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.types import Indices, Ints, Longs

PAGE_BITS = 12
MAX_PAGES = 1 << 22
MAX_TABLE_SIZE = 1 << 26
CHUNK_ROWS = 1 << 16  # so that a chunk's lookups stay in the processor's cache
INT32_LIMIT = 1 << 31  # longer columns need indices of 64 bits


def factorize_by_appearance(column: pl.Series) -> Indices:
    """Return integers for the values of a column: 0, 1, … in the order of first appearance.

    They have 64 bits if the column has 2³¹ rows or more, because it may contain as many different values.
    """
    starts = run_starts([column])
    run_values = column.filter(pl.Series(starts))
    runs: Indices = np.cumsum(starts, dtype=np.int32 if len(column) < INT32_LIMIT else np.int64)
    runs -= 1
    if run_values.null_count() == 0 and run_values.is_sorted():
        return runs
    distinct = run_values.unique(maintain_order=True)
    return runs if len(distinct) == len(run_values) else _look_up(run_values, distinct)[runs]


def run_starts(columns: list[pl.Series]) -> NDArray[np.bool_]:
    """Return whether each row differs from the previous row in at least one column. True for the first row."""
    differs = np.zeros(len(columns[0]), np.bool_)
    differs[:1] = True
    for column in columns:
        if column.dtype.is_integer() and not column.null_count():
            numbers = column.to_numpy()
            differs[1:] |= numbers[1:] != numbers[:-1]
        else:
            differs[1:] |= column[1:].ne_missing(column[:-1]).to_numpy()
    return differs


def factorize_sorted(column: pl.Series) -> tuple[Longs | list[str], Ints]:
    """Return the distinct ids in ascending order, and the index of each row's id among them."""
    if column.dtype.is_integer():
        result = _factorize_by_table(column.to_numpy())
        if result is not None:
            return result
    distinct = column.unique().sort()
    indices = _look_up(column, distinct)
    return (distinct.cast(pl.Int64).to_numpy() if distinct.dtype.is_integer() else distinct.to_list()), indices


def _look_up(column: pl.Series, distinct: pl.Series) -> Any:
    dtype = pl.Int32 if len(distinct) < INT32_LIMIT else pl.Int64
    table = pl.DataFrame({"id": distinct, "index": pl.int_range(len(distinct), dtype=dtype, eager=True)})
    joined = column.alias("id").to_frame().join(table, on="id", how="left", maintain_order="left", nulls_equal=True)
    return joined["index"].to_numpy()


def _factorize_by_table(ids: Longs | Ints) -> tuple[Longs, Ints] | None:
    """Factorize integers with a table of the pages of ids that occur. Return None if the ids are too sparse.

    It takes a quarter of the time of a join.
    """
    lowest = int(ids.min())
    if (int(ids.max()) - lowest) >> PAGE_BITS >= MAX_PAGES:
        return None
    chunks = [slice(begin, begin + CHUNK_ROWS) for begin in range(0, len(ids), CHUNK_ROWS)]
    pages = np.zeros(((int(ids.max()) - lowest) >> PAGE_BITS) + 1, np.bool_)
    for chunk in chunks:
        pages[(ids[chunk].astype(np.int64) - lowest) >> PAGE_BITS] = True
    if int(pages.sum()) << PAGE_BITS > MAX_TABLE_SIZE:
        return None
    # Added to an id, the shift of its page gives its slot in a table of only the pages that occur.
    shift = (np.cumsum(pages) - 1 - np.arange(len(pages))) << PAGE_BITS
    is_used = np.zeros(int(pages.sum()) << PAGE_BITS, np.bool_)
    slots = np.empty(len(ids), np.int32)
    for chunk in chunks:
        offset = ids[chunk].astype(np.int64) - lowest
        slots[chunk] = offset + shift[offset >> PAGE_BITS]
        is_used[slots[chunk]] = True
    indices = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
    used = np.flatnonzero(is_used)
    distinct = used - np.repeat(shift[pages], 1 << PAGE_BITS)[used] + lowest
    for chunk in chunks:
        slots[chunk] = indices[slots[chunk]]
    return distinct, slots
