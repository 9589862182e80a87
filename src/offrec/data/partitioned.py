"""Prepare a log that is larger than the memory, or than one machine.

The rows are divided by a hash of their session, and each partition is prepared alone. Only three things are global:
facts about the columns, the counts of items, and the order of sessions. They come back to this process as reports. With
`--split hash`, the dataset is the same as without partitions, for any number of partitions and any engine.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from offrec.data import folder, item_files, partitions
from offrec.data.bad_rows import BadRows, ReadTask
from offrec.data.dataset_checks import SPLITS
from offrec.data.engine import Engine, Stored, Tables
from offrec.data.formats import FORMATS, Say
from offrec.data.log import TICKS_PER_SECOND, BatchChecker, CheckedBatch, behaviour_order, guess_unit
from offrec.data.options import PrepareOptions, resolve_protocol
from offrec.data.partitions import BatchReport, HashSplit, LogFacts, Numbering, PartReport
from offrec.data.protocol import Protocol
from offrec.data.sessions import Events, describe_counts, offsets, ranges_of_splits
from offrec.data.sources import PARQUET_SUFFIXES, SUFFIXES, Source
from offrec.data.statistics import Statistics
from offrec.data.vocabulary import Vocabulary, encode_ids
from offrec.errors import InputError

BYTES_PER_EVENT = 64  # of a range of sessions in memory, about
UNPACKED = 4  # how many times larger a compressed file or a Parquet file is in memory, about
OnRead = Callable[[int, int], None]


def check_options(options: PrepareOptions, reason: str) -> None:
    """Refuse options that need the whole log in memory.

    Args:
        options: The options.
        reason: The option that asks for partitions, for messages.

    Raises:
        InputError: If an option cannot be used.
    """
    if options.split != "hash":
        raise InputError(f"{reason} needs --split hash, because other splits need all sessions; got {options.split}.")
    record = FORMATS[options.format]
    if record.read is None or record.has_lists or options.offered or options.propensity:
        raise InputError(f"{reason} reads tables of events without served lists; remove it for this log.")
    sample = record.paper.sample if options.sample is None and options.protocol == "paper" else options.sample
    for name, is_given in (("--sample", bool(sample)), ("--sample-first", bool(options.sample_first))):
        if is_given:
            raise InputError(f"{reason} cannot be used with {name}, which needs all sessions; use --sample 0.")
    refused = {"--catalogue": options.catalogue is not None, "--keep-unseen-items": options.keep_unseen_items}
    for name, is_given in refused.items():
        if is_given:
            raise InputError(f"{reason} cannot be used with {name}; remove one of them.")


@dataclass(frozen=True)
class _Log:
    """A log whose rows are with the engine, divided by session."""

    facts: LogFacts
    rows: dict[str, int]
    pieces: Sequence[Stored]


@dataclass
class _Parts:
    """The partitions of a log, and what they reported last."""

    reports: list[PartReport]
    stored: list[Stored]

    def counts(self) -> pl.DataFrame:
        """Return how often each item occurs: id and count. Ids are text if they are text in any partition."""
        tables = [report.items for report in self.reports if report.items.height]
        dtype = pl.String if any(table["id"].dtype == pl.String for table in tables) else pl.Int64
        counts = pl.concat(table.cast({"id": dtype}) for table in tables)
        return counts.group_by("id").agg(pl.col("count").sum())

    def size(self, step: int) -> tuple[int, int]:
        """Return the number of sessions and events after one of the last steps."""
        return sum(one.sizes[step][0] for one in self.reports), sum(one.sizes[step][1] for one in self.reports)

    def splits(self) -> dict[str, tuple[int, int]]:
        """Return the number of sessions and events of each split."""
        each = [[report.splits[at] for report in self.reports] for at in range(len(SPLITS))]
        sizes = [(sum(size for size, _ in one), sum(events for _, events in one)) for one in each]
        return dict(zip(SPLITS, sizes, strict=True))


class PartitionedPreparation:
    """Prepares a log through an engine.

    Args:
        engine: Runs the steps.
        options: The options of `offrec prepare`.
        say: Prints a line.
    """

    def __init__(self, engine: Engine, options: PrepareOptions, say: Say) -> None:
        self.engine, self.options, self.say = engine, options, say

    def write(self, tables: list[Source], target: Path, on_read: OnRead | None, *, warn: bool) -> dict[str, Any]:
        """Write the arrays of the dataset to a folder.

        Args:
            tables: The sources.
            target: The folder, which exists.
            on_read: As in `prepare`.
            warn: Whether to print warnings about columns that are not read.

        Returns:
            The contents of dataset.json without hashes, and in `arrays` the description of each array.
        """
        item_rows = item_files.read_item_rows(self.options.items, self.options.item) if self.options.items else None
        log = self._read(tables, on_read, warn)
        protocol = resolve_protocol(self.options, log.facts)
        steps, parts = self._make_sessions(log, protocol)
        ids = parts.counts()["id"].sort()
        item_ids = ids.to_numpy() if ids.dtype == pl.Int64 else ids.to_list()
        used = np.flatnonzero(sum(report.behaviours for report in parts.reports))
        names = tuple(log.facts.behaviour_names[index] for index in used)
        new_codes = np.zeros(256, np.uint8)
        new_codes[used] = np.arange(len(used))
        sizes = parts.splits()
        splits = ranges_of_splits([size for size, _ in sizes.values()])
        total_sessions, total_events = (sum(size[at] for size in sizes.values()) for at in range(2))
        statistics = Statistics(names, len(item_ids))
        self.say("ordering sessions")
        ranges = self._order(parts, protocol, Numbering(ids, new_codes, log.facts.ticks), total_events)
        descriptions = _write_events(target, ranges, total_sessions, total_events, log.facts, statistics)
        arrays, about = encode_ids(item_ids), dict[str, Any]()
        if item_rows is not None:
            properties = item_files.encode_properties(item_rows, Vocabulary(item_ids))
            arrays |= properties.arrays()
            about["item_properties"] = properties.as_json()
            for note in properties.notes:
                self.say(note)
        return {
            "offrec_version": version("offrec"),
            "counts": {"sessions": total_sessions, "events": total_events, "items": len(item_ids)},
            "behaviours": list(names),
            "splits": splits,
            "item_id_type": "int" if ids.dtype == pl.Int64 else "string",
            "statistics": statistics.as_json(sizes),
            "protocol": protocol.as_json(),
            "time_format": "dates" if log.facts.time_type == "dates" else log.facts.time_unit,
            "source_rows": log.rows,
            "steps": steps,
            **about,
            "arrays": descriptions | folder.save_arrays(target, arrays),
        }

    def _read(self, tables: list[Source], on_read: OnRead | None, warn: bool) -> _Log:
        """Read and check all rows, and divide them by session."""
        record = FORMATS[self.options.format]
        assert record.read is not None
        sizes = {table.path: table.size for table in tables}
        n = self.engine.partitions(sum(size * _expansion(path) for path, size in sizes.items()))
        self.say(f"dividing the log into {n:,} partition{'s' * (n > 1)}")
        tasks = record.read(tables, self.options.columns, self.say if warn else lambda line: None)
        tasks, checker = _decide_times(tasks, BatchChecker(record.behaviours, self.options.behaviours))
        reports, pieces = self.engine.split(partitions.split_batch, tasks, n, checker)
        collected, bad_rows, positions = list[BatchReport](), BadRows(), dict[Path, int]()
        for report in reports:
            collected.append(report)
            bad_rows.extend(report.bad_rows)
            if on_read is not None and report.path is not None:
                positions[report.path] = report.position
                on_read(sum(positions.values()), sum(sizes.values()))
        bad_rows.raise_any()
        rows = {table.name: sum(one.rows for one in collected if one.name == table.name) for table in tables}
        if not sum(rows.values()):
            raise InputError(f"{', '.join(rows)} contains only a header; expected events below it.")
        for name, number in rows.items():
            self.say(f"{name}: {number:,} rows")
        if any("log_propensity" in one.columns for one in collected):
            raise InputError("The log has a column of propensities; rename it, or prepare the log without partitions.")
        return _Log(_facts(collected, self.options), rows, pieces)

    def _make_sessions(self, log: _Log, protocol: Protocol) -> tuple[list[dict[str, Any]], _Parts]:
        """Order, cut and filter the sessions of each partition; return the counts after each step."""
        facts, names = log.facts, log.facts.behaviour_names
        if protocol.sessions == "gap" and facts.ticks is not None:
            facts = replace(facts, gap=protocol.gap_minutes * 60 * TICKS_PER_SECOND[facts.ticks])
        parts = _Parts(*self.engine.merge(partitions.make_sessions, log.pieces, facts))
        records = [self._record("read", parts.size(0), parts.size(0))]
        split = HashSplit(protocol.split_seed, protocol.split_parts)
        kept: pl.Series | None = None
        for item_filter, steps, next_filter in _groups_of_steps(protocol):
            if item_filter:
                kept = _frequent_items(parts, item_filter)
            shared = (steps, names, kept if item_filter else None, next_filter, split)
            parts = _Parts(*self.engine.update(partitions.apply_steps, parts.stored, *shared))
            for number, step in enumerate([f"filter {item_filter}"] * bool(item_filter) + steps):
                before = (records[0]["sessions"], records[0]["events"])
                records.append(self._record(step, parts.size(number), before))
        return records, parts

    def _record(self, step: str, size: tuple[int, int], before: tuple[int, int]) -> dict[str, Any]:
        if not size[0]:
            raise InputError(f"{step} removes all of the {describe_counts(*before)}; relax the filters.")
        self.say(f"{step}: {describe_counts(*size)}")
        return {"step": step, "sessions": size[0], "events": size[1]}

    def _order(self, parts: _Parts, protocol: Protocol, numbering: Numbering, events: int) -> Iterator[Tables]:
        """Yield the sessions in the order of the dataset, by ranges that fit into memory."""
        n = self.engine.partitions(events * BYTES_PER_EVENT)
        bounds = _choose_bounds([report.keys for report in parts.reports if report.keys is not None], n)
        split = HashSplit(protocol.split_seed, protocol.split_parts)
        reports, pieces = self.engine.split(
            partitions.split_by_order, parts.stored, bounds.height + 1, split, bounds, numbering
        )
        for _ in reports:
            pass
        _, ranges = self.engine.merge(partitions.order_sessions, pieces)
        for one in ranges:
            yield self.engine.load(one)


def _expansion(path: Path) -> int:
    return UNPACKED if path.suffix in (*SUFFIXES, *PARQUET_SUFFIXES) else 1


def _decide_times(tasks: Iterator[ReadTask], checker: BatchChecker) -> tuple[Iterator[ReadTask], BatchChecker]:
    """Let the first batch decide whether times are numbers, as without partitions."""
    first = list[ReadTask]()
    for task in tasks:
        first.append(task)
        batch = checker.check(task)
        if isinstance(batch, CheckedBatch):
            if "time" in batch.columns:
                checker = replace(checker, numeric_times=batch.columns["time"].dtype.is_numeric())
            break
    return chain(first, tasks), checker


def _facts(reports: Sequence[BatchReport], options: PrepareOptions) -> LogFacts:
    names = {name for report in reports for name in report.behaviours}
    types = {report.time_type for report in reports if report.rows and report.time_type}
    if len(types) > 1 and "dates" in types:
        raise InputError("Times are numbers in some files and dates in others; prepare them separately.")
    unit = None
    if types:
        unit = guess_unit(max(report.largest_time for report in reports)) if "dates" not in types else "microseconds"
    return LogFacts(
        tuple(sorted(names, key=behaviour_order)),
        tuple(sorted({name for report in reports for name in report.columns})),
        "decimals" if "decimals" in types else next(iter(types), None),
        unit,
        options.reward_behaviours,
    )


def _groups_of_steps(protocol: Protocol) -> list[tuple[str, list[str], str]]:
    """Return the steps between item filters: (filter before them or "", steps, filter after them or "")."""
    groups: list[tuple[str, list[str]]] = [("", [f"drop {name}" for name in protocol.behaviours_dropped])]
    for text in protocol.filters:
        if text.startswith("item"):
            groups.append((text, []))
        else:
            groups[-1][1].append(f"filter {text}")
    following = [one for one, _ in groups[1:]] + [""]
    return [(*group, after) for group, after in zip(groups, following, strict=True)]


def _frequent_items(parts: _Parts, item_filter: str) -> pl.Series:
    minimum = int(item_filter.rpartition("=")[2])
    return parts.counts().filter(pl.col("count") >= minimum)["id"]


def _choose_bounds(samples: list[pl.DataFrame], n: int) -> pl.DataFrame:
    """Choose the first group and key of each range except the first, so that ranges have similar numbers of events."""
    sample = pl.concat(samples).sort("group", "key")
    share = np.cumsum(sample["events"].to_numpy()) / max(1, int(sample["events"].sum()))
    cuts = np.unique(np.searchsorted(share, np.arange(1, n) / n))
    return sample[cuts].select("group", "key").unique(maintain_order=True)


def _write_events(
    target: Path, ranges: Iterator[Tables], sessions: int, events: int, facts: LogFacts, statistics: Statistics
) -> dict[str, Any]:
    """Write the arrays of events in parts; return the description of each array."""
    types = {"item": ("items", "int32"), "behaviour": ("behaviours", "uint8")}
    types |= {"time": ("times", "int64")} if facts.has_times else {}
    types |= {"reward": ("rewards", "float32")} if "reward" in facts.columns else {}
    files = {key: folder.ArrayFile(target / f"{name}.npy", dtype, events) for key, (name, dtype) in types.items()}
    edges = folder.ArrayFile(target / "offsets.npy", "int64", sessions + 1)
    edges.append(np.zeros(1, np.int64))
    for tables in filter(None, ranges):
        lengths = tables["sessions"]["events"].to_numpy()
        columns = {key: tables["events"][key].to_numpy() for key in files}
        first = files["item"].written
        edges.append(first + np.cumsum(lengths))
        for key, column in columns.items():
            files[key].append(column)
        rewards = columns.get("reward")
        part = Events(columns["item"], columns["behaviour"], None, offsets(lengths)[:-1], lengths, rewards=rewards)
        statistics.add(part)
    descriptions = {name: files[key].close() for key, (name, _) in types.items()} | {"offsets": edges.close()}
    order = ("items", "behaviours", "offsets", "times", "rewards")  # as without partitions
    return {name: descriptions[name] for name in order if name in descriptions}
