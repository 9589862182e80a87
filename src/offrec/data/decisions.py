"""Parts the lists that were served from the events, once both have gone the way of the sessions together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrec.data.log import Lists
from offrec.data.sessions import Events, offsets
from offrec.errors import InputError
from offrec.types import Doubles, Ints, Longs


@dataclass(frozen=True)
class Decided:
    """As `Decisions`, but items are numbered as in the log and padded with −1."""

    offsets: Longs
    positions: Ints
    items: Ints
    log_propensity: Doubles
    event: Longs


def part(events: Events, lists: Lists, training: int) -> tuple[Events, Decided]:
    """Gathered events without the lists among them, and those lists. A list whose pick was left out goes with it.

    training: how many sessions, the first, are there to learn from.
    """
    assert events.rows is not None
    happened = events.items >= 0
    before = offsets(happened.astype(np.int64))  # [R + 1]
    starts = before[events.offsets]
    if starts[training] == 0:
        none = "any of the lists" if not happened.any() else f"the lists of the {training:,} training sessions"
        raise InputError(f"Nothing was picked from {none}; a dataset needs events to learn from: add data.")
    place = np.full(int(max(events.rows.max(), lists.row.max())) + 1, -1, np.int64)  # row of the log → event
    place[events.rows[happened]] = np.arange(int(before[-1]))
    number = np.full(len(place), -1, np.int64)  # row of the log → list
    number[lists.row] = np.arange(len(lists.row))
    here = np.flatnonzero(number[events.rows] >= 0)
    chosen = number[events.rows[here]]
    picked = lists.picked[chosen]
    event = np.where(picked >= 0, place[picked], -1)
    whole = (picked < 0) | (event >= 0)
    here, chosen, event = here[whole], chosen[whole], event[whole]
    session = np.repeat(np.arange(len(events)), events.lengths)[here]
    decided = Decided(
        offsets=offsets(np.bincount(session, minlength=len(events))),
        positions=(before[here] - starts[session]).astype(np.int32),
        items=lists.items[chosen],
        log_propensity=lists.log_propensity[chosen],
        event=event,
    )
    times = None if events.times is None else events.times[happened]
    lengths = np.diff(starts)
    left = replace(events, items=events.items[happened], behaviours=events.behaviours[happened], times=times, rows=None)
    return replace(left, begins=starts[:-1], lengths=lengths), decided


def describe(events: Events, arrays: Mapping[str, NDArray[Any]], notes: list[str]) -> dict[str, Any]:
    """What stands in dataset.json about the decisions; `estimate` prints the notes."""
    count, k = arrays["decision_items"].shape
    return {
        "count": count,
        "k": k,
        "picked": int(np.count_nonzero(arrays["decision_event"] >= 0)),
        "sessions_without_events": int(np.count_nonzero(events.lengths == 0)),
        "notes": notes,
    }


def notes(steps: list[dict[str, Any]]) -> list[str]:
    """What the filters did to the sessions: estimates then speak of other sessions than those that visitors had."""
    return [
        f"{after['step']} left {after['sessions']:,} of {before['sessions']:,} sessions and {after['events']:,} of "
        f"{before['events']:,} events: estimates speak of what is left."
        for before, after in pairwise(steps)
        if after["step"].startswith(("drop", "filter")) and after != before | {"step": after["step"]}
    ]
