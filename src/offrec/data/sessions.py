"""From a log to sessions: order, cut, filter, sample, split. Flat arrays all the way."""

import re
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from offrec.data.log import Log
from offrec.data.protocol import Split
from offrec.errors import InputError
from offrec.types import Bytes, Ints, Longs

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
        times = None if self.times is None else self.times[keep]
        return Events(self.items[keep], self.behaviours[keep], times, offsets(lengths[lengths > 0]))

    def take(self, sessions: NDArray[np.integer[Any]]) -> "Events":
        """Whole sessions, in the order given."""
        lengths = self.lengths[sessions]
        places = offsets(lengths)
        events = np.repeat(self.offsets[sessions] - places[:-1], lengths)
        events += np.arange(len(events))
        times = None if self.times is None else self.times[events]
        return Events(self.items[events], self.behaviours[events], times, places)

    def size(self) -> str:
        return f"{len(self):,} sessions, {len(self.items):,} events"


def offsets(lengths: Longs | list[int]) -> Longs:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def arrange(log: Log) -> Events:
    """Each owner's events together, by time, else by position; equal ones keep the file's order."""
    owners, items, behaviours, times = log.owners, log.items, log.behaviours, log.times
    keys = times if times is not None else log.positions
    wrong = owners[1:] < owners[:-1]
    if keys is not None:
        wrong |= (owners[1:] == owners[:-1]) & (keys[1:] < keys[:-1])
    if wrong.any():
        order = np.lexsort((owners,) if keys is None else (keys, owners))
        items, behaviours = items[order], behaviours[order]
        times = None if times is None else times[order]
    return Events(items, behaviours, times, offsets(np.bincount(owners)))


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
        counts = np.bincount(
            events.items if counted is None else events.items[counted], minlength=1 + events.items.max()
        )
        keep = (counts >= least)[events.items]
        return events.where(keep, _kept_per_session(events, keep))
    lengths = events.lengths if counted is None else _kept_per_session(events, counted)
    enough = lengths >= least
    return events.where(np.repeat(enough, events.lengths), np.where(enough, events.lengths, 0))


def sample(events: Events, count: int, seed: int) -> Events:
    """`count` sessions without replacement; all of them where there are fewer."""
    if count >= len(events):
        return events
    # A stream of its own, so that asking for a sample does not change how its sessions would be split.
    chosen = np.random.Generator(np.random.PCG64([seed, 1])).choice(len(events), count, replace=False)
    return events.take(np.sort(chosen))


def split(events: Events, how: Split, seed: int, parts: Parts) -> tuple[Events, dict[str, list[int]]]:
    """Sessions in the order train, validation, test, and where each begins and ends.

    Within a split sessions keep the log's order (random) or stand by their start (time).
    """
    count = len(events)
    if count < 3:
        raise InputError(f"Only {count} sessions are left, too few for three splits; loosen the filters or add data.")
    first, second = _bounds(count, parts)
    if how == "time":
        assert events.times is not None
        order = np.argsort(events.times[events.offsets[:-1]], kind="stable")
    else:
        shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(count)
        order = np.concatenate([np.sort(part) for part in np.split(shuffled, [first, second])])
    return events.take(order), {"train": [0, first], "validation": [first, second], "test": [second, count]}


def _bounds(count: int, parts: Parts) -> tuple[int, int]:
    first = round(count * parts[0] / sum(parts))
    second = round(count * (parts[0] + parts[1]) / sum(parts))
    first = min(max(first, 1), count - 2)
    return first, min(max(second, first + 1), count - 1)


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


def _renumber(numbers: NDArray[Number], count: int) -> tuple[NDArray[Number], Longs]:
    """Numbers without gaps, and which of the old ones are left."""
    used = np.bincount(numbers, minlength=count) > 0
    if used.all():
        return numbers, np.arange(count)
    return (np.cumsum(used) - 1).astype(numbers.dtype)[numbers], np.flatnonzero(used)
