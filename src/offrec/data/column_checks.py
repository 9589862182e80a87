"""One column of one batch: ids, times and positions, checked, and turned into numbers where they are numbers."""

import polars as pl

from offrec.data import timestamps
from offrec.data.bad_rows import BadRows, RowBatch

LARGEST_TIME = 2.0**63  # what 64 bits hold; NaN is no less
READABLE = "expected a number since 1970 (s, ms, µs or ns) or ISO 8601 such as 2014-04-07T10:51:09Z"


def check_ids(batch: RowBatch, name: str, bad_rows: BadRows, *, may_miss: bool = False) -> pl.Series:
    """Int64 where every id is spelled as an integer is, strings otherwise: "007" is not 7."""
    values = batch.frame[name]
    if values.dtype.is_float():
        bad_rows.add_rows(
            f"decimals as {name} ids:", "write ids as integers or text", batch, values.is_not_null(), values
        )
        return values
    if values.dtype.is_integer() and values.dtype not in (pl.UInt64, pl.Int128):
        values = values.cast(pl.Int64)
    elif values.dtype != pl.Int64:
        values = values.cast(pl.String)
    missing = values.is_null() if values.dtype == pl.Int64 else values.is_null() | (values == "")
    if may_miss and values.dtype == pl.String:
        values = pl.select(pl.when(~missing).then(values)).to_series()
    if not may_miss and (values.null_count() or missing.any()):
        bad_rows.add_rows(
            f"a missing {name} id", "every event needs one: fill it in or leave the row out", batch, missing
        )
        return values
    return _smaller(as_numbers(values) if values.dtype == pl.String else values)


def _smaller(values: pl.Series) -> pl.Series:
    """Half the memory where all ids are small."""
    if values.dtype != pl.Int64 or values.null_count() == len(values):
        return values
    smallest, largest = int(values.min()), int(values.max())  # type: ignore[arg-type]
    return values.cast(pl.Int32) if smallest >= -(2**31) and largest < 2**31 else values


def as_numbers(values: pl.Series) -> pl.Series:
    """Int64 if that loses nothing of the spelling, else the strings."""
    numbers = values.cast(pl.Int64, strict=False)
    if numbers.null_count() > values.null_count():
        return values
    suspect = any(values.str.starts_with(sign).any() for sign in ("0", "+", "-0"))
    return values if suspect and (numbers.cast(pl.String) != values).any() else numbers


def check_times(batch: RowBatch, bad_rows: BadRows, *, numeric: bool | None) -> pl.Series:
    """Numbers as they stand (Int64 or Float64), or Datetime; `numeric` says which is expected, None at the start."""
    values = batch.frame["time"]
    if values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime):
        read = values.cast(pl.Datetime("us"), strict=False)
        values = values.to_physical()  # what is too large for a date can only be named as a number
    elif values.dtype.is_numeric():
        read = values.cast(pl.Int64 if values.dtype.is_integer() else pl.Float64, strict=False)
    elif values.dtype == pl.String:
        if numeric is None:
            first = values.drop_nulls().head(1)
            numeric = first.cast(pl.Float64, strict=False).null_count() == 0
        read = _numbers(values) if numeric else timestamps.parse_timestamps(values)
    else:
        read = pl.repeat(None, len(values), dtype=pl.Int64, eager=True)
    if read.dtype == pl.Float64:
        read = pl.select(pl.when(read.abs() < LARGEST_TIME).then(read)).to_series()
    if read.null_count():
        missing = values.is_null() | (values.cast(pl.String) == "")
        bad_rows.add_rows("a missing time", "every event needs one: fill it in or leave the row out", batch, missing)
        bad_rows.add_rows("an unreadable time", READABLE, batch, read.is_null() & ~missing, values)
    return read


def _numbers(values: pl.Series) -> pl.Series:
    whole = values.cast(pl.Int64, strict=False)
    return whole if whole.null_count() == values.null_count() else values.cast(pl.Float64, strict=False)


def check_positions(batch: RowBatch, bad_rows: BadRows) -> pl.Series:
    values = batch.frame["position"]
    read = values.cast(pl.Int64, strict=False)
    bad_rows.add_rows("an unreadable position", "expected whole numbers", batch, read.is_null(), values)
    return read
