"""Collect the bad rows of a log, so that one message can name the first and count the others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import polars as pl

from offrec.data.sources import Block, Source
from offrec.errors import InputError

LIST_COLUMNS = ("offered",)  # the columns whose values are lists


@dataclass(frozen=True)
class RowBatch:
    """A batch of rows from one table.

    The columns have offrec's names: session, user, item, time, position, behaviour, reward, offered and propensity.
    Most are optional.

    Args:
        source: The table.
        frame: The rows.
        place: Turns a row index of `frame` into a place in the source, such as "line 17".
        behaviour: The behaviour of all rows, if `frame` has no column `behaviour`.
        position: How far the file had been read after these rows, in bytes.
        unread_lists: A column that is not read and whose name suggests lists that were shown.
    """

    source: Source
    frame: pl.DataFrame
    place: Callable[[int], str]
    behaviour: str = "view"
    position: int = 0
    unread_lists: str | None = None


@dataclass
class _BadRow:
    """The first bad row of a kind, and the number of such rows."""

    place: str
    value: str
    expected: str
    count: int = 0


class BadRows:
    """The bad rows of one or more batches, by kind."""

    def __init__(self) -> None:
        self._first: dict[str, _BadRow] = {}

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, kind: str, expected: str, place: Callable[[], str], value: str, count: int) -> None:
        """Add `count` bad rows of a kind.

        Args:
            kind: What is wrong, such as "a missing item id".
            expected: What was expected, and what to do.
            place: Returns the file and line of the first of these rows. Called at most once, because it can be slow.
            value: The value of that row, with a space before it, or "".
            count: The number of rows.
        """
        if kind not in self._first:
            self._first[kind] = _BadRow(place(), value, expected)
        self._first[kind].count += count

    def add_rows(
        self, kind: str, expected: str, batch: RowBatch, is_bad: pl.Series, values: pl.Series | None = None
    ) -> None:
        """Add the rows of a batch where `is_bad` is true; the message shows the first of their `values`."""
        if count := int(is_bad.sum()):
            row = int(is_bad.arg_true()[0])
            value = "" if values is None else f" {str(values[row])!r}"
            self.add(kind, expected, lambda: f"{batch.source.name}, {batch.place(row)}", value, count)

    def extend(self, later: "BadRows") -> None:
        """Add the bad rows of a later batch."""
        for kind, row in later._first.items():
            self.add(kind, row.expected, lambda row=row: row.place, row.value, row.count)  # type: ignore[misc]

    def raise_any(self) -> None:
        """Raise an InputError about the kind that occurred first, if there are bad rows."""
        for kind, row in self._first.items():
            count = "the only such row" if row.count == 1 else f"the first of {row.count:,} such rows"
            raise InputError(f"{row.place}: {kind}{row.value} ({count}); {row.expected}.")


# Chooses columns: a source and the names of its columns → {offrec's name: the table's name}.
Resolve = Callable[[Source, Sequence[str]], Mapping[str, str]]
# Parses one batch of rows; thread-safe. Records bad rows and returns None if the batch cannot be parsed.
ReadTask = Callable[[BadRows], RowBatch | None]


def only_fields(source: Source, column: str, fields: Sequence[str], name: str) -> InputError:
    """Return the error about a column that is an object, with fields such as item.sku."""
    return InputError(
        f"{source.name}: {column!r} is an object with the fields {', '.join(fields[:20])}; specify one, such as "
        f"--{name} {fields[0]}."
    )


def refuse_objects(source: Source, paths: Mapping[str, tuple[str, ...]], optional: Sequence[str]) -> None:
    """Refuse optional columns that are objects instead of ignoring them; `paths`: the path of each field."""
    for name in optional:
        if fields := [field for field, path in paths.items() if path[0] == name and len(path) > 1]:
            raise only_fields(source, name, fields, name)


def line_of(block: Block) -> Callable[[int], str]:
    """Return a function that turns a row of a block into its line, such as "line 17"."""
    return lambda row: f"line {block.line(row)}"


def unreadable(source: Source, expected: str, error: BaseException | str) -> NoReturn:
    """Raise an InputError: the source is not a table of the expected kind."""
    reason = str(error).strip().split("\n")[0]
    raise InputError(f"{source.name} cannot be read as {expected} ({reason}); download or write the file again.")
