"""Properties of items, such as title, category, price and embeddings: as arrays of a dataset or run folder.

    item_titles.npy, item_titles_offsets.npy                     uint8 [bytes], int64 [A + 1]: UTF-8; empty: no title
    item_codes.npy                                               int32 [A, C]: category of each column; 0: unknown
    item_category_values.npy, item_category_values_offsets.npy   uint8 [bytes], int64 [V + 1]: names of all categories
    item_numbers.npy                                             float32 [A, N]; NaN: unknown
    item_vectors.npy                                             float32 [A, D]: embedding columns side by side; NaN

`item_properties` in the folder's JSON file names the columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offrec.data.arrays import Array, Arrays
from offrec.data.schema import ListOf, Table, Text, Whole
from offrec.types import Ints

Floats = NDArray[np.float32]
PROPERTY_ARRAYS = (
    "item_titles",
    "item_titles_offsets",
    "item_codes",
    "item_category_values",
    "item_category_values_offsets",
    "item_numbers",
    "item_vectors",
)
MAX_COLUMNS = 1_000
MAX_WIDTH = 16_384  # of an embedding column
PROPERTIES = Table(
    {
        "titles": Whole(0, 1),
        "categories": ListOf(Table({"name": Text(), "values": Whole()}), 0, MAX_COLUMNS),
        "numbers": ListOf(Text(), 0, MAX_COLUMNS),
        "vectors": ListOf(Table({"name": Text(), "width": Whole(1, MAX_WIDTH)}), 0, MAX_COLUMNS),
    }
)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories. The code of values[i] is i + 1."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class VectorColumn:
    """An embedding column."""

    name: str
    width: int


@dataclass(frozen=True)
class FeatureColumn:
    """A column that networks read."""

    kind: Literal["category", "embedding", "number"]
    name: str
    width: int = 1

    def __str__(self) -> str:
        width = f" of width {self.width}" if self.kind == "embedding" else ""
        return f"{self.name} ({self.kind}{width})"


@dataclass(frozen=True)
class ItemProperties:
    """The properties of all items of a catalogue, by item index."""

    titles: list[str] | None  # [A]; empty: no title
    categories: tuple[CategoryColumn, ...]
    codes: Ints  # [A, C]
    number_names: tuple[str, ...]
    numbers: Floats  # [A, N]
    vector_columns: tuple[VectorColumn, ...]
    vectors: Floats  # [A, D]
    # [2, N + D] mean and spread of numbers and embeddings in the run that trained the weights; None: not trained yet
    scaling: NDArray[np.float64] | None = field(default=None, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)  # what was found when the table was read

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def has_features(self) -> bool:
        """Whether any column can be an input of a network. Titles are only shown."""
        return bool(self.categories or self.number_names or self.vector_columns)

    @property
    def feature_columns(self) -> list[FeatureColumn]:
        """The columns that networks read."""
        return [
            *(FeatureColumn("category", one.name) for one in self.categories),
            *(FeatureColumn("embedding", one.name, one.width) for one in self.vector_columns),
            *(FeatureColumn("number", name) for name in self.number_names),
        ]

    def title(self, item: int) -> str | None:
        """Return the title of an item, or None if it has none."""
        return (self.titles[item] or None) if self.titles is not None else None

    def append(self, other: "ItemProperties") -> "ItemProperties":
        """Return the properties followed by those of further items, which have the same columns."""
        titles = None
        if self.titles is not None or other.titles is not None:
            titles = (self.titles or [""] * len(self)) + (other.titles or [""] * len(other))
        return replace(
            self,
            titles=titles,
            codes=np.concatenate([self.codes, other.codes]),
            numbers=np.concatenate([self.numbers, other.numbers]),
            vectors=np.concatenate([self.vectors, other.vectors]),
        )

    def arrays(self) -> Arrays:
        """Return the arrays to store."""
        values, values_offsets = encode_texts([value for column in self.categories for value in column.values])
        arrays = {
            "item_codes": self.codes,
            "item_category_values": values,
            "item_category_values_offsets": values_offsets,
            "item_numbers": self.numbers,
            "item_vectors": self.vectors,
        }
        if self.titles is not None:
            arrays["item_titles"], arrays["item_titles_offsets"] = encode_texts(self.titles)
        return arrays

    def as_json(self) -> dict[str, Any]:
        """Return the description of the columns, for the folder's JSON file."""
        return {
            "titles": int(self.titles is not None),
            "categories": [{"name": one.name, "values": len(one.values)} for one in self.categories],
            "numbers": list(self.number_names),
            "vectors": [{"name": one.name, "width": one.width} for one in self.vector_columns],
        }


def decode_properties(about: Mapping[str, Any], arrays: Arrays, items: int) -> ItemProperties:
    """Return the properties that a folder stores.

    Args:
        about: `item_properties` of the folder's JSON file, of the structure `PROPERTIES`.
        arrays: The folder's arrays.
        items: The number of items.

    Raises:
        ValueError: If an array is missing or has a wrong type, shape or range.
    """
    counts = [one["values"] for one in about["categories"]]
    vectors = tuple(VectorColumn(one["name"], one["width"]) for one in about["vectors"])
    codes = _array(arrays, "item_codes", "int32", [items, len(counts)])
    numbers = _array(arrays, "item_numbers", "float32", [items, len(about["numbers"])])
    embeddings = _array(arrays, "item_vectors", "float32", [items, sum(one.width for one in vectors)])
    for column, count in enumerate(counts):
        low, high = (int(bound) for bound in (codes[:, column].min(), codes[:, column].max()))
        if low < 0 or high > count:
            raise ValueError(f"item_codes.npy contains {low if low < 0 else high:,}, not in 0 … {count:,}")
    for name, array in (("item_numbers", numbers), ("item_vectors", embeddings)):
        if np.isinf(array).any():
            raise ValueError(f"{name}.npy contains an infinite number")
    values = _texts(arrays, "item_category_values", sum(counts))
    edges = list(pairwise(accumulate(counts, initial=0)))
    return ItemProperties(
        _texts(arrays, "item_titles", items) if about["titles"] else None,
        tuple(
            CategoryColumn(one["name"], tuple(values[first:last]))
            for one, (first, last) in zip(about["categories"], edges, strict=True)
        ),
        codes,
        tuple(about["numbers"]),
        numbers,
        vectors,
        embeddings,
    )


def encode_texts(texts: Sequence[str]) -> tuple[Array, Array]:
    """Return the UTF-8 bytes of texts and their offsets."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def _texts(arrays: Arrays, name: str, count: int) -> list[str]:
    offsets = _array(arrays, f"{name}_offsets", "int64", [count + 1])
    if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"{name}_offsets.npy does not ascend from 0")
    data = _array(arrays, name, "uint8", [int(offsets[-1])]).tobytes()
    try:
        return [data[begin:end].decode() for begin, end in pairwise(offsets.tolist())]
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}.npy is not valid UTF-8") from error


def _array(arrays: Arrays, name: str, dtype: str, shape: list[int]) -> Array:
    if name not in arrays:
        raise ValueError(f"arrays lacks {name}")
    array = arrays[name]
    if array.dtype.name != dtype or list(array.shape) != shape:
        found = f"{array.dtype.name} {list(array.shape)}"
        raise ValueError(f"{name}.npy contains {found}, but item_properties implies {dtype} {shape}")
    return array
