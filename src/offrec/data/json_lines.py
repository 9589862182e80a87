"""Split JSON lines into tasks that each parse a batch of rows. Names may select nested fields, such as event.item.sku.

Values are read as strings, so that ids keep their exact spelling. Objects and lists are not values: a row with one is
an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from offrec.data import nested
from offrec.data.bad_rows import LIST_COLUMNS, BadRows, ReadTask, Resolve, RowBatch, line_of, refuse_objects, unreadable
from offrec.data.json_files import parse_json
from offrec.data.nested import Path
from offrec.data.sources import Block, Source, read_blocks
from offrec.errors import InputError

FIRST_LINES = 200  # the keys of these lines are the columns: some lines may lack a key
Paths = Mapping[str, Path]  # offrec's name of a column → where it is


def json_lines(source: Source, resolve: Resolve, optional: Sequence[str] = ()) -> Iterator[ReadTask]:
    """Split JSON lines into tasks.

    Args:
        source: The table.
        resolve: Chooses the columns to read.
        optional: The columns that `resolve` reads under their own names if the table has them.
    """
    paths: Paths | None = None
    absent: list[str] = []
    for block in read_blocks(source):
        if paths is None:
            fields = _fields(block)
            paths = {name: fields[column] for name, column in resolve(source, list(fields)).items()}
            absent = [name for name in optional if name not in paths]
            refuse_objects(source, fields, absent)
        yield partial(_read, block, paths, absent)


def _read(block: Block, paths: Paths, absent: Sequence[str], bad_rows: BadRows) -> RowBatch | None:
    types = {path: pl.List(pl.String) if name in LIST_COLUMNS else pl.String for name, path in paths.items()}
    schema = dict.fromkeys(absent, pl.String) | nested.schema_of_paths(types)
    try:
        rows = pl.read_ndjson(block.data, schema=schema)
    except pl.exceptions.PolarsError as error:
        if _add_bad_lines(block, paths, bad_rows):
            return None
        unreadable(block.source, "JSON lines", error)
    frame = rows.select(nested.expression(path).alias(name) for name, path in paths.items())
    _add_nested_values(block, paths, frame, bad_rows)
    batch = RowBatch(block.source, frame, line_of(block), position=block.position)
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


def _fields(block: Block) -> dict[str, Path]:
    """Return the names and paths of all fields of the first lines."""
    lines = [line for line in block.data.split(b"\n", FIRST_LINES)[:FIRST_LINES] if line.strip()]
    fields = nested.json_fields(_parse_object(line) or {} for line in lines)
    if not fields or lines[0].lstrip().startswith(b"["):
        raise InputError(
            f"{block.source.name} begins with {lines[0].decode()[:40]!r}; expected one JSON object per line: convert "
            "the file (an array with `jq -c '.[]'`)."
        )
    return fields


def _add_bad_lines(block: Block, paths: Paths, bad_rows: BadRows) -> bool:
    """Add the lines that are not JSON objects or lack an object of a nested field; return whether any were added."""
    problems: dict[tuple[str, str], list[tuple[int, bytes]]] = {}
    for number, line in enumerate(block.data.split(b"\n"), block.first_line()):
        if line.strip() and (problem := _find_problem(line, paths)) is not None:
            problems.setdefault(problem, []).append((number, line))
    for (kind, expected), lines in problems.items():
        number, line = lines[0]
        place = f"{block.source.name}, line {number}"
        bad_rows.add(kind, expected, lambda place=place: place, f" {line.decode()[:40]!r}", len(lines))  # type: ignore[misc]
    return bool(problems)


def _find_problem(line: bytes, paths: Paths) -> tuple[str, str] | None:
    row = _parse_object(line)
    if row is None:
        return "not a JSON object:", "expected one object per line"
    for name, path in paths.items():
        field = ".".join(path)
        try:
            value = nested.find_value(row, path)
        except TypeError:
            return f"no object that contains {field!r}:", f"expected an object, as in other lines, to read --{name}"
        if name in LIST_COLUMNS and not isinstance(value, list | None):
            return f"no list in {field!r}:", f"expected a list, as in other lines, to read --{name}"
    return None


def _add_nested_values(block: Block, paths: Paths, frame: pl.DataFrame, bad_rows: BadRows) -> None:
    """Add the rows with an object or a list in place of a value. polars reads them as text, such as '{"id": 1}'."""
    lines: list[bytes] | None = None
    for name, path in paths.items():
        column = frame[name]
        if name in LIST_COLUMNS:
            suspicious = column.list.eval(_may_be_nested(pl.element()).any()).list.first().fill_null(False)
        else:
            suspicious = frame.select(_may_be_nested(pl.col(name))).to_series().fill_null(False)
        rows = suspicious.arg_true().to_list()
        if rows and lines is None:
            lines = [line for line in block.data.split(b"\n") if line.strip()]
        bad = [row for row in rows if lines is not None and _is_nested(lines[row], path, name in LIST_COLUMNS)]
        if bad:
            first = bad[0]
            text = column[first] if name not in LIST_COLUMNS else " ".join(column[first])
            kind = f"an object or a list as {name}:"
            expected = f"expected a number or text: name a field of an object as --{name} {'.'.join(path)}.FIELD"
            place = f"{block.source.name}, {line_of(block)(first)}"
            bad_rows.add(kind, expected, lambda place=place: place, f" {str(text)[:40]!r}", len(bad))  # type: ignore[misc]


def _may_be_nested(text: pl.Expr) -> pl.Expr:
    return text.str.starts_with("{") | text.str.starts_with("[")


def _is_nested(line: bytes, path: Path, is_list: bool) -> bool:
    value = nested.find_value(_parse_object(line) or {}, path)
    values = value if is_list and isinstance(value, list) else [value]
    return any(isinstance(one, dict | list) for one in values)
