"""The lists of one batch and how likely they were, checked."""

import numpy as np
import polars as pl

from offrec.data import column_checks
from offrec.data.bad_rows import BadRows, RowBatch

LIKELY = "expected how likely the policy was to serve it, above 0 and at most 1"


def check_propensity(batch: RowBatch, bad_rows: BadRows) -> pl.Series:
    given = batch.frame["propensity"]
    read = given.cast(pl.Float64, strict=False)
    missing = given.is_null()
    bad_rows.add_rows("a missing propensity", LIKELY, batch, missing)
    fit = ((read > 0) & (read <= 1)).fill_null(False)
    bad_rows.add_rows("the propensity", LIKELY, batch, ~fit & ~missing, given)
    return read.log()


def check_offered(batch: RowBatch, item: pl.Series, bad_rows: BadRows) -> dict[str, pl.Series]:
    """The lists' items one after the other, their lengths, and whether anything was picked from each."""
    lists = _lists(batch.frame["offered"])
    length = lists.list.len().fill_null(0)
    holes = (length == 0) | (lists.list.drop_nulls().list.len() != length).fill_null(False)
    bad_rows.add_rows("an empty list, or one with a hole", "every decision needs what was offered", batch, holes)
    repeated = (lists.list.n_unique() != length).fill_null(False)
    if repeated.any():
        without = "expected a list drawn without replacement"
        bad_rows.add_rows("an item twice in the list", without, batch, repeated, _spelled(lists))
    flat = lists.explode().alias("offered")
    if flat.dtype.is_float():
        decimals = pl.repeat(True, len(lists), eager=True)
        bad_rows.add_rows("decimals as item ids:", "write ids as integers or text", batch, decimals, _spelled(lists))
    if bad_rows:
        return {}
    found = column_checks.check_ids(RowBatch(batch.source, flat.to_frame(), batch.place), "offered", bad_rows)
    strange = item.is_not_null() & ~_holds(found, length, item)
    bad_rows.add_rows("a picked item that was not offered:", "expected one of its list, or none", batch, strange, item)
    return {"offered": found, "offered_length": length.cast(pl.Int64), "happened": item.is_not_null()}


def _lists(column: pl.Series) -> pl.Series:
    """Text is a list too, its ids apart by spaces; a number is a list of one."""
    if column.dtype == pl.String:
        column = pl.select(column.str.split(" ").list.eval(pl.element().filter(pl.element() != ""))).to_series()
    elif not isinstance(column.dtype, pl.List | pl.Array):
        column = pl.select(pl.when(column.is_not_null()).then(pl.concat_list(column))).to_series()
    lists = column.cast(pl.List(column.dtype.inner))  # type: ignore[attr-defined]
    if lists.dtype.inner != pl.String:  # type: ignore[attr-defined]
        return lists
    return pl.select(lists.list.eval(pl.when(pl.element() != "").then(pl.element()))).to_series()


def _spelled(lists: pl.Series) -> pl.Series:
    return lists.cast(pl.List(pl.String)).list.join(" ")


def _holds(flat: pl.Series, length: pl.Series, item: pl.Series) -> pl.Series:
    """Which of the lists, none of them empty, hold their item."""
    if flat.dtype != item.dtype:
        kind = pl.String if pl.String in (flat.dtype, item.dtype) else pl.Int64
        flat, item = flat.cast(kind), item.cast(kind)
    lengths = length.to_numpy().astype(np.int64)
    wanted = item.gather(np.repeat(np.arange(len(lengths)), lengths))
    equal = (flat == wanted).fill_null(False).to_numpy()
    return pl.Series(np.logical_or.reduceat(equal, np.cumsum(lengths) - lengths))
