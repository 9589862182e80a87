"""Nested fields: `event.item.sku` names the field `sku` of the object `item` in the object `event`."""

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

Path = tuple[str, ...]  # the keys from the table's column to the field


def json_fields(rows: Iterable[Mapping[str, Any]]) -> dict[str, Path]:
    """Return the fields of JSON objects that are not objects themselves: name → path, in the order of appearance.

    A key that contains dots is preferred to a nested field of the same name.
    """
    fields: dict[str, Path] = {}
    objects: set[Path] = set()
    for row in rows:
        _add_json_fields(row, (), fields, objects)
    return {name: path for name, path in fields.items() if path not in objects}


def _add_json_fields(row: Mapping[str, Any], parent: Path, fields: dict[str, Path], objects: set[Path]) -> None:
    for key, value in row.items():
        path = (*parent, key)
        if isinstance(value, dict):
            objects.add(path)
            _add_json_fields(value, path, fields, objects)
        elif len(path) <= len(fields.get(".".join(path), path)):
            fields[".".join(path)] = path


def parquet_fields(schema: Mapping[str, pl.DataType]) -> dict[str, tuple[Path, pl.DataType]]:
    """Return the fields of a schema that are not structs themselves: name → path and type."""
    nested = {name: dtype for name, dtype in schema.items() if isinstance(dtype, pl.Struct)}
    fields: dict[str, tuple[Path, pl.DataType]] = {
        name: ((name,), dtype) for name, dtype in schema.items() if name not in nested
    }
    for parent, struct in nested.items():
        for name, (path, dtype) in parquet_fields({field.name: field.dtype for field in struct.fields}).items():  # type: ignore[misc]
            fields.setdefault(f"{parent}.{name}", ((parent, *path), dtype))
    return fields


def expression(path: Path) -> pl.Expr:
    """Return the expression that selects a field; null where an object on the path is missing."""
    column = pl.col(path[0])
    for key in path[1:]:
        column = column.struct.field(key)
    return column


def schema_of_paths(types: Mapping[Path, Any]) -> dict[str, Any]:
    """Return the schema of a table with these fields: key → type, with structs for nested fields."""
    schema: dict[str, Any] = {}
    nested: dict[str, dict[Path, Any]] = {}
    for (first, *rest), dtype in types.items():
        if rest:
            nested.setdefault(first, {})[tuple(rest)] = dtype
        else:
            schema[first] = dtype
    return schema | {key: pl.Struct(schema_of_paths(fields)) for key, fields in nested.items()}


def find_value(row: Mapping[str, Any], path: Path) -> Any:
    """Return the value of a field of a JSON object; None where an object on the path is missing.

    Raises:
        TypeError: If a value on the path is neither an object nor null.
    """
    value: Any = row
    for key in path:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise TypeError(key)
        value = value.get(key)
    return value
