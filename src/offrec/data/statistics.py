"""Statistics of a prepared log, for dataset.json and for the table that `offrec prepare` prints."""

from typing import Any

import numpy as np

from offrec.data.sessions import Events, count, describe_counts, session_groups

QUANTILES = {"min": 0.0, "50 %": 0.5, "90 %": 0.9, "99 %": 0.99, "max": 1.0}


def describe(events: Events, splits: dict[str, list[int]], behaviours: tuple[str, ...], items: int) -> dict[str, Any]:
    """Return the entry `statistics` of dataset.json."""
    counts = count(events.behaviours, len(behaviours))
    edges = events.offsets
    share = np.cumsum(np.bincount(events.lengths)) / len(events)  # [n] share of the sessions with at most n events
    lengths = [np.searchsorted(share, max(quantile, share[share > 0][0])) for quantile in QUANTILES.values()]
    return {
        "events_per_behaviour": {name: int(number) for name, number in zip(behaviours, counts, strict=True)},
        "splits": {
            name: {"sessions": last - first, "events": int(edges[last] - edges[first])}
            for name, (first, last) in splits.items()
        },
        **_describe_rewards(events, behaviours),
        "session_length": {name: int(length) for name, length in zip(QUANTILES, lengths, strict=True)},
        "repeat_share": count_repeats(events, items) / len(events.items),
    }


def _describe_rewards(events: Events, behaviours: tuple[str, ...]) -> dict[str, Any]:
    """Return the number of events with a number in the reward column, per behaviour, and these numbers' range."""
    if events.rewards is None:
        return {}
    table: dict[str, dict[str, float]] = {}
    for index, name in enumerate(behaviours):
        rewards = events.rewards[(events.behaviours == index) & ~np.isnan(events.rewards)].astype(np.float64)
        table[name] = {"events": len(rewards)}
        if len(rewards):
            table[name] |= {"min": float(rewards.min()), "mean": float(rewards.mean()), "max": float(rewards.max())}
    return {"rewards": table}


def count_repeats(events: Events, items: int) -> int:
    """Count the events whose item occurred earlier in their session.

    These are all events minus the distinct pairs of session and item. The pairs are almost sorted already, which makes
    the stable sort fast.
    """
    repeats = 0
    edges = events.offsets
    for group in session_groups(edges):
        sessions = np.arange(group.stop - group.start, dtype=np.int64)
        pairs = (
            np.repeat(sessions * items, events.lengths[group]) + events.items[edges[group.start] : edges[group.stop]]
        )
        pairs.sort(kind="stable")
        repeats += int(np.count_nonzero(pairs[1:] == pairs[:-1]))
    return repeats


def rows(meta: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the statistics of a dataset.json as rows (name, value) of a table."""
    counts, statistics = meta["counts"], meta["statistics"]
    table = [(name, f"{counts[name]:,}") for name in ("sessions", "events", "items")]
    table += [(f"events: {name}", f"{number:,}") for name, number in statistics["events_per_behaviour"].items()]
    for name, rewards in statistics.get("rewards", {}).items():
        share = rewards["events"] / statistics["events_per_behaviour"][name]
        bounds = f", mean {rewards['mean']:.4g}, {rewards['min']:.4g} to {rewards['max']:.4g}" if share else ""
        table.append((f"reward column: {name}", f"{share:.1%} of events{bounds}"))
    lengths = " / ".join(f"{length:,}" for length in statistics["session_length"].values())
    table.append((f"session length ({' / '.join(statistics['session_length'])})", lengths))
    table.append(("share of repeats", f"{statistics['repeat_share']:.1%}"))
    if decisions := meta.get("decisions"):
        share = decisions["with_pick"] / decisions["count"]
        lists = f"{decisions['count']:,} lists of up to {decisions['k']:,} items"
        table.append(("decisions", f"{lists}, {share:.1%} with a pick"))
        table.append(("sessions without a pick", f"{decisions['sessions_without_events']:,}"))
    for name, split in statistics["splits"].items():
        table.append((name, describe_counts(split["sessions"], split["events"])))
    return table
