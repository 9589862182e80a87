"""A prepared dataset: memory-mapped .npy arrays and a dataset.json. Needs numpy only, so any GPU image reads it.

    items.npy        int32 [E]     behaviours.npy  uint8 [E]     offsets.npy  int64 [S + 1]
    times.npy        int64 [E]     milliseconds, only where the log has times
    item_ids.npy     int64 [A], ascending; or, for ids that are text, their UTF-8 bytes as uint8 beside
                     item_ids_offsets.npy int64 [A + 1]

A log that says which lists were served, and how likely each was, has its decisions beside the events:

    decision_offsets.npy         int64 [S + 1]  session s was served the lists decision_offsets[s] … [s + 1] − 1
    decision_positions.npy       int32 [D]      how many of the session's events came before the list
    decision_items.npy           int32 [D, K]   the ordered list, padded with A at the right
    decision_log_propensity.npy  float64 [D]    log probability of the ordered list under the policy that served it
    decision_event.npy           int64 [D]      the event that was picked from it; −1: none

A session may then have decisions and no event.

Sessions stand in the order train, validation, test; `splits` in dataset.json holds where each begins and ends.
"""

import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offrec.data.protocol import Protocol, fingerprint
from offrec.data.vocabulary import Vocabulary, load_array, read_vocabulary
from offrec.errors import InputError
from offrec.types import Decisions, Longs, Sessions

FORMAT_VERSION = 1
SplitName = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Dataset:
    path: Path
    meta: dict[str, Any]
    sessions: Sessions
    protocol: Protocol
    decisions: Decisions | None = None  # only of logs with propensities

    @staticmethod
    def open(path: str | Path) -> "Dataset":
        path = Path(path)
        if not (path / "dataset.json").is_file():
            raise InputError(f"{path} is not a prepared dataset: it has no dataset.json; make one with offrec prepare.")
        try:
            meta = json.loads((path / "dataset.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path}/dataset.json is damaged ({error}); prepare the dataset again.") from error
        if meta.get("format_version") != FORMAT_VERSION:
            raise InputError(
                f"{path} has dataset format {meta.get('format_version')}, this offrec reads {FORMAT_VERSION}; "
                "prepare the dataset again."
            )
        arrays = {name: load_array(path, name) for name in ("items", "behaviours", "offsets")}
        counts = meta["counts"]
        found = (len(arrays["items"]), len(arrays["behaviours"]), len(arrays["offsets"]) - 1)
        if found != (counts["events"], counts["events"], counts["sessions"]):
            raise _damaged(path)
        return Dataset(path, meta, Sessions(**arrays), Protocol.from_json(meta["protocol"]), _decisions(path, meta))

    @property
    def n_items(self) -> int:
        return int(self.meta["counts"]["items"])

    @property
    def behaviours(self) -> list[str]:
        return list(self.meta["behaviours"])

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.meta["data_hash"], self.protocol)

    def with_protocol(self, **changes: Any) -> "Dataset":
        """The same data under another scoring protocol, hence another fingerprint."""
        return replace(self, protocol=replace(self.protocol, **changes))

    def split(self, name: SplitName) -> Sessions:
        first, last = self.meta["splits"][name]
        return replace(self.sessions, offsets=self.sessions.offsets[first : last + 1])

    def split_decisions(self, name: SplitName) -> Decisions | None:
        """The decisions of a split's sessions. None where the log has none."""
        if self.decisions is None:
            return None
        first, last = self.meta["splits"][name]
        return replace(self.decisions, offsets=self.decisions.offsets[first : last + 1])

    @cached_property
    def train_counts(self) -> Longs:
        """[A] how often each item occurs in training."""
        train = self.split("train")
        return np.bincount(train.items[train.offsets[0] : train.offsets[-1]], minlength=self.n_items)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.path, self.meta["item_ids"])


def _decisions(path: Path, meta: dict[str, Any]) -> Decisions | None:
    about = meta.get("decisions")
    if about is None:
        return None
    found = Decisions(**{field.name: load_array(path, f"decision_{field.name}") for field in fields(Decisions)})
    count, sessions = about["count"], meta["counts"]["sessions"]
    expected = [((sessions + 1,), "int64"), ((count,), "int32"), ((count, about["k"]), "int32")]
    expected += [((count,), "float64"), ((count,), "int64")]
    arrays = [getattr(found, field.name) for field in fields(Decisions)]
    if [(array.shape, array.dtype.name) for array in arrays] != expected or found.offsets[-1] != count:
        raise _damaged(path)
    return found


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is damaged: its arrays do not have the lengths in dataset.json; prepare it again.")
