"""Recommend items for every session of a table, with bounded memory.

The table is read in blocks and the lists are written as they are computed. Memory contains one block of the table
(16 MB of text, or `PARQUET_ROWS` rows of Parquet), one chunk of sessions with their lists, and 8 bytes per session read
so far, to detect sessions whose rows are not contiguous.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from offrec.console import PLAIN_SECONDS, Console
from offrec.data import sources
from offrec.data.bad_rows import ReadTask
from offrec.data.factorize import run_starts
from offrec.data.files import publish_file
from offrec.data.formats import FORMATS, Columns, events
from offrec.data.parquet_tables import parquet
from offrec.data.sources import Source
from offrec.errors import InputError, first_line
from offrec.policy import Id, Policy, check_skip_recent, encode_shown
from offrec.serving.engine import AllowedItems, Engine, Query
from offrec.serving.session_blocks import SessionBlocks, session_keys

PARQUET_ROWS = 1 << 18  # rows of a Parquet table in one block
BATCH_SESSIONS = 256  # sessions in one pass over the catalogue
WRITERS: dict[str, Callable[[pl.LazyFrame, Path], Any]] = {
    ".parquet": lambda frame, path: frame.sink_parquet(path),
    ".csv": lambda frame, path: frame.sink_csv(path),
    ".tsv": lambda frame, path: frame.sink_csv(path, separator="\t"),
    ".jsonl": lambda frame, path: frame.sink_ndjson(path),
}


@dataclass(frozen=True)
class TableOptions:
    """Options of `write_recommendations`.

    Attributes:
        k: The length of a list.
        exclude_seen: Whether the items of a session are excluded from its list.
        skip_recent: How many of the last items of a session rank below all other items.
        format: The format of the table, as for `offrec prepare`.
        columns: The names of its columns.
        chunk: The number of sessions in memory at once.
        allow: Recommend only these item ids; None for the whole catalogue.
        deny: Item ids that are not recommended.
        is_command: Whether messages name the options of the command line, or the arguments of a function.
    """

    k: int = 10
    exclude_seen: bool = False
    skip_recent: int = 0
    format: str = "events"
    columns: Columns = field(default_factory=Columns)
    chunk: int = 4096
    allow: Sequence[Id] | None = None
    deny: Sequence[Id] = ()
    is_command: bool = True

    def flag(self, name: str) -> str:
        """Return the name of an option for messages."""
        return name if not self.is_command else f"-{name}" if len(name) == 1 else f"--{name}"


@dataclass
class TableCounts:
    """Counts of a table that was read.

    Attributes:
        sessions: Sessions.
        events: Events.
        unknown_items: Events whose item is not in the catalogue; they are ignored.
    """

    sessions: int = 0
    events: int = 0
    unknown_items: int = 0

    def __add__(self, other: "TableCounts") -> "TableCounts":
        values = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return TableCounts(*(one + more for one, more in values))

    def as_json(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


def write_recommendations(
    policy: Policy, paths: Sequence[str | Path], out: Path, options: TableOptions, console: Console, *, force: bool
) -> TableCounts:
    """Write the k best items of every session to a table with the columns session, rank, item, score, probability.

    If the items have titles, the table also has the column title.

    Args:
        policy: Ranks the items.
        paths: The files of the table, whose rows must be grouped by session.
        out: The file to write; its suffix determines the format.
        options: Which columns to read and what to recommend.
        console: Prints the progress.
        force: Whether an existing file is replaced.

    Returns:
        The counts of the table.

    Raises:
        InputError: If an option or the table is invalid; then nothing is written.
    """
    check_options(policy, options)
    if out.suffix not in WRITERS:
        raise InputError(f"--out must end in one of {', '.join(WRITERS)}, or be a folder, without a suffix; got {out}.")
    if out.exists() and not force:
        raise InputError(f"--out {out} exists; choose another file, or replace it with --force.")
    return write_lists(policy, sources.find(paths), out, options, console).counts


def write_lists(
    policy: Policy, files: list[Source], out: Path, options: TableOptions, console: Console
) -> "SessionTable":
    """Write the lists of some files to a file, whose suffix determines the format; return the table that was read."""
    table = SessionTable(policy, _read_tasks(files, options), options, console)
    first = next(table.lists, None)
    if first is None:
        raise InputError(f"{files[0].name} contains no events; expected rows below the header; check the file.")
    with publish_file(out, advice="choose another --out") as temporary:
        try:
            frame = register_io_source(lambda *_: table.frames(first), schema=first.schema)
            WRITERS[out.suffix](frame, temporary)
        except pl.exceptions.PolarsError as error:
            if table.error is not None:
                raise table.error from error
            raise InputError(f"{out} cannot be written ({first_line(error)}); choose another --out.") from error
    return table


def check_options(policy: Policy, options: TableOptions) -> None:
    """Raise InputError if an option is out of range."""
    if not 1 <= options.k <= policy.n_items:
        raise InputError(
            f"{options.flag('k')} must be between 1 and {policy.n_items}, the number of items in the catalogue; "
            f"got {options.k}."
        )
    if options.chunk < 1:
        raise InputError(f"--chunk must be positive; got {options.chunk}.")
    check_skip_recent(options.skip_recent)


class SessionTable:
    """Processes a table: from blocks to whole sessions to lists.

    Args:
        policy: Ranks the items.
        tasks: Read the blocks of the table, whose rows are grouped by session.
        options: Which columns to read and what to recommend.
        console: Prints the progress.

    Attributes:
        lists: Yields the lists, as tables with the columns session, rank, item, score, probability and, if the items
            have titles, title.
        counts: Counts what was read.
        blocks: Reads the sessions of the table.
    """

    def __init__(self, policy: Policy, tasks: Iterator[ReadTask], options: TableOptions, console: Console) -> None:
        self.policy, self.options, self.console = policy, options, console
        self.engine, self.counts = Engine(policy, seed=0), TableCounts()  # nothing is sampled
        self.allowed = _allowed_items(policy, options)
        self.error: Exception | None = None
        self.blocks = SessionBlocks(tasks)
        self.lists = self._lists()
        self.last_printed = time.monotonic()

    def frames(self, first: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield all lists. Errors are also stored, because polars replaces them with its own."""
        try:
            yield first
            yield from self.lists
        except Exception as error:
            self.error = error
            raise

    def _lists(self) -> Iterator[pl.DataFrame]:
        for frame in self.blocks.read():
            keys = session_keys(frame)
            starts = np.flatnonzero(run_starts([frame[name] for name in keys]))
            ends = np.append(starts[1:], frame.height)
            items = frame["item"].to_list()
            offered = frame["offered"].to_list() if "offered" in frame else None
            for first in range(0, len(starts), self.options.chunk):
                chunk = slice(first, first + self.options.chunk)
                parts = [slice(start, end) for start, end in zip(starts[chunk], ends[chunk], strict=True)]
                queries = [self._query(items[part], [] if offered is None else offered[part]) for part in parts]
                yield self._recommend(frame.select(keys)[starts[chunk]], queries)

    def _query(self, items: list[Id | None], offered: list[list[str]]) -> Query:
        """Return the query of a session: its items, None where nothing was picked, and its lists, if it has any."""
        vocabulary, options = self.policy.vocabulary, self.options
        picks = [item for item in items if item is not None]
        history, unknown = vocabulary.encode(picks)
        self.counts.events += len(picks)
        self.counts.unknown_items += unknown
        excluded = frozenset(history) if options.exclude_seen else frozenset()
        shown = encode_shown(vocabulary, list(zip(offered, items, strict=True))) if offered else []
        return Query(history, options.k, excluded, skip_recent=options.skip_recent, allowed=self.allowed, shown=shown)

    def _recommend(self, keys: pl.DataFrame, queries: list[Query]) -> pl.DataFrame:
        """Return the lists of some sessions, one row per item; `keys` has one row per session."""
        batches = (queries[first : first + BATCH_SESSIONS] for first in range(0, len(queries), BATCH_SESSIONS))
        results = [result for batch in batches for result in self.engine.rank(batch)]
        self.counts.sessions += len(queries)
        if time.monotonic() - self.last_printed > PLAIN_SECONDS:
            self.last_printed = time.monotonic()
            self.console.line(f"recommending: {self.counts.sessions:,} sessions so far")
        lengths = np.array([len(result.items) for result in results])
        vocabulary = self.policy.vocabulary
        ranks = [rank for length in lengths for rank in range(1, length + 1)]
        indices = [item for result in results for item in result.items]
        items, titles = [vocabulary.id(item) for item in indices], self.policy.titles(indices)
        probabilities: list[float | None] = []
        for result in results:
            probabilities += result.probabilities or [None] * len(result.items)
        return keys[np.repeat(np.arange(len(results)), lengths)].with_columns(
            pl.Series("rank", ranks, pl.Int32),
            pl.Series("item", items, pl.Int64 if vocabulary.is_numeric else pl.String),
            pl.Series("score", [score for result in results for score in result.scores], pl.Float64),
            pl.Series("probability", probabilities, pl.Float64),
            *([] if titles is None else [pl.Series("title", titles, pl.String)]),
        )


