"""ISO 8601 text to instants. Logs spell millions of times alike, so one layout is read digit by digit."""

import re
from functools import cache

import numpy as np
import polars as pl

from offrec.types import Bytes, Ints, Longs

ALIKE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?Z?", re.ASCII)
LARGEST = b"9999-19-39T29:59:59.999999Z"  # each digit's most; what is still no date fails the table of days
ZONE = r"([+-])(\d\d):?(\d\d)?$"
LAYOUTS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
# What the digit at each place adds.
DAY_CODE = {0: 800_000, 1: 80_000, 2: 8_000, 3: 800, 5: 400, 6: 40, 8: 10, 9: 1}
SECOND = {11: 36_000, 12: 3_600, 14: 600, 15: 60, 17: 10, 18: 1}
MICROSECOND = {20: 100_000, 21: 10_000, 22: 1_000, 23: 100, 24: 10, 25: 1}
FIRST_YEAR, LAST_YEAR = 1900, 2199
ROWS_AT_ONCE = 1 << 14  # their digits stay in the cache
DAY = 86_400
NO_DAY = np.iinfo(np.int32).min


def read(text: pl.Series) -> pl.Series:
    """Datetime in microseconds, UTC where no zone is given; null where it cannot be read."""
    ticks = _alike(text)
    return _any(text) if ticks is None else pl.Series(ticks).cast(pl.Datetime("us"))


def _alike(text: pl.Series) -> Longs | None:
    """Microseconds since 1970 where all are spelled like the first, as 2014-04-07T10:51:09.277Z; else None."""
    first = text[0] if len(text) and not text.null_count() else ""
    width = len(first)
    if not ALIKE.fullmatch(first) or not (text.str.len_bytes() == width).all():
        return None
    characters = pl.Array(pl.UInt8, width)
    spelled: Bytes = text.cast(pl.Binary).bin.reinterpret(dtype=characters, endianness="little").to_numpy()
    lowest = np.frombuffer(re.sub(r"\d", "0", first).encode(), np.uint8)
    digit = np.array([character.isdigit() for character in first])
    spans = np.where(digit, np.frombuffer(LARGEST, np.uint8)[:width] - ord("0"), 0).astype(np.uint8)
    ticks = np.empty(len(text), np.int64)
    for begin in range(0, len(text), ROWS_AT_ONCE):
        digits = spelled[begin : begin + ROWS_AT_ONCE] - lowest
        if (digits > spans).any():
            return None
        columns = digits.T.astype(np.int32)
        codes, seconds, micros = (_weighed(columns, weights) for weights in (DAY_CODE, SECOND, MICROSECOND))
        days = _days()[np.clip(codes - FIRST_YEAR * 800, 0, len(_days()) - 1)]
        if days.min() == NO_DAY or seconds.max() >= DAY:
            return None
        ticks[begin : begin + ROWS_AT_ONCE] = (days.astype(np.int64) * DAY + seconds) * 1_000_000 + micros
    return ticks


def _weighed(columns: Ints, weights: dict[int, int]) -> Ints:
    total = np.zeros(columns.shape[1], np.int32)
    for place, weight in weights.items():
        if place < len(columns):
            total += weight * columns[place]
    return total


@cache
def _days() -> Ints:
    """Day since 1970 by the code 800·year + 40·month + day, which has room for months and days that are none."""
    days = np.arange(f"{FIRST_YEAR}-01-01", f"{LAST_YEAR + 1}-01-01", dtype="datetime64[D]")
    months = days.astype("datetime64[M]")
    year = months.astype("datetime64[Y]").astype(np.int64) + 1970
    month = months.astype(np.int64) % 12 + 1
    code = (year - FIRST_YEAR) * 800 + month * 40 + (days - months).astype(np.int64) + 1
    table = np.full(code.max() + 2, NO_DAY, np.int32)
    table[code] = days.astype(np.int64)
    return table


def _any(text: pl.Series) -> pl.Series:
    """Whatever mixture of dates, fractions and zones."""
    tidy = pl.lit(text).str.strip_chars().str.replace(r"^(\d{4}-\d\d-\d\d) ", "${1}T").str.replace("[Zz]$", "")
    zone = tidy.str.slice(10).str.extract_groups(ZONE)
    minutes = zone.struct[1].cast(pl.Int64) * 60 + zone.struct[2].cast(pl.Int64).fill_null(0)
    shift = pl.when(zone.struct[0] == "-").then(-minutes).otherwise(minutes).fill_null(0)
    bare = tidy.str.replace(f"(T[^+-]*){ZONE}", "${1}")
    read = pl.coalesce(bare.str.to_datetime(layout, time_unit="us", strict=False) for layout in LAYOUTS)
    return pl.select(read - pl.duration(minutes=shift)).to_series()
