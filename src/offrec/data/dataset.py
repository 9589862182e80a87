"""A prepared dataset: memory-mapped .npy arrays and dataset.json. Reading it needs only numpy.

    items.npy        int32 [E]      behaviours.npy  uint8 [E]      offsets.npy  int64 [S + 1]
    times.npy        int64 [E]      milliseconds; only if the log has times
    rewards.npy      float32 [E]    the reward column, NaN where it has no number; only with `prepare --reward`
    item_ids.npy     int64 [A]      ascending; or, for text ids, their UTF-8 bytes as uint8, with
                                    item_ids_offsets.npy int64 [A + 1]

If the log contains served lists with propensities, the folder also contains its decisions:

    decision_offsets.npy         int64 [S + 1]  session s was served the lists decision_offsets[s] … [s + 1] − 1
    decision_positions.npy       int32 [D]      number of the session's events before the list
    decision_items.npy           int32 [D, K]   the ordered list, padded on the right with A
    decision_log_propensity.npy  float64 [D]    log probability of the ordered list under the policy that served it
    decision_event.npy           int64 [D]      the event that was picked from the list; −1 if nothing was picked

In such a dataset, a session can have decisions but no events.

If the items have properties (`prepare --items`), the folder also contains the arrays of `offrec.data.item_properties`.

Sessions are stored in the order train, validation, test; `splits` in dataset.json contains the range of sessions
[first, last + 1) of each split.
"""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offrec.data import dataset_checks
from offrec.data.arrays import Arrays, open_arrays
from offrec.data.folder import FORMAT_VERSION
from offrec.data.item_properties import ItemProperties, decode_properties
from offrec.data.json_files import load_json, verify_json
from offrec.data.protocol import Protocol, fingerprint
from offrec.data.vocabulary import ID_ARRAYS, Vocabulary, decode_vocabulary
from offrec.errors import InputError
from offrec.types import Decisions, Floats, Longs, Sessions

ADVICE = "prepare the log again"
ATTEMPTS = 3  # to open a folder that another process replaces at the same time
SplitName = Literal["train", "validation", "test", "all"]  # all: the sessions of all three


@dataclass(frozen=True)
class Dataset:
    """A prepared dataset. Open one with `Dataset.open`.

    All arrays are memory-mapped when the dataset is opened. It therefore stays usable if its folder is replaced.
    """

    path: Path
    meta: dict[str, Any]  # the contents of dataset.json
    sessions: Sessions
    protocol: Protocol
    decisions: Decisions | None = None  # only if the log has propensities
    times: Longs | None = None  # [E] milliseconds; only if the log has times
    reward_column: Floats | None = None  # [E] NaN where an event has the reward of its behaviour
    item_id_arrays: Arrays = field(default_factory=dict)  # item_ids and, for text ids, item_ids_offsets
    item_properties: ItemProperties | None = None  # only if the dataset was prepared with --items

    @staticmethod
    def open(path: str | Path) -> "Dataset":
        """Open a dataset folder and verify its content: checksums, types, shapes and ranges.

        Args:
            path: The folder that `offrec prepare` wrote.

        Raises:
            InputError: If it is not a dataset folder, was written by another version, or is damaged.
        """
        path = Path(path)
        for _ in range(ATTEMPTS):
            if not (path / "dataset.json").is_file():
                raise InputError(
                    f"{path} is not a dataset folder: it has no dataset.json; create one with offrec prepare."
                )
            inode = (path / "dataset.json").stat().st_ino
            try:
                return _open(path)
            except (InputError, FileNotFoundError) as error:
                damaged = error
                if path.exists() and (path / "dataset.json").stat().st_ino == inode:
                    break
        raise damaged

    @property
    def n_items(self) -> int:
        """The number of items in the catalogue."""
        return int(self.meta["counts"]["items"])

    @property
    def behaviours(self) -> list[str]:
        """The names of the behaviours, by index."""
        return list(self.meta["behaviours"])

    @property
    def fingerprint(self) -> str:
        """A short hash of the data and the protocol; see `offrec.data.protocol.fingerprint`."""
        return fingerprint(self.meta["data_hash"], self.protocol)

    def with_protocol(self, **changes: Any) -> "Dataset":
        """Return the same data with a different scoring protocol, which changes the fingerprint.

        Args:
            **changes: Fields of `Protocol`: `score_first`, `unseen`, `score_last`, `exclude_seen` or `skip_recent`.
        """
        return replace(self, protocol=replace(self.protocol, **changes))

    def with_behaviours(self, names: list[str]) -> "Dataset":
        """Return the same data with these behaviours first, some of which may not occur in it."""
        names = [*names, *(name for name in self.behaviours if name not in names)]
        index = np.array([names.index(name) for name in self.behaviours], np.uint8)
        sessions = replace(self.sessions, behaviours=index[np.asarray(self.sessions.behaviours)])
        return replace(self, meta={**self.meta, "behaviours": names}, sessions=sessions)

    def split(self, name: SplitName) -> Sessions:
        """Return the sessions of a split, without copying events."""
        first, last = self._range(name)
        return replace(self.sessions, offsets=self.sessions.offsets[first : last + 1])

    def split_decisions(self, name: SplitName) -> Decisions | None:
        """Return the decisions of a split's sessions, or None if the log has no decisions."""
        if self.decisions is None:
            return None
        first, last = self._range(name)
        return replace(self.decisions, offsets=self.decisions.offsets[first : last + 1])

    def _range(self, name: SplitName) -> tuple[int, int]:
        """Return the first session of a split and the one after its last."""
        if name == "all":
            return 0, len(self.sessions)
        first, last = self.meta["splits"][name]
        return first, last

    @cached_property
    def train_counts(self) -> Longs:
        """[A] how often each item occurs in the training sessions."""
        train = self.split("train")
        return np.bincount(train.items[train.offsets[0] : train.offsets[-1]], minlength=self.n_items)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The item ids."""
        return decode_vocabulary(self.item_id_arrays, self.meta["item_id_type"], self.path)


def _open(path: Path) -> Dataset:
    content = load_json(path / "dataset.json", advice=ADVICE)
    _check_version(path, content.get("format_version") if isinstance(content, dict) else None)
    meta = verify_json(path / "dataset.json", content, dataset_checks.META, advice=ADVICE)
    arrays = open_arrays(path, meta["arrays"], advice=ADVICE)
    problem = dataset_checks.find_problem(meta, arrays)
    if problem is not None:
        raise InputError(f"{path} is damaged: {problem}; {ADVICE}.")
    sessions = Sessions(**{one.name: arrays[one.name] for one in fields(Sessions)})
    decisions = None
    if "decisions" in meta:
        decisions = Decisions(**{one.name: arrays[f"decision_{one.name}"] for one in fields(Decisions)})
    ids = {name: arrays[name] for name in ID_ARRAYS if name in arrays}
    properties = None
    if "item_properties" in meta:
        properties = decode_properties(meta["item_properties"], arrays, meta["counts"]["items"])
    return Dataset(
        path,
        meta,
        sessions,
        Protocol.from_json(meta["protocol"]),
        decisions,
        arrays.get("times"),
        arrays.get("rewards"),
        ids,
        properties,
    )


def _check_version(path: Path, stored: Any) -> None:
    if stored == 1:
        raise InputError(f"{path} was written by offrec 0.1, which used another dataset format; prepare the log again.")
    if stored != FORMAT_VERSION:
        raise InputError(
            f"{path} has dataset format {stored}, but this offrec reads format {FORMAT_VERSION}; prepare the log again."
        )
