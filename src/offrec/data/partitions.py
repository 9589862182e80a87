"""The steps that prepare one partition of a log. `offrec.data.partitioned` calls them through an engine.

A partition contains all events of its owners (sessions or users). Its tables are:

    events    item (index into `items`), behaviour, and time and reward if the log has them; sessions are consecutive
    sessions  length, and the ids of the owner as text: user, session or both
    items     id
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.data import sessions
from offrec.data.bad_rows import BadRows, ReadTask
from offrec.data.engine import Tables
from offrec.data.factorize import factorize_sorted
from offrec.data.log import (
    TICKS_PER_SECOND,
    BatchChecker,
    Log,
    TimeUnit,
    ids_of_owners,
    largest_time,
    number_owners,
    numbers_as_ticks,
    to_milliseconds,
)
from offrec.data.options import limit_rewards
from offrec.data.session_hash import hash_groups, hash_ids
from offrec.data.sessions import Events
from offrec.types import Bytes, Longs

PARTITION_KEY = 0x6F66667265632D70  # so that partitions and splits are independent
OWNERS = ("user", "session")
SAMPLE = 256  # sessions per partition from which the ranges of the dataset are chosen


@dataclass(frozen=True)
class BatchReport:
    """What the caller needs to know about a batch of the log."""

    path: Path | None  # None if the batch cannot be read
    name: str
    rows: int
    position: int
    behaviours: list[str]
    columns: list[str]
    time_type: str | None  # "dates", "integers" or "decimals"
    largest_time: float
    bad_rows: BadRows


@dataclass(frozen=True)
class LogFacts:
    """What each partition needs to know about the whole log."""

    behaviour_names: tuple[str, ...]
    columns: tuple[str, ...]
    time_type: str | None
    time_unit: TimeUnit | None  # of the times in the sources
    reward_behaviours: tuple[str, ...] = ()
    gap: float | None = None  # ticks of inactivity that end a session

    @property
    def has_sessions(self) -> bool:
        """Whether the log has session ids."""
        return "session" in self.columns

    @property
    def has_times(self) -> bool:
        """Whether events have times."""
        return self.time_type is not None

    @property
    def ticks(self) -> TimeUnit | None:
        """The unit of the times in partitions."""
        return "microseconds" if self.time_type == "decimals" else self.time_unit


@dataclass(frozen=True)
class PartReport:
    """The size of a partition after each of some steps, and how often its items and behaviours occur."""

    sizes: list[tuple[int, int]]  # (sessions, events)
    items: pl.DataFrame  # id, count
    behaviours: NDArray[np.int64]  # counts
    keys: pl.DataFrame | None = None  # sampled sessions, sorted: group, key, events; only after the last step
    splits: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)] * 3)  # sessions and events of each split


@dataclass(frozen=True)
class HashSplit:
    """How sessions are assigned to splits."""

    seed: int
    parts: tuple[float, float, float]


@dataclass(frozen=True)
class Numbering:
    """The numbers of items and behaviours in the dataset, and the unit of its times."""

    item_ids: pl.Series  # [A]
    behaviours: Bytes  # [256] number in the log → number in the dataset
    ticks: TimeUnit | None


def split_batch(task: ReadTask, n: int, checker: BatchChecker) -> tuple[BatchReport, list[pl.DataFrame]]:
    """Read and check a batch, and divide its rows by a hash of their owners."""
    batch = checker.check(task)
    if isinstance(batch, BadRows):
        return BatchReport(None, "", 0, 0, [], [], None, 0.0, batch), [pl.DataFrame()] * n
    source, columns = batch.source, batch.columns
    times = None if batch.bad_rows else columns.get("time")
    is_number = times is not None and times.dtype.is_numeric()
    report = BatchReport(
        source.path,
        source.name,
        batch.rows,
        batch.position,
        batch.behaviours,
        sorted(columns),
        None if times is None else _time_type(times.dtype),
        largest_time(times) if times is not None and is_number and len(times) else 0.0,
        batch.bad_rows,
    )
    if batch.bad_rows:
        return report, [pl.DataFrame()] * n
    runs = pl.DataFrame({name: columns[name] for name in OWNERS if name in columns})
    partition = hash_ids(_as_text(runs), PARTITION_KEY) % np.uint64(n)
    lengths = columns["runs"].to_numpy()
    rows = runs[np.repeat(np.arange(len(lengths)), lengths)].with_columns(
        columns[name].alias(name) for name in ("item", "time", "position", "reward") if name in columns
    )
    names = pl.Series(batch.behaviours)
    behaviour = names.gather(columns["behaviour"]).cast(pl.Enum(names.unique(maintain_order=True)))
    rows = rows.with_columns(behaviour=behaviour)
    order = np.argsort(np.repeat(partition, lengths), kind="stable")
    edges = sessions.offsets(np.bincount(partition.astype(np.int64), lengths, n).astype(np.int64))
    rows = rows[order]
    return report, [rows[int(first) : int(last)] for first, last in itertools.pairwise(edges)]


def _time_type(dtype: pl.DataType) -> str:
    if dtype == pl.Int64:
        return "integers"
    return "decimals" if dtype == pl.Float64 else "dates"


def _as_text(owners: pl.DataFrame) -> pl.DataFrame:
    return owners.cast(pl.String).fill_null("")


def make_sessions(pieces: Sequence[pl.DataFrame], facts: LogFacts) -> tuple[PartReport, Tables]:
    """Order the events of a partition by session and time, and cut sessions by gaps."""
    pieces = [piece for piece in pieces if piece.height]
    if not pieces:
        return PartReport([(0, 0)], _no_items(), np.zeros(len(facts.behaviour_names), np.int64)), {}
    columns = {name: _concatenate(name, pieces, facts) for name in pieces[0].columns}
    owner_columns = {name: columns[name] for name in OWNERS if name in columns}
    owners = number_owners(owner_columns)
    item_ids, items = factorize_sorted(columns["item"])
    times = columns.get("time")
    log = Log(
        owners=owners,
        runs=np.ones(len(owners), np.int64),
        items=items,
        behaviours=columns["behaviour"].to_physical().cast(pl.UInt8).to_numpy(),
        times=None if times is None else _as_ticks(times, facts),
        positions=columns["position"].to_numpy() if "position" in columns else None,
        item_ids=item_ids,
        behaviour_names=facts.behaviour_names,
        time_unit=facts.ticks,
        time_format=None,
        has_sessions="session" in columns,
        rows={},
        rewards=columns["reward"].to_numpy() if "reward" in columns else None,
        owner_ids=ids_of_owners(owners, owner_columns),
    )
    events = sessions.order_events(limit_rewards(log, facts.reward_behaviours))
    if facts.gap is not None:
        events = sessions.cut_by_gap(events, facts.gap)
    assert log.owner_ids is not None
    assert events.owners is not None
    part = Partition(replace(events, owners=None), log.owner_ids[events.owners], pl.Series("id", item_ids))
    return part.report([part.size]), part.tables()


def _concatenate(name: str, pieces: Sequence[pl.DataFrame], facts: LogFacts) -> pl.Series:
    parts = [piece[name] for piece in pieces]
    types = {part.dtype for part in parts}
    if name == "behaviour":
        parts = [part.cast(pl.String).cast(pl.Enum(facts.behaviour_names)) for part in parts]
    elif name == "time" and facts.time_type == "decimals":
        parts = [part.cast(pl.Float64) for part in parts]
    elif len(types) > 1:
        parts = [part.cast(pl.String if pl.String in types else pl.Int64) for part in parts]
    return pl.concat(parts, rechunk=True)


def _as_ticks(times: pl.Series, facts: LogFacts) -> Longs:
    if facts.time_type == "dates" or facts.time_unit is None:
        return times.to_physical().to_numpy()
    return numbers_as_ticks(times, facts.time_unit)


@dataclass(frozen=True)
class Partition:
    """The sessions of a partition."""

    events: Events
    owners: pl.DataFrame  # [S] the ids of each session's owner
    items: pl.Series  # [A] the item ids

    @staticmethod
    def of(tables: Tables) -> "Partition":
        """Return the partition that the tables contain."""
        events, table = tables["events"], tables["sessions"]
        lengths = table["length"].to_numpy()
        columns = {name: events[name].to_numpy() if name in events else None for name in ("time", "reward")}
        return Partition(
            Events(
                items=events["item"].to_numpy(),
                behaviours=events["behaviour"].to_numpy(),
                times=columns["time"],
                rewards=columns["reward"],
                begins=sessions.offsets(lengths)[:-1],
                lengths=lengths,
            ),
            table.drop("length"),
            tables["items"]["id"],
        )

    def tables(self) -> Tables:
        """Return the tables of the partition."""
        events = self.events.gather()
        columns = {"item": events.items, "behaviour": events.behaviours}
        columns |= {} if events.times is None else {"time": events.times}
        columns |= {} if events.rewards is None else {"reward": events.rewards}
        table = self.owners.with_columns(length=pl.Series(events.lengths))
        return {"events": pl.DataFrame(columns), "sessions": table, "items": self.items.to_frame()}

    @property
    def size(self) -> tuple[int, int]:
        """The number of sessions and events."""
        return len(self.events), self.events.total

    def keys(self, split: HashSplit) -> pl.DataFrame:
        """Return group, start and ids of each session, by which the dataset is ordered, and its number of events."""
        numbered = replace(self.events, owners=np.arange(len(self.events)))
        keys = sessions.session_keys(numbered, self.owners)
        groups = pl.Series("group", hash_groups(self.owners, split.seed, split.parts))
        return keys.select(groups, *keys.columns, pl.Series("events", self.events.lengths))

    def replace_events(self, change: Any) -> "Partition":
        """Return the partition after `change` of its events; `change` may remove events and sessions."""
        events = change(replace(self.events, owners=np.arange(len(self.events))))
        return Partition(replace(events, owners=None), self.owners[events.owners], self.items)

    def report(self, sizes: list[tuple[int, int]], behaviour: int | None = None) -> PartReport:
        """Count the items of all events, or of the events of one behaviour, and the behaviours."""
        events = self.events.gather()
        items = events.items if behaviour is None else events.items[events.behaviours == behaviour]
        counts = pl.DataFrame({"id": self.items, "count": sessions.count(items, len(self.items))})
        return PartReport(sizes, counts.filter(pl.col("count") > 0), sessions.count(events.behaviours, 256))


def apply_steps(
    tables: Tables,
    steps: Sequence[str],
    behaviours: tuple[str, ...],
    kept_items: pl.Series | None,
    next_filter: str,
    split: HashSplit,
) -> tuple[PartReport, Tables]:
    """Apply an item filter, whose result is known, and then steps that do not depend on other partitions.

    Args:
        tables: The partition.
        steps: "drop NAME" or "filter session=N".
        behaviours: The names of the behaviours.
        kept_items: The ids of the items to keep; None: all.
        next_filter: The item filter that comes next, or "" after the last one. The report has the counts that the
            filter needs; after the last filter, it has the splits.
        split: How sessions are split.
    """
    if not tables:
        none = [(0, 0)] * (len(steps) + (kept_items is not None))
        return PartReport(none, _no_items(), np.zeros(256, np.int64)), {}
    part, sizes = Partition.of(tables), list[tuple[int, int]]()
    if kept_items is not None:
        kept = part.items.cast(kept_items.dtype).is_in(kept_items.implode()).to_numpy()
        part = part.replace_events(lambda events: (rows := events.gather()).where(kept[rows.items]))
        sizes.append(part.size)
    for step in steps:
        kind, _, text = step.partition(" ")
        if kind == "drop":
            part = part.replace_events(lambda events, name=text: sessions.drop_behaviour(events, name, behaviours))
        else:
            part = part.replace_events(lambda events, one=text: sessions.apply_filter(events, one, behaviours))
        sizes.append(part.size)
    if next_filter:
        counted = sessions.check_filter(next_filter, behaviours)["behaviour"]
        return part.report(sizes, None if counted is None else behaviours.index(counted)), part.tables()
    keys = part.keys(split)
    by_split = [keys.filter(pl.col("group") == group)["events"] for group in range(3)]
    splits = [(len(lengths), int(lengths.sum())) for lengths in by_split]
    sample = keys.sort(keys.columns[:2])[:: max(1, keys.height // SAMPLE)].select([*keys.columns[:2], "events"])
    sample = sample.rename({keys.columns[1]: "key"}).with_columns(pl.col("events") * max(1, keys.height // SAMPLE))
    return replace(part.report(sizes), keys=sample, splits=splits), part.tables()


def split_by_order(
    tables: Tables, n: int, split: HashSplit, bounds: pl.DataFrame, numbering: Numbering
) -> tuple[None, list[pl.DataFrame]]:
    """Divide a partition into ranges of the dataset's order of sessions; each piece has one row per session.

    Args:
        tables: The partition.
        n: The number of ranges.
        split: How sessions are split.
        bounds: [n − 1] the first group and key of each range except the first, ascending.
        numbering: The numbers of items and behaviours.
    """
    if not tables or not tables["sessions"].height:
        return None, [pl.DataFrame()] * n
    part = Partition.of(tables)
    keys = part.keys(split).with_columns(number=pl.int_range(pl.len()))  # before the times are converted in place
    indices = pl.int_range(len(numbering.item_ids), dtype=pl.Int32, eager=True)
    table = pl.DataFrame({"id": numbering.item_ids, "index": indices})
    local = part.items.cast(numbering.item_ids.dtype).alias("id").to_frame()
    new = local.join(table, on="id", how="left", maintain_order="left")["index"].fill_null(-1).to_numpy()
    events = replace(part.events, items=new[part.events.items], behaviours=numbering.behaviours[part.events.behaviours])
    if events.times is not None and numbering.ticks is not None:
        events = replace(events, times=to_milliseconds(events.times, TICKS_PER_SECOND[numbering.ticks]))
    chunk = np.zeros(keys.height, np.int64)
    for group in range(3):  # a session's range is the number of bounds that are not greater than its group and key
        rows = pl.Series(keys["group"] == group)
        edges = bounds.filter(pl.col("group") == group)["key"]
        smaller = edges.search_sorted(keys[keys.columns[1]].filter(rows), side="right").to_numpy()
        chunk[rows.to_numpy()] = bounds.filter(pl.col("group") < group).height + smaller
    pieces = []
    for number in range(n):
        inside = keys.filter(pl.Series(chunk == number))
        chosen = events.take(inside["number"].to_numpy()).gather()
        columns: dict[str, Any] = {"item": chosen.items, "behaviour": chosen.behaviours}
        columns |= {"time": chosen.times, "reward": chosen.rewards}
        lists = {name: _nest(column, chosen.lengths) for name, column in columns.items() if column is not None}
        pieces.append(inside.drop("number").with_columns(**lists))
    return None, pieces


def _nest(column: NDArray[Any], lengths: Longs) -> pl.Series:
    """Return one list of values per session."""
    frame = pl.DataFrame({"value": column, "session": np.repeat(np.arange(len(lengths)), lengths)})
    return frame.group_by("session", maintain_order=True).agg("value")["value"]


def order_sessions(pieces: Sequence[pl.DataFrame]) -> tuple[None, Tables]:
    """Sort the sessions of a range, and return their events."""
    pieces = [piece for piece in pieces if piece.height]
    if not pieces:
        return None, {}
    table = pl.concat(pieces)
    table = table.sort([name for name in table.columns if name in ("group", "first", *OWNERS)])
    columns = [name for name in ("item", "behaviour", "time", "reward") if name in table]
    return None, {"sessions": table.select("events"), "events": table.select(columns).explode(columns)}


def _no_items() -> pl.DataFrame:
    return pl.DataFrame(schema={"id": pl.Null, "count": pl.Int64})
