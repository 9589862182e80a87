"""Turn a log into sessions: order, cut, filter, sample and split, all on flat arrays."""

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.data.dataset_checks import SPLITS
from offrec.data.log import Log
from offrec.data.protocol import Split
from offrec.data.session_hash import hash_groups
from offrec.data.threads import run_for_each
from offrec.errors import InputError
from offrec.types import Bytes, Floats, Indices, Ints, Longs

GROUP_EVENTS = 1 << 18
SplitParts = tuple[float, float, float]
Number = TypeVar("Number", np.int32, np.uint8)
FILTER = re.compile(r"(?P<unit>item|session)(\.(?P<behaviour>[^=]+))?=(?P<minimum>[1-9]\d*)")


@dataclass(frozen=True)
class Events:
    """Events by session: session s has the events begins[s] … begins[s] + lengths[s] − 1, in order.

    Selecting and ordering sessions moves no events; only `gather` moves them, once, at the end. In a log with served
    lists, the events include a row for each list without a pick, until `decisions.separate_lists` removes it.
    """

    items: Ints  # [E] −1 if the row is a list without a pick
    behaviours: Bytes  # [E]
    times: Longs | None  # [E]
    begins: Longs  # [S]
    lengths: Longs  # [S]
    rows: Longs | None = None  # [E] the row in the log; only for logs with served lists
    rewards: Floats | None = None  # [E] the reward column; only for logs that have one
    owners: Indices | None = None  # [S] the owner of each session

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def total(self) -> int:
        """The number of rows in all sessions."""
        return int(self.lengths.sum())

    @property
    def offsets(self) -> Longs:
        """[S + 1] the first row of each session after `gather`."""
        return offsets(self.lengths)

    @property
    def event_counts(self) -> Longs:
        """[S] the number of events of each session, not counting lists without a pick."""
        return self.lengths if self.rows is None else self._count_marked(self.items >= 0)

    def behaviour_counts(self, behaviour: int) -> Longs:
        """[S] the number of events with this behaviour in each session."""
        matches = self.behaviours == behaviour
        return self._count_marked(matches if self.rows is None else matches & (self.items >= 0))

    def _count_marked(self, marked: NDArray[np.bool_]) -> Longs:
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(marked, dtype=np.int64)])
        counts: Longs = before[self.begins + self.lengths] - before[self.begins]
        return counts

    def take(self, sessions: NDArray[Any]) -> "Events":
        """Return the sessions with these indices, in this order, or the sessions where a mask is true."""
        owners = None if self.owners is None else self.owners[sessions]
        return replace(self, begins=self.begins[sessions], lengths=self.lengths[sessions], owners=owners)

    def gather(self) -> "Events":
        """Return the same sessions with their events stored consecutively."""
        edges = self.offsets
        if self.total == len(self.items) and np.array_equal(self.begins, edges[:-1]):
            return self
        columns = self._columns()
        gathered = {name: np.empty(self.total, column.dtype) for name, column in columns.items()}

        def move(group: slice) -> None:
            begin, end = edges[group.start], edges[group.stop]
            events = np.repeat(self.begins[group] - edges[group], self.lengths[group]) + np.arange(begin, end)
            for name, column in columns.items():
                gathered[name][begin:end] = column[events]

        run_for_each(move, session_groups(edges))
        return replace(self, **gathered, begins=edges[:-1])

    def where(self, keep: NDArray[np.bool_]) -> "Events":
        """Keep only some rows, and remove the sessions that become empty. Call `Events.gather` first."""
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep, dtype=np.int64)])
        lengths = np.diff(before[self.offsets])
        owners = None if self.owners is None else self.owners[lengths > 0]
        lengths = lengths[lengths > 0]
        columns = {name: column[keep] for name, column in self._columns().items()}
        return replace(self, **columns, begins=offsets(lengths)[:-1], lengths=lengths, owners=owners)

    def _columns(self) -> dict[str, Any]:
        columns = {name: getattr(self, name) for name in ("items", "behaviours", "times", "rows", "rewards")}
        return {name: column for name, column in columns.items() if column is not None}

    def describe_size(self) -> str:
        """Return the numbers of sessions and events, for messages."""
        return describe_counts(len(self), int(self.event_counts.sum()))


