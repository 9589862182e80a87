"""Describe and check the structure of JSON values that somebody else may have written.

A schema has one method, `problem`, which returns what is wrong with a value, or None. Messages name the place of the
value, for example `counts.items must be a whole number from 1 to 2,147,483,646; got -3`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

LARGEST = 2**63 - 1
FILE_NAME = r"(?!\.{1,2}$)[^/\0]{1,250}"  # a name that stays inside its folder


class Schema(Protocol):
    """Checks a value; `place` is its name in messages."""

    def problem(self, value: Any, place: str) -> str | None: ...


@dataclass(frozen=True)
class Whole:
    """A whole number between two bounds."""

    minimum: int = 0
    maximum: int = LARGEST

    def problem(self, value: Any, place: str) -> str | None:
        if isinstance(value, int) and not isinstance(value, bool) and self.minimum <= value <= self.maximum:
            return None
        return f"{place} must be a whole number from {self.minimum:,} to {self.maximum:,}; got {shorten(value)}"


@dataclass(frozen=True)
class Number:
    """A number between two bounds. NaN and infinities are refused unless `finite` is false."""

    minimum: float = -math.inf
    maximum: float = math.inf
    finite: bool = True

    def problem(self, value: Any, place: str) -> str | None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not self.finite and not math.isfinite(value):
                return None
            if abs(value) < math.inf and self.minimum <= value <= self.maximum:
                return None
        bounds = "" if self.minimum == -math.inf else f" from {self.minimum:g} to {self.maximum:g}"
        return f"{place} must be a number{bounds}; got {shorten(value)}"


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def problem(self, value: Any, place: str) -> str | None:
        return None if isinstance(value, bool) else f"{place} must be true or false; got {shorten(value)}"


@dataclass(frozen=True)
class Text:
    """Text, optionally of a form given by a regular expression."""

    pattern: str | None = None
    longest: int = 100_000

    def problem(self, value: Any, place: str) -> str | None:
        if not isinstance(value, str) or len(value) > self.longest:
            return f"{place} must be text of at most {self.longest:,} characters; got {shorten(value)}"
        if self.pattern is not None and re.fullmatch(self.pattern, value) is None:
            return f"{place} must match {self.pattern}; got {shorten(value)}"
        return None


@dataclass(frozen=True)
class Moment:
    """A date and time as text in ISO format."""

    def problem(self, value: Any, place: str) -> str | None:
        try:
            datetime.fromisoformat(value)
        except (TypeError, ValueError):
            return f"{place} must be a date and time such as 2026-01-31T12:00:00+00:00; got {shorten(value)}"
        return None


@dataclass(frozen=True)
class OneOf:
    """One of a few values."""

    values: tuple[Any, ...]

    def problem(self, value: Any, place: str) -> str | None:
        if any(type(value) is type(known) and value == known for known in self.values):
            return None
        return f"{place} must be one of {', '.join(map(str, self.values))}; got {shorten(value)}"


@dataclass(frozen=True)
class Scalar:
    """Text, a finite number, true, false or null."""

    def problem(self, value: Any, place: str) -> str | None:
        if value is None or isinstance(value, str | bool):
            return None
        return Number().problem(value, place)


@dataclass(frozen=True)
class Anything:
    """Any JSON value."""

    def problem(self, value: Any, place: str) -> str | None:
        return None


@dataclass(frozen=True)
class Maybe:
    """Null, or a value of another schema."""

    schema: Schema

    def problem(self, value: Any, place: str) -> str | None:
        return None if value is None else self.schema.problem(value, place)


@dataclass(frozen=True)
class ListOf:
    """A list of values of one schema."""

    schema: Schema
    shortest: int = 0
    longest: int = 1_000_000

    def problem(self, value: Any, place: str) -> str | None:
        if not isinstance(value, list) or not self.shortest <= len(value) <= self.longest:
            lengths = f"{self.shortest:,} to {self.longest:,}" if self.shortest != self.longest else f"{self.shortest}"
            return f"{place} must be a list of {lengths} values; got {shorten(value)}"
        problems = (self.schema.problem(one, f"{place}[{number}]") for number, one in enumerate(value))
        return next(filter(None, problems), None)


@dataclass(frozen=True)
class Table:
    """An object with known keys.

    Attributes:
        required: The keys that must be present, with their schemas.
        optional: The keys that may be present.
        others: The schema of all other keys; None: they are refused.
    """

    required: Mapping[str, Schema] = field(default_factory=dict)
    optional: Mapping[str, Schema] = field(default_factory=dict)
    others: Schema | None = None

    def problem(self, value: Any, place: str) -> str | None:
        if not isinstance(value, dict):
            return f"{place or 'the content'} must be an object; got {shorten(value)}"
        missing = [key for key in self.required if key not in value]
        if missing:
            return f"{place or 'the content'} lacks {', '.join(missing)}"
        for key, one in value.items():
            schema = self.required.get(key) or self.optional.get(key) or self.others
            inner = f"{place}.{key}" if place else str(key)
            if schema is None:
                return f"{shorten(inner)} is not a known key"
            problem = schema.problem(one, inner)
            if problem is not None:
                return problem
        return None


def shorten(value: Any) -> str:
    """Return the start of a value as text for a message."""
    text = repr(value) if not isinstance(value, list | dict) else f"{type(value).__name__} of {len(value):,}"
    return text if len(text) <= 60 else f"{text[:57]}…"


def schema_of(record: type, **fields_: Schema) -> Table:
    """Return the schema of a dataclass from its type hints.

    Args:
        record: The dataclass. Fields with a default are optional.
        **fields_: Schemas that replace those of the type hints.
    """
    hints = get_type_hints(record)
    schemas = {one.name: fields_.get(one.name) or _schema_of_hint(hints[one.name]) for one in fields(record)}
    required = {one.name for one in fields(record) if one.default is MISSING and one.default_factory is MISSING}
    return Table(
        {name: schema for name, schema in schemas.items() if name in required},
        {name: schema for name, schema in schemas.items() if name not in required},
    )


def _schema_of_hint(hint: Any) -> Schema:
    simple: dict[Any, Schema] = {str: Text(), int: Whole(-LARGEST), float: Number(), bool: Flag(), Any: Anything()}
    if hint in simple:
        return simple[hint]
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return OneOf(inner)
    if get_origin(hint) in (Union, UnionType):
        (known,) = (one for one in inner if one is not NoneType)
        return Maybe(_schema_of_hint(known))
    if get_origin(hint) is list:
        return ListOf(_schema_of_hint(inner[0]))
    if get_origin(hint) is dict:
        return Table(others=_schema_of_hint(inner[1]))
    raise TypeError(f"no schema for {hint}")
