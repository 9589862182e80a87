"""Check one column of a batch (ids, times, positions or rewards) and convert it to numbers if it contains numbers."""

import polars as pl

from offrec.data import timestamps
from offrec.data.bad_rows import BadRows, RowBatch
from offrec.data.dataset_checks import MAX_REWARD

TIME_LIMIT = 2.0**63  # times are stored in 64 bits
FILL_IN = "every event needs one: fill it in or remove the row"
READABLE_TIMES = "expected a number since 1970 (s, ms, µs or ns) or ISO 8601 such as 2014-04-07T10:51:09Z"


def read_lists(column: str) -> str:
    """Return the advice about a table of lists that is read as events; `column` contains the lists."""
    option = "" if column == "offered" else f" --offered {column}"
    return f"if each row is a list that was shown (column {column!r}), add --format decisions{option}"


def check_ids(batch: RowBatch, name: str, bad_rows: BadRows, *, optional: bool = False) -> pl.Series:
    """Check a column of ids.

    Args:
        batch: The rows.
        name: The column.
        bad_rows: Receives the bad rows.
        optional: Whether ids may be missing.

    Returns:
        Integers if every id is written as an integer, else strings: "007" is not 7.
    """
    values = batch.frame[name]
    if values.dtype.is_float():
        expected = "write ids as integers or text"
        bad_rows.add_rows(f"a decimal number as {name} id:", expected, batch, values.is_not_null(), values)
        return values
    if values.dtype.is_integer() and values.dtype not in (pl.UInt64, pl.Int128):
        values = values.cast(pl.Int64)
    elif values.dtype != pl.Int64:
        values = values.cast(pl.String)
    missing = values.is_null() if values.dtype == pl.Int64 else values.is_null() | (values == "")
    if optional and values.dtype == pl.String:
        values = pl.select(pl.when(~missing).then(values)).to_series()
    if not optional and (values.null_count() or missing.any()):
        expected = FILL_IN if name != "item" or batch.unread_lists is None else read_lists(batch.unread_lists)
        bad_rows.add_rows(f"a missing {name} id", expected, batch, missing)
        return values
    return _as_int32_if_possible(as_integers_if_exact(values) if values.dtype == pl.String else values)


def _as_int32_if_possible(values: pl.Series) -> pl.Series:
    """Halve the memory if all ids are small."""
    if values.dtype != pl.Int64 or values.null_count() == len(values):
        return values
    smallest, largest = int(values.min()), int(values.max())  # type: ignore[arg-type]
    return values.cast(pl.Int32) if smallest >= -(2**31) and largest < 2**31 else values


def as_integers_if_exact(values: pl.Series) -> pl.Series:
    """Convert strings to Int64 if every string can be restored from its integer; else return the strings."""
    numbers = values.cast(pl.Int64, strict=False)
    if numbers.null_count() > values.null_count():
        return values
    may_change = any(values.str.starts_with(sign).any() for sign in ("0", "+", "-0"))
    return values if may_change and (numbers.cast(pl.String) != values).any() else numbers


def check_times(batch: RowBatch, bad_rows: BadRows, *, numeric: bool | None) -> pl.Series:
    """Check the column of times.

    Args:
        batch: The rows.
        bad_rows: Receives the bad rows.
        numeric: Whether times in text are numbers or dates; None: decide by the first time.

    Returns:
        Int64 or Float64 numbers as they are written, or Datetime.
    """
    values = batch.frame["time"]
    if values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime):
        times = values.cast(pl.Datetime("us"), strict=False)
        values = values.to_physical()  # a message can show a date out of range only as a number
    elif values.dtype.is_numeric():
        times = values.cast(pl.Int64 if values.dtype.is_integer() else pl.Float64, strict=False)
    elif values.dtype == pl.String:
        if numeric is None:
            first = values.drop_nulls().head(1)
            numeric = first.cast(pl.Float64, strict=False).null_count() == 0
        times = _numbers(values) if numeric else timestamps.parse_timestamps(values)
    else:
        times = pl.repeat(None, len(values), dtype=pl.Int64, eager=True)
    if times.dtype == pl.Float64:
        times = pl.select(pl.when(times.abs() < TIME_LIMIT).then(times)).to_series()  # also removes NaN
    if times.null_count():
        missing = values.is_null() | (values.cast(pl.String) == "")
        bad_rows.add_rows("a missing time", FILL_IN, batch, missing)
        bad_rows.add_rows("an unreadable time", READABLE_TIMES, batch, times.is_null() & ~missing, values)
    return times


def _numbers(values: pl.Series) -> pl.Series:
    integers = values.cast(pl.Int64, strict=False)
    return integers if integers.null_count() == values.null_count() else values.cast(pl.Float64, strict=False)


def check_positions(batch: RowBatch, bad_rows: BadRows) -> pl.Series:
    """Check the column of positions and return it as Int64."""
    values = batch.frame["position"]
    positions = values.cast(pl.Int64, strict=False)
    bad_rows.add_rows("an unreadable position", "expected an integer", batch, positions.is_null(), values)
    return positions


def check_rewards(batch: RowBatch, bad_rows: BadRows) -> pl.Series:
    """Check the column of rewards and return it as Float32, with NaN where it has no number."""
    values = batch.frame["reward"]
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    missing = values.is_null() | (values.cast(pl.String) == "")
    if values.dtype.is_numeric() or values.dtype in (pl.String, pl.Boolean):
        rewards = values.cast(pl.Float64, strict=False)
    else:
        rewards = pl.repeat(None, len(values), dtype=pl.Float64, eager=True)
    is_number = (rewards.abs() <= MAX_REWARD).fill_null(False) & rewards.is_not_nan().fill_null(False)
    expected = f"expected a number from {-MAX_REWARD:g} to {MAX_REWARD:g}, or nothing"
    bad_rows.add_rows("an unusable reward", expected, batch, ~is_number & ~missing, values)
    if "offered" in batch.frame:
        lost = batch.frame["item"].is_null() & is_number & (rewards != 0)
        bad_rows.add_rows("a reward without a picked item:", "expected 0 or nothing", batch, lost, values)
    return rewards.fill_null(float("nan")).cast(pl.Float32)
