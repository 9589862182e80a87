"""Score lists of items for the test events that have a history. Needs only numpy, so that every environment can use it.

This is the only code that computes the figures of the comparison; it does not use offrec's metrics. A method writes
one list per test event, [N, 20] item indices, best first; −1 fills up a shorter list.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]
LENGTH = 20


@dataclass(frozen=True)
class Events:
    """The events of a split that have a history, in the order of the log."""

    items: Longs  # [E] of the whole log
    start: Longs  # [N] the first event of the session
    event: Longs  # [N]
    behaviour: Longs  # [N]
    behaviours: list[str]
    n_items: int

    @property
    def target(self) -> Longs:
        """[N] the items to predict."""
        return self.items[self.event]

    def history(self, number: int) -> Longs:
        """Return the items before an event, oldest first."""
        return self.items[self.start[number] : self.event[number]]

    def histories(self) -> list[Longs]:
        """Return the history of each event."""
        return [self.history(number) for number in range(len(self.event))]

    def is_repeat(self) -> NDArray[np.bool_]:
        """[N] whether the item to predict occurs in the history."""
        return np.array([self.items[event] in self.history(number) for number, event in enumerate(self.event)])


def read_events(folder: Path, split: str = "test") -> Events:
    """Read the events with a history of a split of a dataset folder."""
    meta = json.loads((folder / "dataset.json").read_text())
    first, last = meta["splits"][split]
    offsets = np.load(folder / "offsets.npy")[first : last + 1].astype(np.int64)
    event = np.arange(offsets[0], offsets[-1])
    start = np.repeat(offsets[:-1], np.diff(offsets))
    event, start = event[event > start], start[event > start]
    behaviour = np.load(folder / "behaviours.npy")[event].astype(np.int64)
    items = np.load(folder / "items.npy").astype(np.int64)
    return Events(items, start, event, behaviour, list(meta["behaviours"]), int(meta["counts"]["items"]))


def train_sessions(folder: Path) -> list[Longs]:
    """Return the items of each training session."""
    meta = json.loads((folder / "dataset.json").read_text())
    first, last = meta["splits"]["train"]
    offsets = np.load(folder / "offsets.npy")[first : last + 1]
    items = np.load(folder / "items.npy").astype(np.int64)
    return [items[begin:end] for begin, end in pairwise(offsets)]


def ranks(lists: Longs, target: Longs) -> Longs:
    """[N] position of the target in its list, counted from 1; LENGTH + 1 if it is not in the list."""
    hit = lists[:, :LENGTH] == target[:, None]
    return np.where(hit.any(1), hit.argmax(1) + 1, LENGTH + 1).astype(np.int64)


def figures(rank: Longs) -> dict[str, float]:
    """NDCG@10 and HR@20."""
    if not len(rank):
        return {"events": 0}
    gain = np.where(rank <= 10, 1.0 / np.log2(1.0 + rank), 0.0)
    return {"events": len(rank), "NDCG@10": float(gain.mean()), "HR@20": float((rank <= 20).mean())}


def score(lists: Longs, events: Events) -> dict[str, Any]:
    """Return the figures of all events, of repeats, of new items, and of each behaviour."""
    if lists.shape[0] != len(events.event):
        raise ValueError(f"{lists.shape[0]} lists for {len(events.event)} events")
    rank, repeat = ranks(lists, events.target), events.is_repeat()
    groups = {"all": np.ones(len(rank), dtype=np.bool_), "repeats": repeat, "new": ~repeat}
    if len(events.behaviours) > 1:
        groups |= {name: events.behaviour == number for number, name in enumerate(events.behaviours)}
    return {name: figures(rank[group]) for name, group in groups.items()}
