"""Tables as tasks that each parse a batch of rows: delimited text, JSON lines and Parquet, whatever they are packed in.

Text comes out as strings, so that ids keep their exact spelling; Parquet keeps its types.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import polars as pl

from offrec.data.bad_rows import BadRows, RowBatch
from offrec.data.sources import Block, Source, blocks, pieces, whole
from offrec.errors import InputError

Resolve = Callable[[Source, Sequence[str]], Mapping[str, str]]  # columns found → {our name: their name}
ReadTask = Callable[
    [BadRows], RowBatch | None
]  # parses a piece of a table, in any thread; None where it is not fit to read


@dataclass(frozen=True)
class Layout:
    columns: Sequence[str]
    separator: str = ","
    types: Mapping[str, type[pl.DataType]] = field(default_factory=dict)  # of columns that are not read as text
    may_end_early: bool = False  # whether a row may lack its last fields


LISTS = ("offered",)  # columns that hold lists, where the table can
QUOTED = re.compile(rb'"[^"]*"')
BLANK_LINES = re.compile(rb"\n{2,}")


def read_tasks(source: Source, resolve: Resolve, optional: Sequence[str] = ()) -> Iterator[ReadTask]:
    """The rows of a table with a header; the content says of which kind it is.

    `optional` are the columns that `resolve` takes, under their own name, where they are found.
    """
    start = next(pieces(source, 1 << 12), b"")
    if start.startswith(b"PAR1") or source.stem.endswith((".parquet", ".pq")):
        return parquet(source, resolve)
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"{", b"[")):
        return json_lines(source, resolve, optional)
    return delimited(source, resolve)


def delimited(source: Source, resolve: Resolve, layout: Layout | None = None) -> Iterator[ReadTask]:
    """CSV or TSV; a `layout` is given where the file has no header line."""
    wanted: Mapping[str, str] | None = None
    for block in blocks(source):
        if layout is None:
            layout, block = _split_header(block)
        if wanted is None:
            wanted = resolve(source, layout.columns)
        if block.data:
            yield partial(_delimited, block, layout, wanted)


def _delimited(block: Block, layout: Layout, wanted: Mapping[str, str], bad_rows: BadRows) -> RowBatch | None:
    places = {name: layout.columns.index(column) for name, column in wanted.items()}
    frame = _parse(block, layout, set(places.values()), bad_rows)
    if frame is None:
        return None
    picked = frame.select(pl.col(str(place)).alias(name) for name, place in places.items())
    return RowBatch(block.source, picked, _place(block))


def _place(block: Block) -> Callable[[int], str]:
    return lambda row: f"line {block.line(row)}"


def _split_header(block: Block) -> tuple[Layout, Block]:
    rows = block.data.lstrip(b"\n")
    line, _, rest = rows.partition(b"\n")
    text = line.decode()
    separator = max(",\t;|", key=re.sub(r'"[^"]*"', "", text).count)
    try:
        columns = next(csv.reader([text], delimiter=separator))
    except csv.Error as error:
        if "\r" not in text:
            _unreadable(block.source, "delimited text", error)
        raise InputError(
            f"{block.source.name} ends lines with a carriage return alone (CR); expected LF or CRLF: convert the file, "
            r"for instance with `tr '\r' '\n'`."
        ) from error
    return Layout(columns, separator), replace(block, data=rest, skipped=len(block.data) - len(rows) + 1)


def _parse(
    block: Block, layout: Layout, places: set[int], bad_rows: BadRows, tidied: bytes | None = None
) -> pl.DataFrame | None:
    """The fields at the places; None, and a fault, where rows do not have as many fields as the header."""
    schema = {str(place): layout.types.get(name, pl.String) for place, name in enumerate(layout.columns)}
    last = len(schema) - 1
    read = sorted(places if layout.may_end_early else places | {last})
    data = tidied or block.data.lstrip(b"\n")
    try:
        frame = pl.read_csv(data, has_header=False, separator=layout.separator, schema=schema, columns=read)
    except pl.exceptions.PolarsError as error:
        if layout.types:  # as text, so that what is no number can be named
            return _parse(block, replace(layout, types={}), places, bad_rows, tidied)
        if _note_ragged(block, data, layout, bad_rows):
            return None
        _unreadable(block.source, "delimited text", error)
    # A blank line, or a row that is too short, shows by a missing last field.
    if frame[:, -1].null_count():
        tidy = data.rstrip(b"\n")
        tidy = tidy if b'"' in tidy else BLANK_LINES.sub(b"\n", tidy)
        if len(tidy) < len(data) - 1:
            return _parse(block, layout, places, bad_rows, tidy)
        if not layout.may_end_early and _note_ragged(block, data, layout, bad_rows):
            return None
    return frame


def _note_ragged(block: Block, data: bytes, layout: Layout, bad_rows: BadRows) -> bool:
    width, separator = len(layout.columns), layout.separator.encode()
    bare = QUOTED.sub(b"q", data.rstrip(b"\n"))
    if bare.count(separator) == (bare.count(b"\n") + 1) * (width - 1):
        return False
    fields = [line.count(separator) + 1 for line in bare.split(b"\n")]
    ragged = [row for row, count in enumerate(fields) if count != width]
    kind = "a row with another number of fields than the header:"
    remedy = f"expected {width}: quote fields that hold the separator, or repair the file"
    bad_rows.add(
        kind, remedy, lambda: f"{block.source.name}, line {block.line(ragged[0])}", f" {fields[ragged[0]]}", len(ragged)
    )
    return True


def _unreadable(source: Source, expected: str, error: BaseException | str) -> NoReturn:
    reason = str(error).strip().split("\n")[0]
    raise InputError(f"{source.name} cannot be read as {expected} ({reason}); write or fetch the file again.")


def json_lines(source: Source, resolve: Resolve, optional: Sequence[str] = ()) -> Iterator[ReadTask]:
    wanted: Mapping[str, str] | None = None
    absent: list[str] = []
    for block in blocks(source):
        if wanted is None:
            wanted = resolve(source, _keys(block))
            absent = [name for name in optional if name not in wanted]
        yield partial(_json_lines, block, wanted, absent)


def _json_lines(block: Block, wanted: Mapping[str, str], absent: Sequence[str], bad_rows: BadRows) -> RowBatch | None:
    try:
        types: dict[str, Any] = dict.fromkeys([*wanted.values(), *absent], pl.String)
        types |= {wanted.get(name, name): pl.List(pl.String) for name in LISTS if wanted.get(name, name) in types}
        frame = pl.read_ndjson(block.data, schema=types)
    except pl.exceptions.PolarsError as error:
        if _note_bad_json(block, bad_rows):
            return None
        _unreadable(block.source, "JSON lines", error)
    picked = frame.select(pl.col(column).alias(name) for name, column in wanted.items())
    batch = RowBatch(block.source, picked, _place(block))
    for name in absent:
        kind = f"a key {name!r} that the first lines do not have"
        bad_rows.add_rows(kind, "give it to every line or to none", batch, frame[name].is_not_null())
    return batch


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _keys(block: Block) -> list[str]:
    """The keys of the first lines, in order: some lines may lack a key."""
    lines = [line for line in block.data.split(b"\n", 200)[:200] if line.strip()]
    keys = list({key: None for line in lines for key in _object(line) or {}})
    if not keys or lines[0].lstrip().startswith(b"["):
        raise InputError(
            f"{block.source.name} begins with {lines[0].decode()[:40]!r}; JSON must be one object a line: write every "
            "event on a line of its own (`jq -c '.[]'` does so with an array)."
        )
    return keys


def _note_bad_json(block: Block, bad_rows: BadRows) -> bool:
    lines = enumerate(block.data.split(b"\n"), block.first_line())
    bad = [(number, line) for number, line in lines if line.strip() and _object(line) is None]
    if bad:
        number, line = bad[0]
        value = f" {line.decode()[:40]!r}"
        bad_rows.add(
            "no JSON object:",
            "expected one object a line",
            lambda: f"{block.source.name}, line {number}",
            value,
            len(bad),
        )
    return bool(bad)


def parquet(source: Source, resolve: Resolve) -> Iterator[ReadTask]:
    packed = source.member is not None or source.path.suffix in {".gz", ".zst", ".zstd"}
    table: Any = io.BytesIO(whole(source)) if packed else source.path
    try:
        scan = pl.scan_parquet(table)
        schema = scan.collect_schema()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        _unreadable(source, "Parquet", error)
    wanted = resolve(source, schema.names())
    for name, column in wanted.items():
        kind: Any = schema[column]
        expected = "numbers, text or dates"
        if name in LISTS and isinstance(kind, pl.List | pl.Array):
            kind, expected = kind.inner, "lists of numbers or text"
        if kind.is_nested() or kind in (pl.Duration, pl.Object):
            raise InputError(
                f"{source.name} has a column {column!r} of type {schema[column]}; expected {expected}: "
                "convert the column or name another."
            )
    try:
        picked = scan.select(pl.col(column).alias(name) for name, column in wanted.items())
        frame = picked.cast({pl.Binary: pl.String}).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        _unreadable(source, "Parquet", error)
    yield lambda bad_rows: RowBatch(source, frame, lambda row: f"row {row + 1}")
