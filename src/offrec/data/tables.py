"""Split tables into tasks that each parse a batch of rows; this module reads delimited text.

Columns of text files are read as strings, so that ids keep their exact spelling. Columns of Parquet files keep their
types.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import polars as pl

from offrec.data.bad_rows import BadRows, ReadTask, Resolve, RowBatch, line_of, unreadable
from offrec.data.json_lines import json_lines
from offrec.data.parquet_tables import parquet
from offrec.data.sources import Block, Source, read_blocks, read_chunks
from offrec.errors import InputError


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


QUOTED = re.compile(rb'"[^"]*"')
BLANK_LINES = re.compile(rb"\n{2,}")


def read_tasks(source: Source, resolve: Resolve, optional: Sequence[str] = ()) -> Iterator[ReadTask]:
    """Split a table with a header into tasks. The first bytes tell Parquet, JSON lines and delimited text apart.

    Args:
        source: The table.
        resolve: Chooses the columns to read.
        optional: The columns that `resolve` reads under their own names if the table has them.
    """
    if source.url is not None:
        return parquet(source, resolve, optional)
    start = next(read_chunks(source, 1 << 12), b"")
    if start.startswith(b"PAR1") or source.stem.endswith((".parquet", ".pq")):
        return parquet(source, resolve, optional)
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
    return RowBatch(block.source, frame, line_of(block), position=block.position)


def _split_header(block: Block) -> tuple[Layout, Block]:
    rows = block.data.lstrip(b"\n")
    line, _, rest = rows.partition(b"\n")
    text = line.decode()
    separator = max(",\t;|", key=re.sub(r'"[^"]*"', "", text).count)
    try:
        columns = next(csv.reader([text], delimiter=separator))
    except csv.Error as error:
        if "\r" not in text:
            unreadable(block.source, "delimited text", error)
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
        unreadable(block.source, "delimited text", error)
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
