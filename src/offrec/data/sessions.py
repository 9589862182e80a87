"""From a log to sessions: order, cut, filter, sample, split. Flat arrays all the way."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from offrec.data.log import Log
from offrec.data.protocol import Split
from offrec.data.threads import together
from offrec.errors import InputError
from offrec.types import Bytes, Ints, Longs

EVENTS_AT_ONCE = 1 << 20
Parts = tuple[float, float, float]
Number = TypeVar("Number", np.int32, np.uint8)
FILTER = re.compile(r"(?P<of>item|session)(\.(?P<behaviour>[^=]+))?=(?P<least>[1-9]\d*)")


@dataclass(frozen=True)
class Events:
    """Sessions as flat arrays: session s holds the events offsets[s] … offsets[s + 1] − 1, in order."""

    items: Ints  # [E]
    behaviours: Bytes  # [E]
    times: Longs | None  # [E]
    offsets: Longs  # [S + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Longs:
        return np.diff(self.offsets)

    def where(self, keep: NDArray[np.bool_], lengths: Longs) -> "Events":
        """The events kept, where `lengths` are those left to each session; a session without events vanishes."""
        return self._at(keep, offsets(lengths[lengths > 0]))

    def take(self, sessions: NDArray[np.integer[Any]]) -> "Events":
        """Whole sessions, in the order given."""
        lengths = self.lengths[sessions]
        places = offsets(lengths)
        events = np.repeat(self.offsets[sessions] - places[:-1], lengths)
        events += np.arange(len(events))
        return self._at(events, places)

    def _at(self, events: NDArray[Any], places: Longs) -> "Events":
        return self._each(lambda column: column[events], places)

    def grouped(self, groups: Bytes, many: int) -> "Events":
        """The sessions of group 0, then those of group 1, …, each in the order it has; `groups` has one a session."""
        belongs = np.repeat(groups, self.lengths)
        lengths = [self.lengths[groups == group] for group in range(many)]
        begins = offsets([int(part.sum()) for part in lengths])[:-1]
        return self._each(lambda column: _grouped(column, belongs, begins), offsets(np.concatenate(lengths)))

    def _each(self, change: Callable[[NDArray[Any]], NDArray[Any]], places: Longs) -> "Events":
        columns = (self.items, self.behaviours, self.times)
        items, behaviours, times = together(*(lambda c=c: None if c is None else change(c) for c in columns))
        return Events(items, behaviours, times, places)

    def size(self) -> str:
        return f"{len(self):,} sessions, {len(self.items):,} events"


def _grouped(column: NDArray[Any], belongs: Bytes, begins: Longs) -> NDArray[Any]:
    """Piece by piece, which needs no array of places as large as the column."""
    ordered = np.empty_like(column)
    for group, at in enumerate(begins.tolist()):
        for begin in range(0, len(column), EVENTS_AT_ONCE):
            inside = column[begin : begin + EVENTS_AT_ONCE][belongs[begin : begin + EVENTS_AT_ONCE] == group]
            ordered[at : at + len(inside)] = inside
            at += len(inside)
    return ordered


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
    found = Events(log.items, log.behaviours, log.times, offsets(log.runs))
    keys = log.times if log.times is not None else log.positions
    if _is_in_order(log.owners, found.offsets, keys):
        apart = np.flatnonzero(log.owners[1:] != log.owners[:-1]) + 1
        return replace(found, offsets=found.offsets[np.concatenate([[0], apart, [len(log.owners)]])])
    owners = np.repeat(log.owners, log.runs)
    order = np.lexsort((owners,) if keys is None else (keys, owners))
    return found._at(order, offsets(np.bincount(owners)))


def _is_in_order(owners: Ints, places: Longs, keys: Longs | None) -> bool:
    if (owners[1:] < owners[:-1]).any():
        return False
    if keys is None:
        return True
    earlier = keys[1:] < keys[:-1]
    earlier[places[1:-1][owners[1:] != owners[:-1]] - 1] = False  # another owner's clock
    return not earlier.any()


def cut_by_gap(events: Events, gap: float) -> Events:
    """A new session begins where more than `gap` ticks pass without an event."""
    assert events.times is not None
    begins = np.diff(events.times) > gap
    begins[events.offsets[1:-1] - 1] = True
    cuts = np.flatnonzero(begins) + 1
    return replace(events, offsets=np.concatenate([events.offsets[:1], cuts, events.offsets[-1:]]))


def drop_behaviour(events: Events, name: str, behaviours: tuple[str, ...]) -> Events:
    if name not in behaviours:
        return events
    keep = events.behaviours != behaviours.index(name)
    return events.where(keep, _kept_per_session(events, keep))


def _kept_per_session(events: Events, keep: NDArray[np.bool_]) -> Longs:
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep, dtype=np.int64)])
    return np.diff(before[events.offsets])


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
    counted = None if parsed["behaviour"] is None else events.behaviours == behaviours.index(parsed["behaviour"])
    least = int(parsed["least"])
    if parsed["of"] == "item":
        items = events.items if counted is None else events.items[counted]
        keep = (count(items, int(events.items.max()) + 1) >= least)[events.items]
        return events.where(keep, _kept_per_session(events, keep))
    lengths = events.lengths if counted is None else _kept_per_session(events, counted)
    enough = lengths >= least
    return events.where(np.repeat(enough, events.lengths), np.where(enough, events.lengths, 0))


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
        ordered = events.take(np.argsort(events.times[events.offsets[:-1]], kind="stable"))
    else:
        shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(total)
        groups = np.zeros(total, np.uint8)
        groups[shuffled[first:second]] = 1
        groups[shuffled[second:]] = 2
        ordered = events.grouped(groups, 3)
    return ordered, {"train": [0, first], "validation": [first, second], "test": [second, total]}


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


def compact(events: Events, item_ids: Longs | list[str], names: tuple[str, ...]) -> Catalogue:
    """Without the items and behaviours that no event is left of."""
    items, kept = _renumber(events.items, len(item_ids))
    behaviours, kept_names = _renumber(events.behaviours, len(names))
    ids = item_ids[kept] if isinstance(item_ids, np.ndarray) else [item_ids[place] for place in kept]
    events = replace(events, items=items, behaviours=behaviours)
    return Catalogue(events, ids, tuple(names[place] for place in kept_names))


def _renumber(numbers: NDArray[Number], size: int) -> tuple[NDArray[Number], Longs]:
    """Numbers without gaps, and which of the old ones are left."""
    used = count(numbers, size) > 0
    if used.all():
        return numbers, np.arange(size)
    return (np.cumsum(used) - 1).astype(numbers.dtype)[numbers], np.flatnonzero(used)
