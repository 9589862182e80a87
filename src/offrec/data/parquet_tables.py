"""Split Parquet tables into tasks that each read a slice of the rows. Names may select nested fields of structs."""

import io
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import polars as pl

from offrec.data import nested
from offrec.data.bad_rows import LIST_COLUMNS, BadRows, ReadTask, Resolve, RowBatch, refuse_objects, unreadable
from offrec.data.sources import UNPACKED_BYTES, UNPACKED_RATIO, Source, read_all
from offrec.errors import InputError

ROWS = 1 << 22  # rows per task, which bound the memory of large tables
READ_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


def parquet(
    source: Source, resolve: Resolve, optional: Sequence[str] = (), rows_per_task: int = ROWS
) -> Iterator[ReadTask]:
    """Split a Parquet table into tasks. The values of hive partitions are further columns, unless the file has them.

    Args:
        source: The table.
        resolve: Chooses the columns to read.
        optional: The columns that `resolve` reads under their own names if the table has them.
        rows_per_task: The number of rows that a task reads.
    """
    is_compressed = source.member is not None or source.path.suffix in {".gz", ".zst", ".zstd"}
    table: Any = io.BytesIO(read_all(source)) if is_compressed else source.url or source.path
    try:
        scan = pl.scan_parquet(table, hive_partitioning=False, glob=False)
        fields = nested.parquet_fields(scan.collect_schema())
    except READ_ERRORS as error:
        unreadable(source, "Parquet", error)
    constants = {name: value for name, value in source.partitions if name not in fields}
    columns = resolve(source, [*fields, *constants])
    paths = {name: path for name, (path, _) in fields.items()}
    refuse_objects(source, paths, [name for name in optional if name not in columns])
    rows = count_rows(source, scan, len(columns))
    selected = []
    for name, column in columns.items():
        if column in constants:
            selected.append(pl.lit(constants[column], pl.String).alias(name))
        else:
            path, dtype = fields[column]
            _check_type(source, column, dtype, is_list=name in LIST_COLUMNS)
            selected.append(nested.expression(path).alias(name))

    def read(first: int, bad_rows: BadRows) -> RowBatch:
        try:
            part = scan.slice(first, rows_per_task).select(selected).cast({pl.Binary: pl.String}).collect()
        except READ_ERRORS as error:
            unreadable(source, "Parquet", error)
        position = source.size * min(rows, first + rows_per_task) // rows
        return RowBatch(source, part, lambda row: f"row {first + row + 1}", position=position)

    for first in range(0, rows, rows_per_task):
        yield partial(read, first)


def count_rows(source: Source, scan: pl.LazyFrame, columns: int) -> int:
    """Count the rows. Refuse a file that would fill the memory: its few bytes can describe any number of equal rows."""
    try:
        rows = int(scan.select(pl.len()).collect().item())
    except READ_ERRORS as error:
        unreadable(source, "Parquet", error)
    stored = source.size
    if 8 * rows * columns > max(UNPACKED_BYTES, UNPACKED_RATIO * stored):
        raise InputError(
            f"{source.name} has {rows:,} rows in {stored:,} bytes; expected at most {UNPACKED_RATIO} times as many "
            "bytes of content as the file has: check it, or write it again without compression."
        )
    return rows


def _check_type(source: Source, column: str, dtype: Any, *, is_list: bool) -> None:
    value, expected = dtype, "numbers, text or dates"
    if is_list and isinstance(dtype, pl.List | pl.Array):
        value, expected = dtype.inner, "lists of numbers or text"
    if value.is_nested() or value in (pl.Duration, pl.Object):
        raise InputError(
            f"{source.name} has a column {column!r} of type {dtype}; expected {expected}: convert the column or name "
            "another."
        )
