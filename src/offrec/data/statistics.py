"""What a prepared log looks like: the figures of dataset.json and the rows of the table that is printed."""

from typing import Any

import numpy as np

from offrec.data.sessions import Events, count, pieces

QUANTILES = {"min": 0.0, "50 %": 0.5, "90 %": 0.9, "99 %": 0.99, "max": 1.0}


def describe(events: Events, splits: dict[str, list[int]], behaviours: tuple[str, ...], items: int) -> dict[str, Any]:
    counts = count(events.behaviours, len(behaviours))
    places = events.offsets
    up_to = np.cumsum(np.bincount(events.lengths)) / len(events)  # share of sessions of at most so many events
    lengths = [np.searchsorted(up_to, max(share, up_to[up_to > 0][0])) for share in QUANTILES.values()]
    return {
        "events_per_behaviour": {name: int(found) for name, found in zip(behaviours, counts, strict=True)},
        "splits": {
            name: {"sessions": last - first, "events": int(places[last] - places[first])}
            for name, (first, last) in splits.items()
        },
        "session_length": {name: int(length) for name, length in zip(QUANTILES, lengths, strict=True)},
        "repeats": repeats(events, items) / len(events.items),
    }


def repeats(events: Events, items: int) -> int:
    """How many events show an item that occurred earlier in their session.

    Those are all but the distinct pairs of session and item. The pairs stand almost in order, session after session,
    and the stable sort makes use of it.
    """
    found = 0
    places = events.offsets
    for part in pieces(places):
        sessions = np.arange(part.stop - part.start, dtype=np.int64)
        pairs = np.repeat(sessions * items, events.lengths[part]) + events.items[places[part.start] : places[part.stop]]
        pairs.sort(kind="stable")
        found += int(np.count_nonzero(pairs[1:] == pairs[:-1]))
    return found


def rows(meta: dict[str, Any]) -> list[tuple[str, str]]:
    """The statistics of a dataset.json as (name, value), for a table."""
    counts, statistics = meta["counts"], meta["statistics"]
    table = [(name, f"{counts[name]:,}") for name in ("sessions", "events", "items")]
    table += [(f"events: {name}", f"{found:,}") for name, found in statistics["events_per_behaviour"].items()]
    lengths = " / ".join(f"{length:,}" for length in statistics["session_length"].values())
    table.append((f"session length ({' / '.join(statistics['session_length'])})", lengths))
    table.append(("share of repeats", f"{statistics['repeats']:.1%}"))
    if decisions := meta.get("decisions"):
        share = decisions["picked"] / decisions["count"]
        lists = f"{decisions['count']:,} lists of up to {decisions['k']:,} items"
        table.append(("decisions", f"{lists}, {share:.1%} picked from"))
        table.append(("sessions without a pick", f"{decisions['sessions_without_events']:,}"))
    for name, split in statistics["splits"].items():
        table.append((name, f"{split['sessions']:,} sessions, {split['events']:,} events"))
    return table
