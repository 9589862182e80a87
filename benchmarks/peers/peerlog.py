"""Define the log, the sizes and the output format that all scripts of the comparison share.

Needs only numpy, because each script runs in its own environment. A derived folder is an offrec dataset that contains
all training sessions (over all items, or over the most popular ones). Its split `train` contains the first of these
sessions, so that every library can train on the same part of an epoch over the same catalogue.
"""

import argparse
import json
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]

VALIDATION = 100  # sessions; offrec validates after an epoch, outside of the measured time
MEGABYTE = 1 << (20 if sys.platform == "darwin" else 10)  # in units of getrusage


@dataclass(frozen=True)
class Log:
    items: Longs  # [E]
    offsets: Longs  # [S + 1]
    n_items: int

    @property
    def sessions(self) -> int:
        return len(self.offsets) - 1

    @property
    def events(self) -> int:
        return int(self.offsets[-1])

    @property
    def lengths(self) -> Longs:
        return np.diff(self.offsets)

    def first(self, sessions: int) -> "Log":
        return Log(self.items, self.offsets[: sessions + 1], self.n_items)

    def session_of_event(self) -> Longs:
        return np.repeat(np.arange(self.sessions), self.lengths)

    def popular(self, n: int) -> "Log":
        """Keep only the n most frequent items, and the sessions that still have two events.

        If there are fewer items, the catalogue is filled with items that do not occur.
        """
        if n >= self.n_items:
            return Log(self.items, self.offsets, n)
        number = np.empty(self.n_items, dtype=np.int64)
        number[np.argsort(-np.bincount(self.items, minlength=self.n_items), kind="stable")] = np.arange(self.n_items)
        items, session = number[self.items], self.session_of_event()
        left = np.bincount(session[items < n], minlength=self.sessions)
        inside = (items < n) & (left >= 2)[session]
        return Log(items[inside], np.concatenate([[0], np.cumsum(left[left >= 2])]), n)


def read(folder: Path, split: str = "train") -> Log:
    """Read a split of a dataset; `whole` reads all training sessions of a derived one."""
    meta = json.loads((folder / "dataset.json").read_text())
    first, last = [0, meta["whole"]] if split == "whole" else meta["splits"][split]
    offsets = np.load(folder / "offsets.npy")[first : last + 1]
    items = np.load(folder / "items.npy", mmap_mode="r")[offsets[0] : offsets[-1]].astype(np.int64)
    return Log(items, offsets - offsets[0], meta["counts"]["items"])


def derive(dataset: Path, out: Path, events: int | None, n_items: int | None = None) -> None:
    """Write the first training sessions with `events` events in total as a dataset."""
    from offrec.data.folder import write

    whole = read(dataset) if n_items is None else read(dataset).popular(n_items)
    scored = whole.first(VALIDATION)  # a validation split is required, but its metrics are not used
    sessions = whole.sessions
    if events is not None:
        sessions = min(sessions, int(np.searchsorted(whole.offsets, events)))
    items = np.concatenate([whole.items, scored.items[: scored.events]])
    offsets = np.concatenate([whole.offsets, whole.events + scored.offsets[1:]])
    meta = json.loads((dataset / "dataset.json").read_text())
    meta["counts"] = {"sessions": len(offsets) - 1, "events": len(items), "items": whole.n_items}
    meta["splits"] = {"train": [0, sessions], "validation": [whole.sessions, len(offsets) - 1], "test": [0, 0]}
    meta |= {"whole": whole.sessions, "item_id_type": "int"}
    hashes = ("format_version", "fingerprint", "data_hash", "arrays", "decisions", "sha256")
    meta = {key: value for key, value in meta.items() if key not in hashes}
    arrays = {
        "items": items.astype(np.int32),
        "behaviours": np.zeros(len(items), dtype=np.uint8),
        "offsets": offsets,
        "item_ids": np.arange(whole.n_items),
    }
    write(out, arrays, lambda: meta)


def options(description: str | None) -> argparse.ArgumentParser:
    """Parse the options that all scripts share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="a derived folder")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder to write to")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--history", type=int, default=50)
    parser.add_argument("--batch", type=int, default=1024, help="events per update")
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--threads", type=int, default=2)
    return parser


def resident() -> float:
    """Return the peak memory so far in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEGABYTE


def report(*, seconds: float, updates: int, events: int, epoch_events: int, before: float, **more: float) -> None:
    """Print one result as a JSON line.

    Args:
        seconds: Of the training loop alone.
        events: The number of events predicted in it.
        epoch_events: The number of events that a whole epoch predicts.
        before: `resident` when training began.
    """
    result = {"seconds": seconds, "updates": updates, "events": events, "epoch_events": epoch_events}
    print(json.dumps(result | {"before_mb": before, "peak_mb": resident()} | more), flush=True)
