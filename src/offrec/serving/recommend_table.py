"""Recommendations for a whole table of sessions: read in blocks, answered in chunks, written as they come.

Memory holds one block of the table (16 MB of text, or `ROWS` rows of Parquet), one chunk of sessions with their
lists, and eight bytes for each session seen, by which one that stands in two places of the table is noticed.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from offrec.console import PLAIN_SECONDS, Console
from offrec.data import column_checks, sources
from offrec.data.bad_rows import BadRows, RowBatch
from offrec.data.factorize import run_starts
from offrec.data.files import publish_file
from offrec.data.formats import FORMATS, Columns, events
from offrec.data.sources import Source
from offrec.data.tables import ReadTask
from offrec.errors import InputError, first_line
from offrec.policy import Policy
from offrec.serving.engine import Engine, Query

ROWS = 1 << 18  # of a Parquet table, at once
TOGETHER = 256  # sessions in one pass over the catalogue
SINKS: dict[str, Callable[[pl.LazyFrame, Path], Any]] = {
    ".parquet": lambda frame, path: frame.sink_parquet(path),
    ".csv": lambda frame, path: frame.sink_csv(path),
    ".tsv": lambda frame, path: frame.sink_csv(path, separator="\t"),
    ".jsonl": lambda frame, path: frame.sink_ndjson(path),
}


@dataclass(frozen=True)
class TableOptions:
    k: int = 10
    exclude_seen: bool = False
    format: str = "events"
    columns: Columns = field(default_factory=Columns)
    chunk: int = 4096


@dataclass
class Done:
    sessions: int = 0
    events: int = 0
    unknown: int = 0  # events of items that the catalogue does not know

    def as_json(self) -> dict[str, int]:
        return vars(self)


def recommend_table(
    policy: Policy, words: Sequence[str | Path], out: Path, options: TableOptions, console: Console, *, force: bool
) -> Done:
    """The best k for every session of the table, into `out`: session, rank, item, score, probability."""
    _check(policy, out, options, force)
    table = _Table(policy, sources.find(words), options, console)
    first = next(table.lists, None)
    if first is None:
        raise InputError("The table holds no events, only a header; expected rows below it.")
    with publish_file(out, advice="choose another --out") as temporary:
        try:
            SINKS[out.suffix](register_io_source(lambda *_: table.frames(first), schema=first.schema), temporary)
        except pl.exceptions.PolarsError as error:
            if table.error is not None:
                raise table.error from error
            raise OSError(first_line(error)) from error
    return table.done


def _check(policy: Policy, out: Path, options: TableOptions, force: bool) -> None:
    if not 1 <= options.k <= policy.n_items:
        raise InputError(f"k is {options.k}; it must lie between 1 and the catalogue's {policy.n_items} items.")
    if options.chunk < 1:
        raise InputError(f"--chunk is {options.chunk}; it must be at least 1.")
    if out.suffix not in SINKS:
        raise InputError(f"{out} ends in {out.suffix or 'nothing'}; --out is one of {', '.join(SINKS)}.")
    if out.exists() and not force:
        raise InputError(f"{out} exists already; choose another --out, or replace it with --force.")
    if not out.parent.is_dir():
        raise InputError(f"The folder {out.parent} of --out does not exist; make it first.")


class _Table:
    """A table on its way: blocks → whole sessions → lists."""

    def __init__(self, policy: Policy, found: list[Source], options: TableOptions, console: Console) -> None:
        self.policy, self.options, self.console, self.found = policy, options, console, found
        self.engine, self.done = Engine(policy, 0), Done()  # nothing is drawn
        self.error: Exception | None = None
        self.lists = self._lists()
        self.said = time.monotonic()

    def frames(self, first: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """For polars, which wraps what goes wrong in here: so it is kept."""
        try:
            yield first
            yield from self.lists
        except Exception as error:
            self.error = error
            raise

    def _lists(self) -> Iterator[pl.DataFrame]:
        for frame in self._sessions():
            owners = [name for name in ("session", "user") if name in frame]
            begins = np.flatnonzero(run_starts([frame[name] for name in owners]))
            ends = np.append(begins[1:], frame.height)
            indices = [self.policy.vocabulary.index(item) for item in frame["item"].to_list()]
            for at in range(0, len(begins), self.options.chunk):
                part = slice(at, at + self.options.chunk)
                rows = [indices[a:b] for a, b in zip(begins[part], ends[part], strict=True)]
                yield self._answered(frame.select(owners)[begins[part]], rows)

    def _answered(self, owners: pl.DataFrame, rows: list[list[int | None]]) -> pl.DataFrame:
        asks = []
        for row in rows:
            seen = [item for item in row if item is not None]
            barred = frozenset(seen) if self.options.exclude_seen else frozenset()
            asks.append(Query(seen, self.options.k, barred))
            self.done.events += len(row)
            self.done.unknown += len(row) - len(seen)
        answers = [one for at in range(0, len(asks), TOGETHER) for one in self.engine.answer(asks[at : at + TOGETHER])]
        self.done.sessions += len(asks)
        if time.monotonic() - self.said > PLAIN_SECONDS:
            self.said = time.monotonic()
            self.console.line(f"recommending: {self.done.sessions:,} sessions so far")
        counts = np.array([len(answer.items) for answer in answers])
        found = owners[np.repeat(np.arange(len(answers)), counts)]
        words = self.policy.vocabulary
        rank = [place for count in counts for place in range(1, count + 1)]
        items = [words.id(item) for answer in answers for item in answer.items]
        chances: list[float | None] = []
        for answer in answers:
            chances += answer.probabilities or [None] * len(answer.items)
        return found.with_columns(
            pl.Series("rank", rank, pl.Int32),
            pl.Series("item", items, pl.Int64 if words.is_numeric else pl.String),
            pl.Series("score", [score for answer in answers for score in answer.scores], pl.Float64),
            pl.Series("probability", chances, pl.Float64),
        )

    def _sessions(self) -> Iterator[pl.DataFrame]:
        """Blocks of whole sessions, each in its order."""
        begun: pl.DataFrame | None = None
        seen: np.ndarray[Any, np.dtype[np.uint64]] = np.empty(0, np.uint64)
        numeric: bool | None = None
        for task in self._read_tasks():
            frame, numeric = _read(task, numeric)
            frame = frame if begun is None else _stacked(begun, frame)
            owners = [name for name in ("session", "user") if name in frame]
            starts = run_starts([frame[name] for name in owners])
            last = int(np.flatnonzero(starts)[-1])
            whole, begun = frame[:last], frame[last:]
            seen = _unseen(whole.filter(pl.Series(starts[:last])).select(owners), seen)
            if whole.height:
                yield _ordered(whole, starts[:last])
        if begun is not None:
            owners = [name for name in ("session", "user") if name in begun]
            _unseen(begun[:1].select(owners), seen)
            yield _ordered(begun, np.arange(begun.height) == 0)

    def _read_tasks(self) -> Iterator[ReadTask]:
        columns = self.options.columns
        for source in self.found:
            plain = source.member is None and source.path.suffix in (".parquet", ".pq")
            if plain and self.options.format == "events":
                yield from _parquet(source, columns)
            else:
                record = FORMATS[self.options.format]
                if record.read is None or record.has_lists:
                    raise InputError(f"--format {record.name} cannot be used with --input; use a format of events.")
                yield from record.read([source], columns)


def _parquet(source: Source, columns: Columns) -> Iterator[ReadTask]:
    """A Parquet table by slices: as a whole, as `prepare` reads it, it may be larger than memory."""
    try:
        scan = pl.scan_parquet(source.path)
        wanted = events.resolve(source, scan.collect_schema().names(), columns, events.NAMES, ("item",))
        rows = int(scan.select(pl.len()).collect().item())
        picked = scan.select(pl.col(column).alias(name) for name, column in wanted.items())
        for at in range(0, rows, ROWS):
            frame = picked.slice(at, ROWS).collect()
            yield lambda bad_rows, frame=frame, at=at: RowBatch(source, frame, lambda row: f"row {at + row + 1}")  # type: ignore[misc]
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{source.name} cannot be read as Parquet ({first_line(error)}); write it again.") from error


def _read(task: ReadTask, numeric: bool | None) -> tuple[pl.DataFrame, bool | None]:
    """A block, checked: ids as text or whole numbers, an order where the table has one."""
    bad_rows = BadRows()
    batch = task(bad_rows)
    kept: dict[str, pl.Series] = {}
    if batch is not None:
        for name in ("session", "user", "item"):
            if name in batch.frame:
                column_checks.check_ids(batch, name, bad_rows)
                column = batch.frame[name]
                kept[name] = column.cast(pl.Int64 if column.dtype.is_integer() else pl.String, strict=False)
        if "time" in batch.frame:
            kept["order"] = column_checks.check_times(batch, bad_rows, numeric=numeric)
            numeric = kept["order"].dtype.is_numeric()
        elif "position" in batch.frame:
            kept["order"] = column_checks.check_positions(batch, bad_rows)
    bad_rows.raise_any()
    return pl.DataFrame(kept), numeric


def _stacked(begun: pl.DataFrame, more: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([begun, more], how="vertical_relaxed")


def _ordered(frame: pl.DataFrame, starts: "np.ndarray[Any, np.dtype[np.bool_]]") -> pl.DataFrame:
    if "order" not in frame:
        return frame
    numbered = frame.with_columns(number=pl.Series(np.cumsum(starts)))
    return numbered.sort("number", "order", maintain_order=True).drop("number", "order")


def _unseen(
    owners: pl.DataFrame, seen: "np.ndarray[Any, np.dtype[np.uint64]]"
) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """Hashes of the sessions seen so far and of these, refused if one of these was there before."""
    hashes = owners.hash_rows().to_numpy()
    unique, first = np.unique(hashes, return_index=True)
    again = np.isin(hashes, seen)
    again[np.setdiff1d(np.arange(len(hashes)), first)] = True
    if again.any():
        name = owners.row(int(np.flatnonzero(again)[0]))[0]
        raise InputError(
            f"The events of session {name!r} stand in several places of the table; sort it by session "
            "(and time), so that it can be read piece by piece."
        )
    return np.concatenate([seen, unique])