def _read_tasks(files: list[Source], options: TableOptions) -> Iterator[ReadTask]:
    columns = options.columns
    lists = ("offered",) if options.format == "decisions" else ()
    names, required = (*events.COLUMNS, *lists), ("item", *lists)
    for file in files:
        is_parquet = file.member is None and file.path.suffix in (".parquet", ".pq")
        if is_parquet and options.format in ("events", "decisions"):  # in smaller parts than `prepare` reads
            resolve = partial(_resolve, columns, names, required)
            yield from parquet(file, resolve, rows_per_task=PARQUET_ROWS)
        elif options.format == "decisions":
            yield from events.read_columns([file], columns, names, required, lambda line: None)
        else:
            record = FORMATS[options.format]
            if record.read is None or record.has_lists:
                raise InputError(f"--format {record.name} cannot be used with --input; choose events or decisions.")
            yield from record.read([file], columns, lambda line: None)


def _allowed_items(policy: Policy, options: TableOptions) -> AllowedItems | None:
    if options.allow is None and not options.deny:
        return None
    mask = np.ones(policy.n_items, np.bool_) if options.allow is None else policy.vocabulary.mask(options.allow)
    allowed = AllowedItems(mask & ~policy.vocabulary.mask(options.deny))
    if not allowed.count:
        lists = f"{options.flag('allow')} and {options.flag('deny')}"
        raise InputError(f"No item is left to recommend: {lists} leave no item of the catalogue.")
    return allowed


def _resolve(
    columns: Columns, names: Sequence[str], required: Sequence[str], file: Source, available: Sequence[str]
) -> dict[str, str]:
    return events.resolve(file, available, columns, names, required)
