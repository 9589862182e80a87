"""Separate served lists from events, after the filters and the split were applied to both together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrec.data.log import ServedLists
from offrec.data.sessions import Events, offsets
from offrec.errors import InputError
from offrec.types import Doubles, Ints, Longs


@dataclass(frozen=True)
class RawDecisions:
    """The fields of `Decisions`, with items numbered as in the log and padded with −1."""

    offsets: Longs
    positions: Ints
    items: Ints
    log_propensity: Doubles
    event: Longs


def separate_lists(events: Events, lists: ServedLists, n_training: int) -> tuple[Events, RawDecisions]:
    """Separate events and lists. A list whose pick was filtered out is removed too.

    Args:
        events: Gathered events, with the lists that have no pick among them.
        lists: All lists of the log.
        n_training: The number of training sessions; they precede all others.

    Returns:
        The events alone, and the lists.

    Raises:
        InputError: If the training sessions contain no event.
    """
    assert events.rows is not None
    is_event = events.items >= 0
    before = offsets(is_event.astype(np.int64))  # [R + 1] number of events before each row
    starts = before[events.offsets]
    if starts[n_training] == 0:
        which = "any list" if not is_event.any() else f"the lists of the {n_training:,} training sessions"
        raise InputError(f"Nothing was picked from {which}; training needs events: add data.")
    size = int(max(events.rows.max(), lists.row.max())) + 1
    event_of_row = np.full(size, -1, np.int64)
    event_of_row[events.rows[is_event]] = np.arange(int(before[-1]))
    list_of_row = np.full(size, -1, np.int64)
    list_of_row[lists.row] = np.arange(len(lists.row))
    at = np.flatnonzero(list_of_row[events.rows] >= 0)
    index = list_of_row[events.rows[at]]
    picked = lists.picked[index]
    event = np.where(picked >= 0, event_of_row[picked], -1)
    is_complete = (picked < 0) | (event >= 0)
    at, index, event = at[is_complete], index[is_complete], event[is_complete]
    session = np.repeat(np.arange(len(events)), events.lengths)[at]
    decisions = RawDecisions(
        offsets=offsets(np.bincount(session, minlength=len(events))),
        positions=(before[at] - starts[session]).astype(np.int32),
        items=lists.items[index],
        log_propensity=lists.log_propensity[index],
        event=event,
    )
    only_events = replace(
        events,
        items=events.items[is_event],
        behaviours=events.behaviours[is_event],
        times=None if events.times is None else events.times[is_event],
        begins=starts[:-1],
        lengths=np.diff(starts),
        rows=None,
        rewards=None if events.rewards is None else events.rewards[is_event],
    )
    return only_events, decisions


def describe(events: Events, arrays: Mapping[str, NDArray[Any]], notes: list[str]) -> dict[str, Any]:
    """Return the entry `decisions` of dataset.json; `offrec estimate` prints its notes."""
    count, k = arrays["decision_items"].shape
    return {
        "count": count,
        "k": k,
        "with_pick": int(np.count_nonzero(arrays["decision_event"] >= 0)),
        "sessions_without_events": int(np.count_nonzero(events.lengths == 0)),
        "notes": notes,
    }


def filter_notes(steps: list[dict[str, Any]]) -> list[str]:
    """Return a note for each filter that removed sessions or events: estimates do not cover them."""
    return [
        f"{after['step']} kept {after['sessions']:,} of {before['sessions']:,} sessions and {after['events']:,} of "
        f"{before['events']:,} events: estimates are about these sessions only."
        for before, after in pairwise(steps)
        if after["step"].startswith(("drop", "filter")) and after != before | {"step": after["step"]}
    ]
