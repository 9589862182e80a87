"""Read the files of a server's decision log: JSON lines, each with a checksum. The last line may be incomplete.

A server ends each file with an end record, which contains the number of records before it. A file without one was cut,
or its server crashed. Files may be concatenated, so that an end record counts the records since the previous one.

Histories are only compared, so only their hashes are stored. Full histories would need memory that grows quadratically
with the length of a session.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.data import sources
from offrec.data.line_checksums import is_sealed
from offrec.data.sources import Source
from offrec.errors import InputError

Hashes = NDArray[np.uint64]

SCHEMA: dict[str, Any] = {
    "kind": pl.String,
    "request_id": pl.String,
    "time": pl.Int64,
    "session_id": pl.String,
    "policy": pl.String,
    "split": pl.String,
    "item": pl.String,
    "behaviour": pl.String,
    "reward": pl.Float64,
    "items": pl.List(pl.String),
    "history": pl.List(pl.String),
    "log_probability": pl.Float64,
    "sampled": pl.Boolean,
    "restricted": pl.Boolean,
    "count": pl.Int64,
}
REQUIRED_FIELDS = {
    "list": ("request_id", "time", "items", "history", "sampled", "restricted"),
    "event": ("time", "item", "behaviour"),
    "lost": ("count",),
    "end": ("count",),
}
COLUMN_NAMES = {"request_id": "request", "session_id": "session"}
SUFFIXES = (".jsonl", ".jsonl.open", ".jsonl.gz", ".jsonl.zst")
OPEN_SUFFIX = ".open"  # of a file that a server is writing
NOT_CLOSED = "not closed: the server crashed or the file was cut"
BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers are never 0 modulo 2^64


@dataclass
class RecordCounts:
    """What a file contains.

    Attributes:
        records: Records, without end records.
        incomplete: Incomplete lines.
        since_end: Records since the last end record.
        is_closed: Whether the last record is an end record.
        different: By how many records the file differs from its end records, in either direction.
    """

    records: int = 0
    incomplete: int = 0
    since_end: int = 0
    is_closed: bool = False
    different: int = 0

    def add(self, kinds: pl.Series, ends: pl.Series) -> None:
        """Count records, and compare their number with that of the end records among them.

        Args:
            kinds: The kind of each record.
            ends: The field `count` of each record.
        """
        previous = -1
        for row in (kinds == "end").arg_true().to_list():
            self.since_end += row - previous - 1
            self.records += row - previous - 1
            self.different += abs(int(ends[row]) - self.since_end)
            self.since_end, previous = 0, row
        self.since_end += len(kinds) - previous - 1
        self.records += len(kinds) - previous - 1
        self.is_closed = previous == len(kinds) - 1 if len(kinds) else self.is_closed

    def notes(self, name: str) -> list[str]:
        """Return a note for each way in which the file `name` is not complete."""
        notes = [f"{name}: {self.different:,} records are missing or repeated."] if self.different else []
        if name.endswith(OPEN_SUFFIX):
            notes.append(f"{name}: still open; later records are not included.")
        elif not self.is_closed or self.incomplete:
            notes.append(f"{name}: {NOT_CLOSED}.")
        return notes


def find(paths: Sequence[str | Path]) -> list[Source]:
    """Return the files of decision logs.

    Args:
        paths: Folders of decision logs, files or globs.

    Returns:
        The files. Those of a folder are ordered from oldest to newest, without empty files that a server just opened.

    Raises:
        InputError: If a folder contains no decision log, or only empty files.
    """
    files: list[str | Path] = []
    cut: list[Source] = []  # closed files that are empty; they get a note
    for folder in paths:
        if not Path(folder).is_dir():
            files.append(folder)
            continue
        entries = [path for path in sorted(Path(folder).iterdir()) if _is_log_file(path)]
        if not entries:
            raise InputError(
                f"{folder} contains no decisions-….jsonl; name the folder that offrec serve writes its log to."
            )
        files += [path for path in entries if path.stat().st_size]
        cut += [Source(path) for path in entries if not path.stat().st_size and path.suffix != OPEN_SUFFIX]
    if paths and not files:
        raise InputError(f"{paths[0]} contains only empty files; serve recommendations first.")
    return [*sources.find(files), *cut]


def _is_log_file(path: Path) -> bool:
    """Return whether a file belongs to a log. Hidden files are temporary ones of commands that were killed."""
    return path.name.endswith(SUFFIXES) and not path.name.startswith(".") and path.is_file()


def read(source: Source, counts: RecordCounts) -> Iterator[pl.DataFrame]:
    """Yield the records of a file in order, without end records: the columns of SCHEMA, with `history` as its hash.

    Args:
        source: The file.
        counts: Receives what the file contains.
    """
    rest, lines = b"", 0
    for chunk in sources.read_chunks(source) if source.path.stat().st_size else ():
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if len(rest) > sources.MAX_ROW_BYTES:
            raise InputError(f"{source.name} has an unterminated line; expected one record per line.")
        yield _parse(source, data[:end], lines, counts)
        lines += data.count(b"\n", 0, end)
    if rest.strip():
        if is_sealed(rest):
            yield _parse(source, rest, lines, counts)
        else:
            counts.incomplete += 1


def _parse(source: Source, data: bytes, lines: int, counts: RecordCounts) -> pl.DataFrame:
    """Parse whole lines; `lines`: the number of lines before them in the file."""
    for number, line in _numbered_lines(data, lines):
        if not is_sealed(line):
            raise _bad_record(source, number, line, "does not end with the right checksum")
    try:
        frame = pl.read_ndjson(data, schema=SCHEMA) if data.strip() else pl.DataFrame(schema=SCHEMA)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        for number, line in _numbered_lines(data, lines):
            if not _is_record(line):
                raise _bad_record(source, number, line, "is not a complete record") from None
        raise
    is_complete = pl.any_horizontal(
        (pl.col("kind") == kind) & pl.all_horizontal(pl.col(name).is_not_null() for name in names)
        for kind, names in REQUIRED_FIELDS.items()
    ).fill_null(False)
    is_bad = frame.select(~is_complete).to_series()
    if is_bad.any():
        number, line = list(_numbered_lines(data, lines))[int(is_bad.arg_true()[0])]
        raise _bad_record(source, number, line, "is not a complete record")
    counts.add(frame["kind"], frame["count"])
    frame = frame.filter(pl.col("kind") != "end")
    return frame.rename(COLUMN_NAMES).with_columns(history=_hash_histories(frame["history"]))


def _numbered_lines(data: bytes, before: int) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(data.split(b"\n"), before + 1) if line.strip())


def _bad_record(source: Source, number: int, line: bytes, problem: str) -> InputError:
    start = line[:60].decode(errors="replace")
    return InputError(
        f"{source.name}, line {number}: {start!r} {problem}; expected a record of offrec serve: "
        "restore the file from a copy, or remove the line."
    )


def _is_record(line: bytes) -> bool:
    try:
        pl.read_ndjson(line, schema=SCHEMA)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False
    return line.lstrip().startswith(b"{")


def _hash_histories(histories: pl.Series) -> pl.Series:
    """Hash each history: h(l) = Σ_j hash(l_j) BASE^j, modulo 2^64."""
    length = histories.list.len().fill_null(0).to_numpy().astype(np.int64)
    flat = histories.filter(histories.list.len() > 0).explode()
    position = np.arange(len(flat)) - np.repeat(np.cumsum(length) - length, length)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hash_terms(flat, position), dtype=np.uint64)])
    end = np.cumsum(length)
    return pl.Series(total[end] - total[end - length])


def hash_terms(items: pl.Series, position: NDArray[np.int64]) -> Hashes:
    """[n] the terms hash(item) BASE^position that items add to the hash of a history."""
    largest = int(position.max(initial=0))
    powers = np.concatenate([np.ones(1, np.uint64), np.full(largest, BASE)]).cumprod(dtype=np.uint64)
    terms: Hashes = items.hash(seed=0).to_numpy() * powers[position]
    return terms
