"""What is wrong with a log's rows: noted while reading, so that one sentence names the first and counts all."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from offrec.data.sources import Source
from offrec.errors import InputError


@dataclass(frozen=True)
class RowBatch:
    """Some rows of a table; columns bear the names session, user, item, time, position, behaviour, offered,
    propensity.
    """

    source: Source
    frame: pl.DataFrame
    place: Callable[[int], str]  # row of the batch → "line 17"
    behaviour: str = "view"  # of all rows, where the frame has no column of that name


@dataclass
class _Fault:
    place: str
    value: str
    expected: str
    count: int = 0


class BadRows:
    def __init__(self) -> None:
        self._found: dict[str, _Fault] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, kind: str, expected: str, place: Callable[[], str], value: str, count: int) -> None:
        if kind not in self._found:  # finding the place reads the source again
            self._found[kind] = _Fault(place(), value, expected)
        self._found[kind].count += count

    def add_rows(
        self, kind: str, expected: str, batch: RowBatch, bad: pl.Series, values: pl.Series | None = None
    ) -> None:
        """Note the rows of the batch where `bad` holds."""
        if count := int(bad.sum()):
            row = int(bad.arg_true()[0])
            value = "" if values is None else f" {str(values[row])!r}"
            self.add(kind, expected, lambda: f"{batch.source.name}, {batch.place(row)}", value, count)

    def extend(self, later: "BadRows") -> None:
        for kind, fault in later._found.items():
            self.add(kind, fault.expected, lambda fault=fault: fault.place, fault.value, fault.count)  # type: ignore[misc]

    def raise_any(self) -> None:
        for kind, fault in self._found.items():
            many = "the only one" if fault.count == 1 else f"the first of {fault.count:,}"
            raise InputError(f"{fault.place}: {kind}{fault.value}, {many}; {fault.expected}.")
