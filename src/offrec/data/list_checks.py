"""Check the served lists of a batch and their propensities."""

import numpy as np
import polars as pl

from offrec.data import column_checks
from offrec.data.bad_rows import BadRows, RowBatch

PROBABILITY = "expected the probability of the list under the policy that served it, above 0 and at most 1"


def check_propensity(batch: RowBatch, bad_rows: BadRows) -> pl.Series:
    """Check the column of propensities and return their logarithms."""
    values = batch.frame["propensity"]
    numbers = values.cast(pl.Float64, strict=False)
    missing = values.is_null()
    bad_rows.add_rows("a missing propensity", PROBABILITY, batch, missing)
    is_valid = ((numbers > 0) & (numbers <= 1)).fill_null(False)
    bad_rows.add_rows("the propensity", PROBABILITY, batch, ~is_valid & ~missing, values)
    return numbers.log()


def check_offered(batch: RowBatch, item: pl.Series, bad_rows: BadRows) -> dict[str, pl.Series]:
    """Check the column of served lists.

    Args:
        batch: The rows.
        item: The checked column of picked items; null where nothing was picked.
        bad_rows: Receives the bad rows.

    Returns:
        `offered`: the items of all lists, one list after the other. `offered_length`: the length of each list.
        `has_pick`: whether an item was picked from each list. Empty if there are bad rows.
    """
    lists = _as_lists(batch.frame["offered"])
    length = lists.list.len().fill_null(0)
    incomplete = (length == 0) | (lists.list.drop_nulls().list.len() != length).fill_null(False)
    expected = "expected every item that was offered"
    bad_rows.add_rows("a list that is empty or lacks an item", expected, batch, incomplete)
    repeated = (lists.list.n_unique() != length).fill_null(False)
    if repeated.any():
        bad_rows.add_rows("a list with a repeated item:", "expected distinct items", batch, repeated, _as_text(lists))
    flat = lists.explode().alias("offered")
    if flat.dtype.is_float():
        all_rows = pl.repeat(True, len(lists), eager=True)
        expected = "write ids as integers or text"
        bad_rows.add_rows("decimal numbers as item ids:", expected, batch, all_rows, _as_text(lists))
    if bad_rows:
        return {}
    offered = column_checks.check_ids(RowBatch(batch.source, flat.to_frame(), batch.place), "offered", bad_rows)
    not_offered = item.is_not_null() & ~_contain(offered, length, item)
    expected = "expected an item of the list, or none"
    bad_rows.add_rows("a picked item that was not offered:", expected, batch, not_offered, item)
    return {"offered": offered, "offered_length": length.cast(pl.Int64), "has_pick": item.is_not_null()}


def _as_lists(column: pl.Series) -> pl.Series:
    """Convert text with ids separated by spaces, or single ids, to lists."""
    if column.dtype == pl.String:
        column = pl.select(column.str.split(" ").list.eval(pl.element().filter(pl.element() != ""))).to_series()
    elif not isinstance(column.dtype, pl.List | pl.Array):
        column = pl.select(pl.when(column.is_not_null()).then(pl.concat_list(column))).to_series()
    lists = column.cast(pl.List(column.dtype.inner))  # type: ignore[attr-defined]
    if lists.dtype.inner != pl.String:  # type: ignore[attr-defined]
        return lists
    return pl.select(lists.list.eval(pl.when(pl.element() != "").then(pl.element()))).to_series()


def _as_text(lists: pl.Series) -> pl.Series:
    return lists.cast(pl.List(pl.String)).list.join(" ")


def _contain(flat: pl.Series, length: pl.Series, item: pl.Series) -> pl.Series:
    """Return whether each list contains its item. Lists must not be empty."""
    if flat.dtype != item.dtype:
        dtype = pl.String if pl.String in (flat.dtype, item.dtype) else pl.Int64
        flat, item = flat.cast(dtype), item.cast(dtype)
    lengths = length.to_numpy().astype(np.int64)
    repeated = item.gather(np.repeat(np.arange(len(lengths)), lengths))
    equal = (flat == repeated).fill_null(False).to_numpy()
    return pl.Series(np.logical_or.reduceat(equal, np.cumsum(lengths) - lengths))
