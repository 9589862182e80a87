"""Read tables of items: one row per item with its id, a title, categories, numbers and embeddings.

CSV, TSV and Parquet are read, also compressed. The type of a column determines its use:

    title                       text that is shown to people
    text, true/false            a category per distinct value; so is any column whose name begins with `category`
    numbers                     a number
    lists of numbers            an embedding; in text files written as [0.1, 0.2]
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import polars as pl

from offrec.data import retailrocket_items
from offrec.data.item_properties import MAX_WIDTH, CategoryColumn, Floats, ItemProperties, VectorColumn
from offrec.data.json_files import parse_json
from offrec.data.parquet_tables import count_rows
from offrec.data.sources import Source, find, read_all
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError, first_line
from offrec.types import Ints, Longs

ID_COLUMNS = ("item", "id", "item_id")
TITLE = "title"
INT64 = np.iinfo(np.int64)
SMALLEST_CATEGORY = 2  # items; a category of one item would say as much as the item's own vector


@dataclass(frozen=True)
class ItemRows:
    """A table of items as it was read."""

    name: str  # of the file, for messages
    ids: list[str]
    columns: pl.DataFrame  # without ids
    option: str = "--items"  # that named the file, for messages


def read_item_rows(
    paths: str | Path | Sequence[str | Path],
    id_column: str | None = None,
    *,
    option: str = "--items",
    like: ItemProperties | None = None,
) -> ItemRows:
    """Read a table of items.

    Args:
        paths: One or more files or globs. Several files must have the same columns.
        id_column: The column with the ids; by default item, id or item_id.
        option: The option that names the files, for messages.
        like: Read the columns of categories of these properties as text, also if all their values look like numbers.

    Returns:
        The rows of all files.

    Raises:
        InputError: If a file cannot be read, or an id is missing or occurs twice.
    """
    sources = find(paths)
    texts = () if like is None else tuple(one.name for one in like.categories)
    frames = [_read(source, option, texts) for source in sources]
    name = sources[0].name
    try:
        frame = pl.concat(frames, how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"{option} {name} and the other files have different columns ({first_line(error)}); write equal columns."
        ) from error
    if retailrocket_items.is_long_table(frame):
        frame = retailrocket_items.widen(frame)
    column = next((one for one in (id_column, *ID_COLUMNS) if one in frame.columns), None)
    if column is None:
        expected = f"{id_column!r}, " if id_column else ""
        raise InputError(
            f"{option} {name} has the columns {', '.join(frame.columns)}; expected a column of item ids named "
            f"{expected}{', '.join(ID_COLUMNS)}: rename it."
        )
    ids = frame[column].cast(pl.String)
    if not len(ids):
        raise InputError(f"{option} {name} has no rows; expected one row per item.")
    if ids.null_count():
        raise InputError(f"{option} {name} has {ids.null_count():,} rows without an id; give each item one id.")
    if ids.n_unique() < len(ids):
        repeated = ids.filter(ids.is_duplicated())[0]
        raise InputError(f"{option} {name} contains item {repeated!r} twice; expected one row per item.")
    return ItemRows(name, ids.to_list(), frame.drop(column), option)


def _read(source: Source, option: str, texts: Sequence[str]) -> pl.DataFrame:
    try:
        data = read_all(source)
        if data.startswith(b"PAR1"):
            scan = pl.scan_parquet(io.BytesIO(data))
            count_rows(source, scan, len(scan.collect_schema()))
            return scan.collect()
        header = data.split(b"\n", 1)[0].decode("utf-8-sig", "replace")
        separator = max(",\t;|", key=header.count)
        names = pl.read_csv(io.BytesIO(data), separator=separator, n_rows=0).columns
        types = {one: pl.String for one in (*ID_COLUMNS, "itemid", "value", *texts) if one in names}
        return pl.read_csv(data, separator=separator, infer_schema_length=None, schema_overrides=types)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{option} {source.name} cannot be read as CSV or Parquet ({first_line(error)}); write the file again."
        ) from error


def unseen_ids(rows: ItemRows, vocabulary: Vocabulary) -> Longs | list[str]:
    """Return the ids of the table that a vocabulary does not contain, in the type of its ids.

    Raises:
        InputError: If the vocabulary's ids are 64-bit integers and an id of the table is not.
    """
    new = [one for one in rows.ids if vocabulary.index(one) is None]
    if not vocabulary.is_numeric:
        return new
    bad = [one for one in new if not _is_int64(one)]
    if bad:
        raise InputError(
            f"{rows.option} {rows.name} contains the id {bad[0]!r}, but the ids of the log are 64-bit integers."
        )
    return np.array([int(one) for one in new], np.int64)


def _is_int64(text: str) -> bool:
    is_short = text.removeprefix("-").isdecimal() and len(text) <= len(str(INT64.min))
    return is_short and str(int(text)) == text and INT64.min <= int(text) <= INT64.max


def encode_properties(rows: ItemRows, vocabulary: Vocabulary, like: ItemProperties | None = None) -> ItemProperties:
    """Return the properties of a catalogue's items. Items that the table lacks get unknown properties.

    Args:
        rows: The table.
        vocabulary: The items of the catalogue.
        like: Use the columns, their kinds and the categories of these properties; other columns are ignored.

    Raises:
        InputError: If a column cannot be used, or the table has none of the columns of `like`.
    """
    row_of = {item_id: row for row, item_id in enumerate(rows.ids)}
    ids = vocabulary.ids.tolist() if isinstance(vocabulary.ids, np.ndarray) else vocabulary.ids
    order = np.array([row_of.get(str(item_id), -1) for item_id in ids], np.int64)
    encoder = _Encoder(rows, order, like)
    for series in rows.columns:
        kind = encoder.kinds.get(series.name)
        encoder.add(series) if kind is None else encoder.add_trained(series, kind)
    properties = encoder.finish()
    missing = int((order < 0).sum())
    notes = [f"{rows.option} {rows.name}: {len(rows.ids):,} items, {_listed(properties)}"]
    if missing:
        notes.append(f"{missing:,} of {len(order):,} items are not in {rows.name}; their features are unknown")
    unused = len(rows.ids) - (len(order) - missing)
    if unused:
        notes.append(f"{unused:,} items of {rows.name} are not in the log; --keep-unseen-items adds them")
    if encoder.ignored:
        notes.append(f"ignored columns of {rows.name}: {', '.join(encoder.ignored)}")
    return ItemProperties(**{**vars(properties), "notes": tuple(notes)})


def absent_columns(rows: ItemRows, like: ItemProperties) -> list[str]:
    """Return the feature columns of trained properties that a table lacks, or that have no value in it.

    Raises:
        InputError: If the table has none of them.
    """
    columns = [one.name for one in like.feature_columns]
    present = {one.name for one in rows.columns if one.null_count() < len(one)}
    absent = [name for name in columns if name not in present]
    if len(absent) == len(columns):
        raise InputError(
            f"{rows.option} {rows.name} has no values in the columns {', '.join(columns)}, which the run was trained "
            "with; add at least one of them."
        )
    return absent


def _listed(properties: ItemProperties) -> str:
    parts = ["titles"] if properties.titles is not None else []
    parts += [f"{one.name} ({len(one.values):,} categories)" for one in properties.categories]
    parts += list(properties.number_names)
    parts += [f"{one.name} (embedding of width {one.width})" for one in properties.vector_columns]
    return ", ".join(parts) or "no usable columns"


class _Encoder:
    """Encodes the columns of a table for the items of a catalogue; `order` [A] contains their rows, −1 if missing."""

    def __init__(self, rows: ItemRows, order: Longs, like: ItemProperties | None) -> None:
        self.rows, self.order, self.like = rows, order, like
        self.titles: list[str] | None = None
        self.codes: dict[str, tuple[CategoryColumn, Ints]] = {}
        self.numbers: dict[str, Floats] = {}
        self.vectors: dict[str, Floats] = {}
        self.ignored: list[str] = []
        self.kinds = {} if like is None else {one.name: one.kind for one in like.feature_columns}

    def add(self, series: pl.Series) -> None:
        """Encode one column."""
        dtype: Any = series.dtype
        if dtype == pl.String and _holds_lists(series):
            series = self._parse_lists(series)
            dtype = series.dtype
        is_text = dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean)
        if series.name == TITLE:
            values = series.cast(pl.String).fill_null("").to_list()
            self.titles = ["" if row < 0 else values[row] for row in self.order]
        elif is_text or (series.name.startswith("category") and dtype.is_integer()):
            self._add_category(series.cast(pl.String))
        elif dtype.is_numeric():
            self.numbers[series.name] = self._in_order(self._finite(series.cast(pl.Float32)))
        elif isinstance(dtype, pl.List | pl.Array) and dtype.inner.is_numeric():
            self._add_vectors(series)
        else:
            self.ignored.append(series.name)

    def add_trained(self, series: pl.Series, kind: str) -> None:
        """Encode a column of a kind that is known from training, whatever the type of its values suggests."""
        if series.null_count() == len(series):
            return  # all values are unknown
        if kind == "embedding":
            is_text = series.dtype == pl.String and _holds_lists(series)
            series = self._parse_lists(series) if is_text else series
            if not (isinstance(series.dtype, pl.List | pl.Array) and series.dtype.inner.is_numeric()):
                self._refuse(series.name, "does not contain lists of numbers; it was an embedding in training")
            self._add_vectors(series)
            return
        if series.dtype.is_nested():
            self._refuse(series.name, f"contains lists; it was a {kind} in training")
        if kind == "category":
            self._add_category(series.cast(pl.String))
            return
        numbers = series.cast(pl.Float32, strict=False)
        if numbers.null_count() > series.null_count():
            text = series.filter(numbers.is_null() & series.is_not_null())[0]
            self._refuse(series.name, f"contains {text!r}; it was a number in training")
        self.numbers[series.name] = self._in_order(self._finite(numbers))

    def _add_category(self, series: pl.Series) -> None:
        texts: list[str | None] = series.to_list()
        of_items = [None if row < 0 else texts[row] for row in self.order]
        known = None if self.like is None else {one.name: one.values for one in self.like.categories}.get(series.name)
        if known is None:
            counts: dict[str, int] = {}
            for text in of_items:
                if text is not None:
                    counts[text] = counts.get(text, 0) + 1
            known = tuple(sorted(text for text, count in counts.items() if count >= SMALLEST_CATEGORY))
        code = {text: number for number, text in enumerate(known, 1)}
        if self.like is not None and all(map(_is_int64, known)):
            # The column was read as integers in training, without leading zeros.
            of_items = [None if text is None else _without_zeros(text) for text in of_items]
        codes = np.array([0 if text is None else code.get(text, 0) for text in of_items], np.int32)
        self.codes[series.name] = (CategoryColumn(series.name, known), codes)

    def _add_vectors(self, series: pl.Series) -> None:
        values = series.cast(pl.List(pl.Float32)).to_list()
        widths = {len(one) for one in values if one is not None}
        if len(widths) != 1 or not 1 <= max(widths) <= MAX_WIDTH:
            found = ", ".join(str(one) for one in sorted(widths)[:3]) or "no list"
            self._refuse(series.name, f"has lists of length {found}; expected one length from 1 to {MAX_WIDTH:,}")
        (width,) = widths
        flat = [[np.nan] * width if one is None else one for one in values]
        self.vectors[series.name] = self._in_order(self._finite_array(series.name, np.array(flat, np.float32)))

    def _parse_lists(self, series: pl.Series) -> pl.Series:
        try:
            lists = [None if text is None else [float(one) for one in parse_json(text)] for text in series]
        except (ValueError, TypeError) as error:
            self._refuse(series.name, f"contains a list that is not [number, …] ({first_line(error)}); repair it")
        return pl.Series(series.name, lists, pl.List(pl.Float32))

    def _finite(self, series: pl.Series) -> Floats:
        return self._finite_array(series.name, series.fill_null(float("nan")).to_numpy())

    def _finite_array(self, name: str, values: Floats) -> Floats:
        if np.isinf(values).any():
            self._refuse(name, "contains an infinite number; expected finite numbers, or no value where it is unknown")
        return values

    def _in_order(self, values: Floats) -> Floats:
        padded = np.concatenate([values, np.full((1, *values.shape[1:]), np.nan, np.float32)])
        return np.asarray(padded[self.order], np.float32)

    def _refuse(self, column: str, problem: str) -> NoReturn:
        raise InputError(f"{self.rows.option} {self.rows.name}: column {column!r} {problem}.")

    def finish(self) -> ItemProperties:
        """Return the encoded properties, with the columns of `like` if it is given."""
        items = len(self.order)
        if self.like is None:
            known = tuple(column for column, _ in self.codes.values())
            numbers = tuple(self.numbers)
            vectors = tuple(VectorColumn(name, values.shape[1]) for name, values in self.vectors.items())
        else:
            known, numbers, vectors = self.like.categories, self.like.number_names, self.like.vector_columns
            self._check_columns(self.like)
        unknown = np.full(items, np.nan, np.float32)
        codes = [self.codes[one.name][1] if one.name in self.codes else np.zeros(items, np.int32) for one in known]
        embeddings = [self.vectors.get(one.name, np.tile(unknown[:, None], one.width)) for one in vectors]
        return ItemProperties(
            self.titles,
            known,
            np.stack(codes, 1) if codes else np.zeros((items, 0), np.int32),
            numbers,
            np.stack([np.zeros(items, np.float32), *(self.numbers.get(name, unknown) for name in numbers)], 1)[:, 1:],
            vectors,
            np.concatenate([np.zeros((items, 0), np.float32), *embeddings], 1),
        )

    def _check_columns(self, like: ItemProperties) -> None:
        """Check the widths of embeddings, and note the columns that the other properties do not have."""
        widths = {one.name: one.width for one in like.vector_columns}
        for name, values in self.vectors.items():
            if values.shape[1] != widths.get(name, values.shape[1]):
                self._refuse(name, f"has width {values.shape[1]}; expected {widths[name]} as in training")
        names = {one.name for one in like.categories} | {*like.number_names, *widths}
        self.ignored += [name for name in (*self.codes, *self.numbers, *self.vectors) if name not in names]


def _without_zeros(text: str) -> str:
    stripped = text.lstrip("0") or "0"
    return stripped if _is_int64(stripped) else text


def _holds_lists(series: pl.Series) -> bool:
    texts = series.drop_nulls()
    return len(texts) > 0 and bool(texts.str.starts_with("[").all())
