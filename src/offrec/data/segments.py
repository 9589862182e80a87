"""Segments: contiguous parts of sessions that a backbone encodes once for all of their rows."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from offrec.types import Longs, Sessions

Segmentation = Literal["sessions", "windows", "exact"]


@dataclass(frozen=True)
class Segments:
    """Segments of a log. Segment i has the rows first[i] … end[i] − 1 and the tokens begin[i] … end[i] − 1.

    All three are indices of events.
    """

    begin: Longs  # [P]
    first: Longs  # [P]
    end: Longs  # [P]

    def __len__(self) -> int:
        return len(self.begin)

    def __getitem__(self, indices: Longs) -> "Segments":
        return Segments(self.begin[indices], self.first[indices], self.end[indices])


def segment_sessions(sessions: Sessions, history: int, segmentation: Segmentation) -> Segments:
    """Divide sessions into segments, so that every event is a row of exactly one segment.

    Args:
        sessions: The sessions.
        history: The maximum number of items in the history of a row.
        segmentation: "windows": one segment per event, with exactly its last `history` items. "exact": the same
            states, but rows that share a prefix share a segment. "sessions": long sessions become segments that overlap
            by half, so that late rows have between history / 2 and `history` items; this is the fastest.
    """
    start, stop = np.asarray(sessions.offsets[:-1]), np.asarray(sessions.offsets[1:])
    if segmentation == "windows":
        return _windows(start, start, stop, history)
    end = np.minimum(stop, start + history + 1)
    parts = [Segments(start, start, end)]
    if segmentation == "exact":
        parts.append(_windows(start, end, stop, history))
    while segmentation == "sessions" and (end < stop).any():
        continues = end < stop
        first, stop = end[continues], stop[continues]
        begin = first - history // 2
        end = np.minimum(stop, begin + history + 1)
        parts.append(Segments(begin, first, end))
    segments = Segments(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("begin", "first", "end"))
    )
    return segments[np.flatnonzero(segments.first < segments.end)]


def _windows(start: Longs, first: Longs, stop: Longs, history: int) -> Segments:
    """Return one segment per event from `first` to `stop` − 1 of sessions that begin at `start`."""
    length = stop - first
    event = np.repeat(first - (np.cumsum(length) - length), length) + np.arange(length.sum())
    return Segments(np.maximum(np.repeat(start, length), event - history), event, event + 1)
