"""Count the sessions of a log that an earlier dataset contains too: estimates on training sessions are too high."""

import numpy as np

from offrec.data.dataset import Dataset, SplitName
from offrec.types import Longs


def count_seen_sessions(dataset: Dataset, split: SplitName, earlier: Dataset) -> int | None:
    """Count the sessions of a split that are training or validation sessions of an earlier dataset.

    Datasets do not store session ids. Two sessions are the same if they begin at the same millisecond with the same
    item.

    Args:
        dataset: The log.
        split: The sessions to look up.
        earlier: The dataset that a run was trained on.

    Returns:
        Their number; None if a dataset has no times.
    """
    if dataset.times is None or earlier.times is None:
        return None
    seen = _starts(earlier, "train") | _starts(earlier, "validation")
    return len(_starts(dataset, split) & seen)


def _starts(dataset: Dataset, split: SplitName) -> set[tuple[int, str]]:
    """Return the time and the item id of the first event of each session with events."""
    assert dataset.times is not None
    offsets: Longs = np.asarray(dataset.split(split).offsets)
    first = offsets[:-1][offsets[:-1] < offsets[1:]]
    items, times = np.asarray(dataset.sessions.items)[first], np.asarray(dataset.times)[first]
    ids = dataset.vocabulary
    return {(time, str(ids.id(item))) for time, item in zip(times.tolist(), items.tolist(), strict=True)}
