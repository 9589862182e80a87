"""Ids to numbers without gaps: sessions as they first appear, items by their id."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.types import Ints, Longs

PAGE_BITS = 12
MOST_PAGES = 1 << 22
MOST_PLACES = 1 << 26
ROWS_AT_ONCE = 1 << 16  # what is looked up stays in the cache


def factorize_by_appearance(column: pl.Series) -> Ints:
    """Equal values get equal numbers, 0, 1, … in the order of their first appearance."""
    starts = run_starts([column])
    heads = column.filter(pl.Series(starts))
    runs: Ints = np.cumsum(starts, dtype=np.int32)
    runs -= 1
    if heads.null_count() == 0 and heads.is_sorted():
        return runs
    distinct = heads.unique(maintain_order=True)
    return runs if len(distinct) == len(heads) else _looked_up(heads, distinct)[runs]


def run_starts(columns: list[pl.Series]) -> NDArray[np.bool_]:
    """Where a value of any of the columns differs from the one before."""
    changed = np.zeros(len(columns[0]), np.bool_)
    changed[:1] = True
    for column in columns:
        if column.dtype.is_integer() and not column.null_count():
            numbers = column.to_numpy()
            changed[1:] |= numbers[1:] != numbers[:-1]
        else:
            changed[1:] |= column[1:].ne_missing(column[:-1]).to_numpy()
    return changed


def factorize_sorted(column: pl.Series) -> tuple[Longs | list[str], Ints]:
    """The distinct ids, ascending, and each event's place among them."""
    if column.dtype.is_integer() and (found := _paged(column.to_numpy())) is not None:
        return found
    distinct = column.unique().sort()
    places = _looked_up(column, distinct)
    return (distinct.cast(pl.Int64).to_numpy() if distinct.dtype.is_integer() else distinct.to_list()), places


def _looked_up(column: pl.Series, distinct: pl.Series) -> Ints:
    table = pl.DataFrame({"id": distinct, "place": pl.int_range(len(distinct), dtype=pl.Int32, eager=True)})
    found = column.alias("id").to_frame().join(table, on="id", how="left", maintain_order="left", nulls_equal=True)
    return found["place"].to_numpy()


def _paged(ids: Longs | Ints) -> tuple[Longs, Ints] | None:
    """Factorize integers with a lookup table, in a quarter of a join's time; None if the ids are too far apart."""
    lowest = int(ids.min())
    if (int(ids.max()) - lowest) >> PAGE_BITS >= MOST_PAGES:
        return None
    parts = [slice(begin, begin + ROWS_AT_ONCE) for begin in range(0, len(ids), ROWS_AT_ONCE)]
    pages = np.zeros(((int(ids.max()) - lowest) >> PAGE_BITS) + 1, np.bool_)
    for part in parts:
        pages[(ids[part].astype(np.int64) - lowest) >> PAGE_BITS] = True
    if int(pages.sum()) << PAGE_BITS > MOST_PLACES:
        return None
    shift = (
        np.cumsum(pages) - 1 - np.arange(len(pages))
    ) << PAGE_BITS  # from an id to its place in the pages that occur
    used = np.zeros(int(pages.sum()) << PAGE_BITS, np.bool_)
    slots = np.empty(len(ids), np.int32)
    for part in parts:
        offset = ids[part].astype(np.int64) - lowest
        slots[part] = offset + shift[offset >> PAGE_BITS]
        used[slots[part]] = True
    places = np.cumsum(used, dtype=np.int32) - np.int32(1)
    occupied = np.flatnonzero(used)
    distinct = occupied - np.repeat(shift[pages], 1 << PAGE_BITS)[occupied] + lowest
    for part in parts:
        slots[part] = places[slots[part]]
    return distinct, slots
