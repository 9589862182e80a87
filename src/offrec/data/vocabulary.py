"""Item vocabularies: the mapping between item indices and the log's own item ids."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offrec.data.arrays import DESCRIPTION, Arrays, open_arrays
from offrec.data.json_files import read_json
from offrec.data.schema import Anything, OneOf, Table
from offrec.errors import InputError
from offrec.types import Longs

ID_ARRAYS = ("item_ids", "item_ids_offsets")


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

    def mask(self, item_ids: Sequence[str | int]) -> NDArray[np.bool_]:
        """Return [A] whether each item is among the ids; fast for a million ids. Unknown ids are ignored."""
        if isinstance(self._ids, np.ndarray) and all(type(item_id) is int for item_id in item_ids):
            return np.isin(self._ids, np.array(item_ids, np.int64))
        result = np.zeros(len(self), np.bool_)
        result[self.encode(item_ids)[0]] = True
        return result


def match_ids(old: Vocabulary, new: Vocabulary) -> Longs:
    """Return the index in `old` of each item of `new`, [A]; −1 for ids that `old` does not contain.

    The number 12 and the text "12" are the same id.
    """
    if isinstance(old.ids, np.ndarray) and isinstance(new.ids, np.ndarray):
        order = np.argsort(old.ids, kind="stable")
        position = np.minimum(np.searchsorted(old.ids, new.ids, sorter=order), len(old) - 1)
        return np.where(old.ids[order[position]] == new.ids, order[position], -1)
    index = (old.index(item_id if isinstance(item_id, str) else int(item_id)) for item_id in new.ids)
    return np.array([-1 if one is None else one for one in index], dtype=np.int64)


def encode_ids(ids: Longs | list[str]) -> Arrays:
    """Return the arrays that store item ids; `decode_vocabulary` reads them."""
    if isinstance(ids, np.ndarray):
        return {"item_ids": ids}
    encoded = [name.encode() for name in ids]
    offsets = np.cumsum([0, *(len(name) for name in encoded)], dtype=np.int64)
    return {"item_ids": np.frombuffer(b"".join(encoded), np.uint8), "item_ids_offsets": offsets}


def decode_vocabulary(arrays: Arrays, kind: str, folder: Path) -> Vocabulary:
    """Return the item ids of a dataset or run folder.

    Args:
        arrays: The arrays `item_ids` and, for text ids, `item_ids_offsets`.
        kind: `item_id_type` of the folder's JSON file: "int" or "string".
        folder: The folder, for messages.

    Raises:
        InputError: If the ids are not valid UTF-8, or if an id occurs twice.
    """
    ids: Longs | list[str]
    try:
        check_item_ids(arrays, kind)
        if kind == "int":
            ids = np.array(arrays["item_ids"])  # a copy, because a run can be overwritten while a server uses it
        else:
            text = arrays["item_ids"].tobytes()
            ids = [text[begin:end].decode() for begin, end in pairwise(arrays["item_ids_offsets"].tolist())]
            if len(set(ids)) < len(ids):
                raise ValueError("an id occurs twice")
    except ValueError as error:
        raise InputError(f"{folder}/item_ids.npy is damaged: {error}; create {folder} again.") from error
    return Vocabulary(ids)


def check_item_ids(arrays: Arrays, kind: str, items: int | None = None) -> None:
    """Raise ValueError if the item ids have a wrong type, shape, range or number; `items` is the expected number."""
    ids = arrays["item_ids"]
    if kind == "int":
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise ValueError(f"it contains {ids.dtype.name} {list(ids.shape)} instead of int64 [items]")
        if not (ids[1:] > ids[:-1]).all() and len(np.unique(ids)) < len(ids):
            raise ValueError("an id occurs twice")
        count = len(ids)
    else:
        offsets = arrays.get("item_ids_offsets", np.empty(0))
        types = (ids.dtype.name, offsets.dtype.name, ids.ndim, offsets.ndim)
        if types != ("uint8", "int64", 1, 1) or not len(offsets):
            raise ValueError("text ids must be uint8 [bytes] with offsets int64 [items + 1]")
        if offsets[0] != 0 or offsets[-1] != len(ids) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("the offsets of the ids do not ascend from 0 to the number of bytes")
        count = len(offsets) - 1
    if count == 0 or items not in (None, count):
        raise ValueError(f"it contains {count:,} ids instead of {items or 'at least one'}")


def read_catalogue(folder: Path) -> Vocabulary:
    """Read the vocabulary of a dataset or run folder, for the option --catalogue."""
    schema = Table(
        {"item_id_type": OneOf(("int", "string")), "arrays": Table({"item_ids": DESCRIPTION}, others=DESCRIPTION)},
        others=Anything(),
    )
    for name in ("dataset.json", "run.json"):
        if (folder / name).is_file():
            advice = f"create {folder} again"
            meta = read_json(folder / name, schema, advice=advice)
            arrays = {key: value for key, value in meta["arrays"].items() if key in ID_ARRAYS}
            return decode_vocabulary(open_arrays(folder, arrays, advice=advice), meta["item_id_type"], folder)
    raise InputError(f"--catalogue {folder} is neither a dataset nor a run folder; give a folder that offrec wrote.")
