"""Statistics of a prepared log, for dataset.json and for the table that `offrec prepare` prints."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from offrec.data.sessions import Events, count, describe_counts, session_groups
from offrec.types import Floats, Longs

QUANTILES = {"min": 0.0, "50 %": 0.5, "90 %": 0.9, "99 %": 0.99, "max": 1.0}


class Statistics:
    """The statistics of a log, collected from parts of its sessions in any order and with the same result.

    Args:
        behaviours: The names of the behaviours.
        items: The number of items.
    """

    def __init__(self, behaviours: tuple[str, ...], items: int) -> None:
        self.behaviours, self.items = behaviours, items
        self.counts: Longs = np.zeros(len(behaviours), np.int64)
        self.lengths: Longs = np.zeros(1, np.int64)  # [n] the number of sessions with n events
        self.repeats = 0
        self.rewards: list[_RewardColumn] | None = None

    def add(self, events: Events) -> "Statistics":
        """Add the sessions of gathered events."""
        self.counts += count(events.behaviours, len(self.behaviours))
        more = np.bincount(events.lengths, minlength=len(self.lengths))
        more[: len(self.lengths)] += self.lengths
        self.lengths = more
        self.repeats += count_repeats(events, self.items)
        if events.rewards is not None:
            self.rewards = self.rewards or [_RewardColumn() for _ in self.behaviours]
            for index, column in enumerate(self.rewards):
                column.add(events.rewards[(events.behaviours == index) & ~np.isnan(events.rewards)])
        return self

    def as_json(self, splits: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Return the entry `statistics` of dataset.json; `splits`: the sessions and events of each split."""
        share = np.cumsum(self.lengths) / self.lengths.sum()  # [n] share of the sessions with at most n events
        lengths = [np.searchsorted(share, max(quantile, share[share > 0][0])) for quantile in QUANTILES.values()]
        columns = {} if self.rewards is None else dict(zip(self.behaviours, self.rewards, strict=True))
        return {
            "events_per_behaviour": dict(zip(self.behaviours, self.counts.tolist(), strict=True)),
            "splits": {name: {"sessions": number, "events": events} for name, (number, events) in splits.items()},
            **({"rewards": {name: column.as_json() for name, column in columns.items()}} if columns else {}),
            "session_length": {name: int(length) for name, length in zip(QUANTILES, lengths, strict=True)},
            "repeat_share": self.repeats / int(self.counts.sum()),
        }


class _RewardColumn:
    """The number, range and mean of the rewards of a behaviour. The sum is exact, so it has no order."""

    def __init__(self) -> None:
        self.events, self.low, self.high, self.sum = 0, np.inf, -np.inf, Fraction(0)

    def add(self, rewards: Floats) -> None:
        if not len(rewards):
            return
        self.events += len(rewards)
        self.low, self.high = min(self.low, float(rewards.min())), max(self.high, float(rewards.max()))
        mantissa, exponent = np.frexp(rewards)
        for power in np.unique(exponent).tolist():  # sums of integers of 24 bits are exact in 64 bits
            whole = np.ldexp(mantissa[exponent == power].astype(np.float64), 24).astype(np.int64)
            self.sum += int(whole.sum()) * Fraction(2) ** (power - 24)

    def as_json(self) -> dict[str, float]:
        if not self.events:
            return {"events": 0}
        return {"events": self.events, "min": self.low, "mean": float(self.sum / self.events), "max": self.high}


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
