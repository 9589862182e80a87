"""ISO 8601 text to instants. Logs spell millions of times alike, so one layout is read by arithmetic on bytes."""

import re
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.types import Bytes, Ints, Longs

ALIKE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?Z?", re.ASCII)
LARGEST = b"9999-19-39T29:59:59.999999Z00000"  # each digit's most; what is still no date fails the table of days
ZONE = r"([+-])(\d\d):?(\d\d)?$"
LAYOUTS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
# What the number of two digits that begins at a place adds.
DAY_CODE = {0: 80_000, 2: 800, 5: 40, 8: 1}
SECOND = {11: 3_600, 14: 60, 17: 1}
MICROSECOND = {20: 10_000, 22: 100, 24: 1}
WORD = np.dtype("<u8")
HIGH_BITS = WORD.type(0x8080808080808080)
FIRST_YEAR, LAST_YEAR = 1900, 2199
ROWS_AT_ONCE = 1 << 16  # their digits stay in the cache
DAY = 86_400
NO_DAY = np.iinfo(np.int32).min


def parse_timestamps(text: pl.Series) -> pl.Series:
    """Datetime in microseconds, UTC where no zone is given; null where it cannot be read."""
    ticks = _alike(text)
    return _any(text) if ticks is None else pl.Series(ticks).cast(pl.Datetime("us"))


def _alike(text: pl.Series) -> Longs | None:
    """Microseconds since 1970 where all are spelled like the first, as 2014-04-07T10:51:09.277Z; else None.

    Eight characters are one word: an exclusive or with the spelling of zero turns digits into 0 … 9 and the rest into
    0, one addition shows every character that is too large, and one more makes numbers of neighbouring digits.
    """
    first = text[0] if len(text) and not text.null_count() else ""
    if not ALIKE.fullmatch(first) or not (text.str.len_bytes() == len(first)).all():
        return None
    words = _words(text, len(first))
    zero = re.sub(r"\d", "0", first).encode().ljust(8 * words.shape[1], b"\0")
    most = [0x7F - (LARGEST[place] - ord("0")) if spelled == ord("0") else 0x7F for place, spelled in enumerate(zero)]
    zeros, limits = np.frombuffer(zero, WORD), np.frombuffer(bytes(most), WORD)
    ticks = np.empty(len(text), np.int64)
    for begin in range(0, len(text), ROWS_AT_ONCE):
        digits = words[begin : begin + ROWS_AT_ONCE] ^ zeros
        if (((digits + limits) | digits) & HIGH_BITS).any():
            return None
        numbers = (digits * WORD.type(10) + (digits >> WORD.type(8))).view(np.uint8)
        days = _days().take(_weighed(numbers, DAY_CODE) - FIRST_YEAR * 800, mode="clip")
        seconds = _weighed(numbers, SECOND)
        if days.min() == NO_DAY or seconds.max() >= DAY:
            return None
        read = ticks[begin : begin + ROWS_AT_ONCE]
        np.multiply(days, DAY, out=read, dtype=np.int64)
        read += seconds
        read *= 1_000_000
        read += _weighed(numbers, MICROSECOND)
    return ticks


def _words(text: pl.Series, width: int) -> NDArray[np.uint64]:
    """[rows, words] the characters, eight to a word, filled up with zeros."""
    characters = pl.Array(pl.UInt8, width)
    spelled = text.cast(pl.Binary).bin.reinterpret(dtype=characters, endianness="little").to_numpy()
    if width % 8:
        spelled = np.pad(spelled, ((0, 0), (0, -width % 8)))
    return np.ascontiguousarray(spelled).view(WORD)


def _weighed(numbers: Bytes, weights: dict[int, int]) -> Ints:
    total = np.zeros(len(numbers), np.int32)
    for place, weight in weights.items():
        if place < numbers.shape[1]:
            total += numbers[:, place] * np.int32(weight)
    return total


@cache
def _days() -> Ints:
    """Day since 1970 by the code 800·year + 40·month + day, which has room for months and days that are none."""
    days = np.arange(f"{FIRST_YEAR}-01-01", f"{LAST_YEAR + 1}-01-01", dtype="datetime64[D]")
    months = days.astype("datetime64[M]")
    year = months.astype("datetime64[Y]").astype(np.int64) + 1970
    month = months.astype(np.int64) % 12 + 1
    code = (year - FIRST_YEAR) * 800 + month * 40 + (days - months).astype(np.int64) + 1
    table = np.full(code.max() + 2, NO_DAY, np.int32)  # its ends are no days, so what is cut off there is none either
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
