"""From a log to sessions: order, cut, filter, sample, split. Flat arrays all the way."""

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from offrec.data.log import Log
from offrec.data.protocol import Split
from offrec.data.threads import run_for_each
from offrec.errors import InputError
from offrec.types import Bytes, Ints, Longs

EVENTS_AT_ONCE = 1 << 18
Parts = tuple[float, float, float]
Number = TypeVar("Number", np.int32, np.uint8)
FILTER = re.compile(r"(?P<of>item|session)(\.(?P<behaviour>[^=]+))?=(?P<least>[1-9]\d*)")


@dataclass(frozen=True)
class Events:
    """Session s holds the `lengths[s]` events from `begins[s]` on, in order.

    Choosing and ordering sessions touches no event: only `gathered` moves them, once, at the end. Of a log with
    decisions, lists from which nothing was picked stand among the events until `decisions` parts them.
    """

    items: Ints  # [E] −1: no event but a list from which nothing was picked
    behaviours: Bytes  # [E]
    times: Longs | None  # [E]
    begins: Longs  # [S]
    lengths: Longs  # [S]
    rows: Longs | None = None  # [E] where each stands in the log; only of logs with decisions

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def total(self) -> int:
        return int(self.lengths.sum())

    @property
    def offsets(self) -> Longs:
        """[S + 1] of events that are gathered."""
        return offsets(self.lengths)

    @property
    def picks(self) -> Longs:
        """[S] the events of each session, lists aside."""
        return self.lengths if self.rows is None else self._within(self.items >= 0)

    def counts(self, behaviour: int) -> Longs:
        """[S] the events of this behaviour in each session."""
        found = self.behaviours == behaviour
        return self._within(found if self.rows is None else found & (self.items >= 0))

    def _within(self, marked: NDArray[np.bool_]) -> Longs:
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(marked, dtype=np.int64)])
        found: Longs = before[self.begins + self.lengths] - before[self.begins]
        return found

    def take(self, sessions: NDArray[Any]) -> "Events":
        """The sessions chosen, by number or by a mask, in that order."""
        return replace(self, begins=self.begins[sessions], lengths=self.lengths[sessions])

    def gathered(self) -> "Events":
        """The same sessions, one after the other and nothing between them."""
        places = self.offsets
        if self.total == len(self.items) and np.array_equal(self.begins, places[:-1]):
            return self
        columns = self._columns()
        moved = {name: np.empty(self.total, column.dtype) for name, column in columns.items()}

        def move(part: slice) -> None:
            begin, end = places[part.start], places[part.stop]
            events = np.repeat(self.begins[part] - places[part], self.lengths[part]) + np.arange(begin, end)
            for name, column in columns.items():
                moved[name][begin:end] = column[events]

        run_for_each(move, pieces(places))
        return replace(self, **moved, begins=places[:-1])

    def where(self, keep: NDArray[np.bool_]) -> "Events":
        """Gathered events without those that are not kept; a session without events vanishes."""
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep, dtype=np.int64)])
        lengths = np.diff(before[self.offsets])
        lengths = lengths[lengths > 0]
        kept = {name: column[keep] for name, column in self._columns().items()}
        return replace(self, **kept, begins=offsets(lengths)[:-1], lengths=lengths)

    def _columns(self) -> dict[str, Any]:
        columns = {name: getattr(self, name) for name in ("items", "behaviours", "times", "rows")}
        return {name: column for name, column in columns.items() if column is not None}

    def size(self) -> str:
        return f"{len(self):,} sessions, {int(self.picks.sum()):,} events"


def pieces(places: Longs) -> list[slice]:
    """Sessions in groups of about EVENTS_AT_ONCE events, so that what is made of a group stays in the cache."""
    firsts = np.searchsorted(places[:-1], np.arange(0, places[-1], EVENTS_AT_ONCE)).tolist()
    return [slice(first, last) for first, last in pairwise([*firsts, len(places) - 1]) if first < last]


def count(numbers: Ints | Bytes, size: int) -> Longs:
    """How often each number occurs; piece by piece, as numpy turns what it counts into 64 bits first."""
    total = np.zeros(size, np.int64)
    for begin in range(0, len(numbers), EVENTS_AT_ONCE):
        total += np.bincount(numbers[begin : begin + EVENTS_AT_ONCE], minlength=size)
    return total


def offsets(lengths: Longs | list[int]) -> Longs:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def arrange(log: Log) -> Events:
    """Each owner's events together, by time, else by position; equal ones keep the file's order."""
    keys = log.times if log.times is not None else log.positions
    places = offsets(log.runs)
    if not (log.owners[1:] < log.owners[:-1]).any():
        apart = np.flatnonzero(log.owners[1:] != log.owners[:-1]) + 1
        places = places[np.concatenate([[0], apart, [len(log.owners)]])]
        if keys is None or _are_in_order(keys, places):
            rows = None if log.lists is None else np.arange(len(log.items))
            return Events(log.items, log.behaviours, log.times, places[:-1], np.diff(places), rows)
    owners = np.repeat(log.owners, log.runs)
    order = np.lexsort((owners,) if keys is None else (keys, owners))
    times = None if log.times is None else log.times[order]
    lengths = np.bincount(owners)
    rows = None if log.lists is None else order
    return Events(log.items[order], log.behaviours[order], times, offsets(lengths)[:-1], lengths, rows)