def describe_counts(sessions: int, events: int) -> str:
    """Return text such as "1 session, 2 events"."""
    return f"{sessions:,} session{'s' * (sessions != 1)}, {events:,} event{'s' * (events != 1)}"


def session_groups(edges: Longs) -> list[slice]:
    """Divide sessions into groups of about GROUP_EVENTS events, small enough for the processor's cache."""
    firsts = np.searchsorted(edges[:-1], np.arange(0, edges[-1], GROUP_EVENTS)).tolist()
    return [slice(first, last) for first, last in pairwise([*firsts, len(edges) - 1]) if first < last]


def count(numbers: Ints | Bytes, size: int) -> Longs:
    """Count how often each number occurs, in parts, because numpy first converts its input to 64 bits."""
    total = np.zeros(size, np.int64)
    for begin in range(0, len(numbers), GROUP_EVENTS):
        total += np.bincount(numbers[begin : begin + GROUP_EVENTS], minlength=size)
    return total


def offsets(lengths: Longs | list[int]) -> Longs:
    """Return the cumulative sums of lengths, starting with 0."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def order_events(log: Log) -> Events:
    """Order the events of each owner by time, or by position without times. Ties keep the order of the file."""
    keys = log.times if log.times is not None else log.positions
    edges = offsets(log.runs)
    if not (log.owners[1:] < log.owners[:-1]).any():  # each owner's events are consecutive already
        firsts = np.flatnonzero(np.concatenate([[True], log.owners[1:] != log.owners[:-1]]))
        edges, owners = edges[np.append(firsts, len(log.owners))], log.owners[firsts]
        if keys is None or _is_ordered(keys, edges):
            rows = None if log.lists is None else np.arange(len(log.items))
            return Events(log.items, log.behaviours, log.times, edges[:-1], np.diff(edges), rows, log.rewards, owners)
    owners = np.repeat(log.owners, log.runs)
    order = np.lexsort((owners,) if keys is None else (keys, owners))
    times = None if log.times is None else log.times[order]
    lengths = np.bincount(owners)
    rows = None if log.lists is None else order
    rewards = None if log.rewards is None else log.rewards[order]
    begins, numbers = offsets(lengths)[:-1], np.arange(len(lengths))
    return Events(log.items[order], log.behaviours[order], times, begins, lengths, rows, rewards, numbers)


def _is_ordered(keys: Longs, edges: Longs) -> bool:
    """Return whether the keys of every owner are in ascending order."""
    for group in session_groups(edges):
        begin, end = edges[group.start], edges[group.stop]
        decreases = keys[begin + 1 : end] < keys[begin : end - 1]
        decreases[edges[group.start + 1 : group.stop] - begin - 1] = False
        if decreases.any():
            return False
    return True


def cut_by_gap(events: Events, gap: float) -> Events:
    """Start a new session after more than `gap` ticks without an event. Call `Events.gather` first."""
    assert events.times is not None
    is_first = np.diff(events.times, prepend=events.times[:1]) > gap
    is_first[events.begins] = True
    begins = np.flatnonzero(is_first)
    owners = events.owners
    if owners is not None:
        owners = owners[np.searchsorted(events.begins, begins, side="right") - 1]
    return replace(events, begins=begins, lengths=np.diff(begins, append=len(is_first)), owners=owners)


def drop_behaviour(events: Events, name: str, behaviours: tuple[str, ...]) -> Events:
    """Remove the events that have this behaviour."""
    if name not in behaviours:
        return events
    events = events.gather()
    return events.where((events.behaviours != behaviours.index(name)) | (events.items < 0))


def check_filter(text: str, behaviours: tuple[str, ...] | None = None) -> re.Match[str]:
    """Parse a filter.

    Args:
        text: The filter, such as "session.click=3".
        behaviours: The behaviours of the log, if they are known.

    Raises:
        InputError: If the text is not a filter or names a behaviour that the log does not have.
    """
    match = FILTER.fullmatch(text)
    if match is None:
        raise InputError(f"--filter {text!r} cannot be read; expected item=3, session=3 or session.click=3.")
    if behaviours is not None and match["behaviour"] not in {None, *behaviours}:
        raise InputError(f"--filter {text!r} names an unknown behaviour; the log has {', '.join(behaviours)}.")
    return match


def apply_filter(events: Events, text: str, behaviours: tuple[str, ...]) -> Events:
    """Apply a filter once.

    "item=3" keeps items with at least 3 events, "session=3" keeps sessions with at least 3 events, and
    "session.click=3" counts only clicks.
    """
    match = check_filter(text, behaviours)
    minimum, behaviour = int(match["minimum"]), match["behaviour"]
    if match["unit"] == "session":
        counts = events.event_counts if behaviour is None else events.behaviour_counts(behaviours.index(behaviour))
        return events.take(counts >= minimum)
    events = events.gather()
    items = events.items if behaviour is None else events.items[events.behaviours == behaviours.index(behaviour)]
    if events.rows is None:
        return events.where((count(items, int(events.items.max()) + 1) >= minimum)[events.items])
    is_frequent = count(items[items >= 0], int(events.items.max(initial=0)) + 1) >= minimum
    return events.where(is_frequent[events.items] | (events.items < 0))


def sample(events: Events, size: int, seed: int, *, stream: int = 1) -> Events:
    """Draw `size` sessions without replacement; keep all if there are fewer. Each sample has its own `stream`."""
    if size >= len(events):
        return events
    # Samples have their own random streams, so that sampling does not change how sessions are split.
    chosen = np.random.Generator(np.random.PCG64([seed, stream])).choice(len(events), size, replace=False)
    return events.take(np.sort(chosen))


def split(
    events: Events, how: Split, seed: int, parts: SplitParts, owner_ids: pl.DataFrame | None = None
) -> tuple[Events, dict[str, list[int]]]:
    """Divide sessions into training, validation and test.

    Args:
        events: The sessions.
        how: At random, by their start, or by a hash of their ids.
        seed: Seed of the random split; key of the hash.
        parts: Proportions of the splits.
        owner_ids: The ids of the owners; only for the split by hash.

    Returns:
        The sessions in the order train, validation, test, and the range [first, last + 1) of each split. Within a
        split, sessions keep the order of the log (random), are ordered by their start (time), or by their start and
        their id as text (hash).
    """
    total = len(events)
    if total < 3:
        raise InputError(f"Only {total} sessions remain, too few for three splits; relax the filters or add data.")
    if how == "hash":
        assert owner_ids is not None
        keys = session_keys(events, owner_ids)
        groups = hash_groups(keys.select(owner_ids.columns), seed, parts)
        ordered = keys.with_columns(group=groups).select(pl.arg_sort_by("group", *keys.columns)).to_series()
        return events.take(ordered.to_numpy()), ranges_of_splits(np.bincount(groups, minlength=3).tolist())
    first, second = _split_bounds(total, parts)
    if how == "time":
        assert events.times is not None
        order = np.argsort(events.times[events.begins], kind="stable")
    else:
        shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(total)
        group = np.zeros(total, np.uint8)
        group[shuffled[first:second]] = 1
        group[shuffled[second:]] = 2
        order = np.concatenate([np.flatnonzero(group == number) for number in range(3)])
    return events.take(order), {"train": [0, first], "validation": [first, second], "test": [second, total]}


def session_keys(events: Events, owner_ids: pl.DataFrame) -> pl.DataFrame:
    """Return the columns by which `--split hash` orders sessions: their start, if the log has times, and their ids.

    No two sessions have equal keys: sessions of one user that are cut by gaps start at different times.
    """
    assert events.owners is not None
    ids = owner_ids[events.owners]
    if events.times is None:
        return ids
    return ids.select(pl.Series("first", events.times[events.begins]), *ids.columns)


def ranges_of_splits(sizes: list[int]) -> dict[str, list[int]]:
    """Return the range [first, last + 1) of each split by its size.

    Raises:
        InputError: If a split is empty.
    """
    for name, size in zip(SPLITS, sizes, strict=True):
        if not size:
            raise InputError(
                f"--split hash assigns none of the {sum(sizes):,} sessions to {name}; add data, or choose another "
                "--split-seed or --split-parts."
            )
    return {name: [sum(sizes[:at]), sum(sizes[: at + 1])] for at, name in enumerate(SPLITS)}


def _split_bounds(total: int, parts: SplitParts) -> tuple[int, int]:
    """Return the indices of the first validation and first test session, adjusted so that no split is empty."""
    first = round(total * parts[0] / sum(parts))
    second = round(total * (parts[0] + parts[1]) / sum(parts))
    first = min(max(first, 1), total - 2)
    return first, min(max(second, first + 1), total - 1)
