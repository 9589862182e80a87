"""Item vocabularies: the mapping between item indices and the log's own item ids."""

import json
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from offrec.errors import InputError
from offrec.types import Longs


class Vocabulary:
    """The item ids of a catalogue, by item index. Ids are either all integers or all text.

    Args:
        ids: [A] the id of each item.

    Example:
        >>> Vocabulary(["red", "blue"]).index("blue")
        1
    """

    def __init__(self, ids: Longs | list[str]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Longs | list[str]:
        """[A] the ids by item index."""
        return self._ids

    def __eq__(self, other: object) -> bool:
        """Return whether both vocabularies give the same items the same indices."""
        if not isinstance(other, Vocabulary) or self.is_numeric != other.is_numeric:
            return False
        return np.array_equal(self._ids, other._ids) if self.is_numeric else self._ids == other._ids

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_numeric(self) -> bool:
        """Whether the ids are integers."""
        return isinstance(self._ids, np.ndarray)

    @cached_property
    def _index(self) -> dict[str | int, int]:
        ids = self._ids.tolist() if isinstance(self._ids, np.ndarray) else self._ids
        return {item_id: index for index, item_id in enumerate(ids)}

    def id(self, index: int) -> str | int:
        """Return the id of an item index."""
        item_id = self._ids[index]
        return int(item_id) if self.is_numeric else str(item_id)

    def index(self, item_id: str | int) -> int | None:
        """Return the index of an item id, or None if the vocabulary does not contain it.

        If ids are integers, the text "12" means item 12, but "012" is unknown.
        """
        if self.is_numeric and isinstance(item_id, str):
            try:
                number = int(item_id)
            except ValueError:
                return None
            if str(number) != item_id:
                return None
            item_id = number
        return self._index.get(item_id if self.is_numeric else str(item_id))

    def encode(self, item_ids: Iterable[str | int]) -> tuple[list[int], int]:
        """Return the indices of the known ids, in order, and the number of unknown ids."""
        indices = [self.index(item_id) for item_id in item_ids]
        known = [index for index in indices if index is not None]
        return known, len(indices) - len(known)


def read_vocabulary(folder: Path, kind: str) -> Vocabulary:
    """Read the item ids from a dataset folder, or from a run folder, which contains a copy.

    Args:
        folder: The dataset or run folder.
        kind: `item_id_type` of its JSON file: "int" or "string".
    """
    ids = load_array(folder, "item_ids")
    if kind == "int":
        return Vocabulary(np.array(ids))  # a copy, because a run can be overwritten while a server uses it
    offsets = load_array(folder, "item_ids_offsets").tolist()
    text = ids.tobytes()
    return Vocabulary([text[begin:end].decode() for begin, end in pairwise(offsets)])


def read_catalogue(folder: Path) -> Vocabulary:
    """Read the vocabulary of a dataset or run folder, for the option --catalogue."""
    for name in ("dataset.json", "run.json"):
        if (folder / name).is_file():
            try:
                return read_vocabulary(folder, json.loads((folder / name).read_text(encoding="utf-8"))["item_id_type"])
            except (ValueError, KeyError) as error:
                raise InputError(f"{folder}/{name} is damaged ({error}); create {folder} again.") from error
    raise InputError(f"--catalogue {folder} is neither a dataset nor a run folder; give a folder that offrec wrote.")


def load_array(folder: Path, name: str) -> Any:
    """Memory-map one array of a folder."""
    try:
        return np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}/{name}.npy cannot be read ({error}); create {folder} again.") from error
