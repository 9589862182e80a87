"""The segments of a server's decision log, as tables of records: JSON lines, the last of which may be torn.

A list's history is only compared, so it is kept as a hash: written out, histories grow with the square of a session's
length.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.data import sources
from offrec.data.sources import Source
from offrec.errors import InputError

Hashes = NDArray[np.uint64]

SCHEMA: dict[str, Any] = {
    "kind": pl.String,
    "request_id": pl.String,
    "time": pl.Int64,
    "session_id": pl.String,
    "item": pl.String,
    "behaviour": pl.String,
    "items": pl.List(pl.String),
    "history": pl.List(pl.String),
    "log_probability": pl.Float64,
    "sampled": pl.Boolean,
    "restricted": pl.Boolean,
    "count": pl.Int64,
}
NEEDED = {
    "list": ("request_id", "time", "items", "history", "sampled", "restricted"),
    "event": ("time", "item", "behaviour"),
    "lost": ("count",),
}
COLUMN_NAMES = {"request_id": "request", "session_id": "session"}
ENDINGS = (".jsonl", ".jsonl.open", ".jsonl.gz", ".jsonl.zst")
BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers never vanish


@dataclass
class Counted:
    """What a segment held besides records that can be read."""

    records: int = 0
    torn: int = 0


def find(words: Sequence[str | Path]) -> list[Source]:
    """The segments in a folder, oldest first; files and globs stand for themselves. Empty ones were only just begun."""
    files: list[str | Path] = []
    for word in words:
        if Path(word).is_dir():
            here = [path for path in sorted(Path(word).iterdir()) if path.name.endswith(ENDINGS) and path.is_file()]
            if not here:
                raise InputError(
                    f"{word} holds no decisions-….jsonl; name the folder that offrec serve writes its log to."
                )
            files += [path for path in here if path.stat().st_size]
        else:
            files.append(word)
    if words and not files:
        raise InputError(f"Every segment in {words[0]} is empty; nothing has been served and written yet.")
    return sources.find(files)


def read(source: Source, counted: Counted) -> Iterator[pl.DataFrame]:
    """The records in the order of the file: the columns of SCHEMA, with `history` as its hash."""
    rest, lines = b"", 0
    for piece in sources.pieces(source):
        data = rest + piece
        cut = data.rfind(b"\n") + 1
        rest = data[cut:]
        if len(rest) > sources.LONGEST_ROW_BYTES:
            raise InputError(f"{source.name} has a line that does not end; expected one record a line.")
        yield _parsed(source, data[:cut], lines, counted)
        lines += data.count(b"\n", 0, cut)
    if rest.strip():
        if _is_object(rest):
            yield _parsed(source, rest, lines, counted)
        else:
            counted.torn += 1


def _parsed(source: Source, data: bytes, lines: int, counted: Counted) -> pl.DataFrame:
    try:
        frame = pl.read_ndjson(data, schema=SCHEMA) if data.strip() else pl.DataFrame(schema=SCHEMA)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        for number, line in _numbered(data, lines):
            if not _is_record(line):
                raise _refused(source, number, line) from None
        raise
    fit = pl.any_horizontal(
        (pl.col("kind") == kind) & pl.all_horizontal(pl.col(name).is_not_null() for name in names)
        for kind, names in NEEDED.items()
    ).fill_null(False)
    unfit = frame.select(~fit).to_series()
    if unfit.any():
        raise _refused(source, *list(_numbered(data, lines))[int(unfit.arg_true()[0])])
    counted.records += frame.height
    return frame.rename(COLUMN_NAMES).with_columns(history=_hashed(frame["history"]))


def _numbered(data: bytes, before: int) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(data.split(b"\n"), before + 1) if line.strip())


def _refused(source: Source, number: int, line: bytes) -> InputError:
    shown = line[:60].decode(errors="replace")
    return InputError(
        f"{source.name}, line {number}: {shown!r} is no whole list, event or lost record; expected what offrec serve "
        "writes: repair the line or leave the file out."
    )


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _is_record(line: bytes) -> bool:
    try:
        pl.read_ndjson(line, schema=SCHEMA)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False
    return _is_object(line)


def _hashed(histories: pl.Series) -> pl.Series:
    """h(l) = Σ_j code(l_j) BASE^j, modulo 2^64."""
    length = histories.list.len().fill_null(0).to_numpy().astype(np.int64)
    flat = histories.filter(histories.list.len() > 0).explode()
    place = np.arange(len(flat)) - np.repeat(np.cumsum(length) - length, length)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms(flat, place), dtype=np.uint64)])
    until = np.cumsum(length)
    return pl.Series(total[until] - total[until - length])


def terms(items: pl.Series, place: NDArray[np.int64]) -> Hashes:
    """[n] what an item adds to the hash of a history that holds it at `place`."""
    powers = np.concatenate([np.ones(1, np.uint64), np.full(int(place.max(initial=0)), BASE)]).cumprod(dtype=np.uint64)
    found: Hashes = items.hash(seed=0).to_numpy() * powers[place]
    return found
