"""Split tables (delimited text, JSON lines and Parquet) into tasks that each parse a batch of rows.

Columns of text files are read as strings, so that ids keep their exact spelling. Columns of Parquet files keep their
types.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import polars as pl

from offrec.data.bad_rows import BadRows, RowBatch
from offrec.data.json_files import parse_json
from offrec.data.sources import UNPACKED_BYTES, UNPACKED_RATIO, Block, Source, read_all, read_blocks, read_chunks
from offrec.errors import InputError

# Chooses columns: a source and the names of its columns → {offrec's name: the table's name}.
Resolve = Callable[[Source, Sequence[str]], Mapping[str, str]]
# Parses one batch of rows; thread-safe. Records bad rows and returns None if the batch cannot be parsed.
ReadTask = Callable[[BadRows], RowBatch | None]


@dataclass(frozen=True)
class Layout:
    """The columns of a delimited text file.

    Args:
        columns: Their names.
        separator: The character between fields.
        types: The types of columns that are not read as strings.
        may_end_early: Whether a row may lack its last fields.
    """

    columns: Sequence[str]
    separator: str = ","
    types: Mapping[str, type[pl.DataType]] = field(default_factory=dict)
    may_end_early: bool = False


LIST_COLUMNS = ("offered",)
QUOTED = re.compile(rb'"[^"]*"')
BLANK_LINES = re.compile(rb"\n{2,}")


def read_tasks(source: Source, resolve: Resolve, optional: Sequence[str] = ()) -> Iterator[ReadTask]:
    """Split a table with a header into tasks. The first bytes tell Parquet, JSON lines and delimited text apart.

    Args:
        source: The table.
        resolve: Chooses the columns to read.
        optional: The columns that `resolve` reads under their own names if the table has them.
    """
    start = next(read_chunks(source, 1 << 12), b"")
    if start.startswith(b"PAR1") or source.stem.endswith((".parquet", ".pq")):
        return parquet(source, resolve)
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"{", b"[")):
        return json_lines(source, resolve, optional)
    return delimited(source, resolve)


def delimited(source: Source, resolve: Resolve, layout: Layout | None = None) -> Iterator[ReadTask]:
    """Split CSV or TSV into tasks. `layout` describes a file without a header line."""
    columns: Mapping[str, str] | None = None
    for block in read_blocks(source):
        if layout is None:
            layout, block = _split_header(block)
        if columns is None:
            columns = resolve(source, layout.columns)
        if block.data:
            yield partial(_read_delimited, block, layout, columns)


def _read_delimited(block: Block, layout: Layout, columns: Mapping[str, str], bad_rows: BadRows) -> RowBatch | None:
    fields = {name: layout.columns.index(column) for name, column in columns.items()}
    frame = _parse(block, layout, set(fields.values()), bad_rows)
    if frame is None:
        return None
    frame = frame.select(pl.col(str(index)).alias(name) for name, index in fields.items())
    return RowBatch(block.source, frame, _place(block))


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
            f"{block.source.name} separates lines by CR only; expected LF or CRLF: convert the file, "
            r"for instance with `tr '\r' '\n'`."
        ) from error
    return Layout(columns, separator), replace(block, data=rest, skipped=len(block.data) - len(rows) + 1)


def _parse(
    block: Block, layout: Layout, fields: set[int], bad_rows: BadRows, tidied: bytes | None = None
) -> pl.DataFrame | None:
    """Return the fields with these indices. If the number of fields varies, return None and add the bad rows.

    `tidied`: the data of the block without blank lines.
    """
    schema = {str(index): layout.types.get(name, pl.String) for index, name in enumerate(layout.columns)}
    last = len(schema) - 1
    read = sorted(fields if layout.may_end_early else fields | {last})
    data = tidied or block.data.lstrip(b"\n")
    try:
        frame = pl.read_csv(data, has_header=False, separator=layout.separator, schema=schema, columns=read)
    except pl.exceptions.PolarsError as error:
        if layout.types:  # read strings, so that a message can show the value that is not a number
            return _parse(block, replace(layout, types={}), fields, bad_rows, tidied)
        if _add_ragged_rows(block, data, layout, bad_rows):
            return None
        _unreadable(block.source, "delimited text", error)
    # The last field is missing in blank lines and in rows that are too short.
    if frame[:, -1].null_count():
        tidy = data.rstrip(b"\n")
        tidy = tidy if b'"' in tidy else BLANK_LINES.sub(b"\n", tidy)
        if len(tidy) < len(data) - 1:
            return _parse(block, layout, fields, bad_rows, tidy)
        if not layout.may_end_early and _add_ragged_rows(block, data, layout, bad_rows):
            return None
    return frame


def _add_ragged_rows(block: Block, data: bytes, layout: Layout, bad_rows: BadRows) -> bool:
    """Add the rows whose number of fields differs from the header; return whether any do."""
    width, separator = len(layout.columns), layout.separator.encode()
    unquoted = QUOTED.sub(b"q", data.rstrip(b"\n"))
    if unquoted.count(separator) == (unquoted.count(b"\n") + 1) * (width - 1):
        return False
    fields = [line.count(separator) + 1 for line in unquoted.split(b"\n")]
    ragged = [row for row, count in enumerate(fields) if count != width]
    expected = f"expected {width} as in the header: quote fields that contain the separator, or repair the file"
    place = partial(_line_name, block, ragged[0])
    bad_rows.add("wrong number of fields:", expected, place, f" {fields[ragged[0]]}", len(ragged))
    return True


def _line_name(block: Block, row: int) -> str:
    return f"{block.source.name}, line {block.line(row)}"


def _unreadable(source: Source, expected: str, error: BaseException | str) -> NoReturn:
    reason = str(error).strip().split("\n")[0]
    raise InputError(f"{source.name} cannot be read as {expected} ({reason}); download or write the file again.")


def json_lines(source: Source, resolve: Resolve, optional: Sequence[str] = ()) -> Iterator[ReadTask]:
    """Split JSON lines into tasks; `optional` as in `read_tasks`."""
    columns: Mapping[str, str] | None = None
    absent: list[str] = []
    for block in read_blocks(source):
        if columns is None:
            columns = resolve(source, _keys(block))
            absent = [name for name in optional if name not in columns]
        yield partial(_read_json_lines, block, columns, absent)


def _read_json_lines(
    block: Block, columns: Mapping[str, str], absent: Sequence[str], bad_rows: BadRows
) -> RowBatch | None:
    types: dict[str, Any] = dict.fromkeys([*columns.values(), *absent], pl.String)
    lists = [columns.get(name, name) for name in LIST_COLUMNS]
    types |= {name: pl.List(pl.String) for name in lists if name in types}
    try:
        rows = pl.read_ndjson(block.data, schema=types)
    except pl.exceptions.PolarsError as error:
        if _add_bad_json(block, bad_rows):
            return None
        _unreadable(block.source, "JSON lines", error)
    frame = rows.select(pl.col(column).alias(name) for name, column in columns.items())
    batch = RowBatch(block.source, frame, _place(block))
    for name in absent:
        kind = f"a key {name!r} that the first lines do not have"
        bad_rows.add_rows(kind, "expected it in every line or in none", batch, rows[name].is_not_null())
    return batch


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        tree = parse_json(line)
    except ValueError:
        return None
    return tree if isinstance(tree, dict) else None


def _keys(block: Block) -> list[str]:
    """Return all keys of the first lines: some lines may lack a key."""
    lines = [line for line in block.data.split(b"\n", 200)[:200] if line.strip()]
    keys = list({key: None for line in lines for key in _parse_object(line) or {}})
    if not keys or lines[0].lstrip().startswith(b"["):
        raise InputError(
            f"{block.source.name} begins with {lines[0].decode()[:40]!r}; expected one JSON object per line: convert "
            "the file (an array with `jq -c '.[]'`)."
        )
    return keys


def _add_bad_json(block: Block, bad_rows: BadRows) -> bool:
    """Add the lines that are not JSON objects; return whether any were added."""
    lines = enumerate(block.data.split(b"\n"), block.first_line())
    bad = [(number, line) for number, line in lines if line.strip() and _parse_object(line) is None]
    if bad:
        number, line = bad[0]
        place = f"{block.source.name}, line {number}"
        value = f" {line.decode()[:40]!r}"
        bad_rows.add("not a JSON object:", "expected one object per line", lambda: place, value, len(bad))
    return bool(bad)


def check_parquet_rows(source: Source, scan: pl.LazyFrame, columns: int) -> None:
    """Refuse a Parquet file that would fill the memory: its few bytes can describe any number of equal rows."""
    try:
        rows = int(scan.select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        _unreadable(source, "Parquet", error)
    stored = source.path.stat().st_size
    if 8 * rows * columns > max(UNPACKED_BYTES, UNPACKED_RATIO * stored):
        raise InputError(
            f"{source.name} has {rows:,} rows in {stored:,} bytes; expected at most {UNPACKED_RATIO} times as many "
            "bytes of content as the file has: check it, or write it again without compression."
        )


def parquet(source: Source, resolve: Resolve) -> Iterator[ReadTask]:
    """Return one task with all rows of a Parquet table."""
    is_compressed = source.member is not None or source.path.suffix in {".gz", ".zst", ".zstd"}
    table: Any = io.BytesIO(read_all(source)) if is_compressed else source.path
    try:
        scan = pl.scan_parquet(table)
        schema = scan.collect_schema()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        _unreadable(source, "Parquet", error)
    columns = resolve(source, schema.names())
    check_parquet_rows(source, scan, len(columns))
    for name, column in columns.items():
        dtype: Any = schema[column]
        expected = "numbers, text or dates"
        if name in LIST_COLUMNS and isinstance(dtype, pl.List | pl.Array):
            dtype, expected = dtype.inner, "lists of numbers or text"
        if dtype.is_nested() or dtype in (pl.Duration, pl.Object):
            raise InputError(
                f"{source.name} has a column {column!r} of type {schema[column]}; expected {expected}: "
                "convert the column or name another."
            )
    try:
        selected = scan.select(pl.col(column).alias(name) for name, column in columns.items())
        frame = selected.cast({pl.Binary: pl.String}).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        _unreadable(source, "Parquet", error)
    yield lambda bad_rows: RowBatch(source, frame, lambda row: f"row {row + 1}")