def _are_in_order(keys: Longs, places: Longs) -> bool:
    """Whether keys never fall within what one owner did."""
    for part in pieces(places):
        begin, end = places[part.start], places[part.stop]
        falls = keys[begin + 1 : end] < keys[begin : end - 1]
        falls[places[part.start + 1 : part.stop] - begin - 1] = False
        if falls.any():
            return False
    return True


def cut_by_gap(events: Events, gap: float) -> Events:
    """Of gathered events: a new session begins where more than `gap` ticks pass without one."""
    assert events.times is not None
    new = np.diff(events.times, prepend=events.times[:1]) > gap
    new[events.begins] = True
    begins = np.flatnonzero(new)
    return replace(events, begins=begins, lengths=np.diff(begins, append=len(new)))


def drop_behaviour(events: Events, name: str, behaviours: tuple[str, ...]) -> Events:
    if name not in behaviours:
        return events
    events = events.gathered()
    return events.where((events.behaviours != behaviours.index(name)) | (events.items < 0))


def check_filter(text: str, behaviours: tuple[str, ...] | None = None) -> re.Match[str]:
    parsed = FILTER.fullmatch(text)
    if parsed is None:
        raise InputError(f"The filter {text!r} cannot be read; expected item=3, session=3 or session.click=3.")
    if behaviours is not None and parsed["behaviour"] not in {None, *behaviours}:
        raise InputError(f"The filter {text!r} names no behaviour of this log; it has {', '.join(behaviours)}.")
    return parsed


def apply_filter(events: Events, text: str, behaviours: tuple[str, ...]) -> Events:
    """`item=3` keeps items with at least 3 events, `session=3` sessions; `session.click=3` counts only clicks."""
    parsed = check_filter(text, behaviours)
    least, behaviour = int(parsed["least"]), parsed["behaviour"]
    if parsed["of"] == "session":
        found = events.picks if behaviour is None else events.counts(behaviours.index(behaviour))
        return events.take(found >= least)
    events = events.gathered()
    items = events.items if behaviour is None else events.items[events.behaviours == behaviours.index(behaviour)]
    if events.rows is None:
        return events.where((count(items, int(events.items.max()) + 1) >= least)[events.items])
    enough = count(items[items >= 0], int(events.items.max(initial=0)) + 1) >= least
    return events.where(enough[events.items] | (events.items < 0))


def sample(events: Events, size: int, seed: int) -> Events:
    """`size` sessions without replacement; all of them where there are fewer."""
    if size >= len(events):
        return events
    # A stream of its own, so that asking for a sample does not change how its sessions would be split.
    chosen = np.random.Generator(np.random.PCG64([seed, 1])).choice(len(events), size, replace=False)
    return events.take(np.sort(chosen))


def split(events: Events, how: Split, seed: int, parts: Parts) -> tuple[Events, dict[str, list[int]]]:
    """Sessions in the order train, validation, test, and where each begins and ends.

    Within a split sessions keep the log's order (random) or stand by their start (time).
    """
    total = len(events)
    if total < 3:
        raise InputError(f"Only {total} sessions are left, too few for three splits; loosen the filters or add data.")
    first, second = _bounds(total, parts)
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


def _bounds(total: int, parts: Parts) -> tuple[int, int]:
    """Where validation and test begin; none of the three is empty."""
    first = round(total * parts[0] / sum(parts))
    second = round(total * (parts[0] + parts[1]) / sum(parts))
    first = min(max(first, 1), total - 2)
    return first, min(max(second, first + 1), total - 1)


@dataclass(frozen=True)
class Catalogue:
    events: Events
    item_ids: Longs | list[str]
    behaviour_names: tuple[str, ...]


def compact(
    events: Events,
    item_ids: Longs | list[str],
    names: tuple[str, ...],
    offered: Ints | None = None,
    *,
    whole: bool = False,
) -> tuple[Catalogue, Ints | None]:
    """Gathered events, without the items and behaviours that no event is left of, and the lists that were offered,
    padded with −1, whose items stay. `whole`: all items stay.
    """
    lists = np.zeros(0, np.int32) if offered is None else offered[offered >= 0]
    everything: Ints = np.arange(len(item_ids) if whole else 0, dtype=np.int32)
    (items, listed, _), kept = _renumber([events.items, lists, everything], len(item_ids))
    (behaviours,), kept_names = _renumber([events.behaviours], len(names))
    ids = item_ids[kept] if isinstance(item_ids, np.ndarray) else [item_ids[place] for place in kept]
    events = replace(events, items=items, behaviours=behaviours)
    if offered is not None:
        renamed = np.full_like(offered, len(ids))
        renamed[offered >= 0] = listed
        offered = renamed
    return Catalogue(events, ids, tuple(names[place] for place in kept_names)), offered


def _renumber(parts: list[NDArray[Number]], size: int) -> tuple[list[NDArray[Number]], Longs]:
    """Numbers without gaps, and which of the old ones are left."""
    used = np.logical_or.reduce([count(part, size) > 0 for part in parts])
    if used.all():
        return parts, np.arange(size)
    places = (np.cumsum(used) - 1).astype(parts[0].dtype)
    return [places[part] for part in parts], np.flatnonzero(used)
