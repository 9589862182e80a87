"""The log: every event of every source as flat arrays, checked. What a format reads goes in, numbers come out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.data import values
from offrec.data.faults import Batch, Faults
from offrec.data.numbering import by_appearance, by_id
from offrec.data.sources import Source
from offrec.errors import InputError
from offrec.types import Bytes, Ints, Longs

TICKS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
CANONICAL_ORDER = ("view", "click", "cart", "buy")
MOST_BEHAVIOURS = 255
ROWS_BETWEEN_LINES = 5_000_000
TimeUnit = Literal["seconds", "milliseconds", "microseconds", "nanoseconds"]


@dataclass(frozen=True)
class Log:
    """Events in the order of the files."""

    owners: Ints  # [E] the session where the log has sessions, else the user; numbered as they first appear
    items: Ints  # [E] index into item_ids
    behaviours: Bytes  # [E] index into behaviour_names
    times: Longs | None  # [E] in time_unit
    positions: Longs | None  # [E] only where there are no times
    item_ids: Longs | list[str]  # [A] ascending
    behaviour_names: tuple[str, ...]
    time_unit: TimeUnit | None
    times_as: str | None  # how the source spells times
    has_sessions: bool
    rows: dict[str, int]  # source → rows read


@dataclass
class LogBuilder:
    """Takes batches, checks them and keeps what the log needs; a fault anywhere is raised once everything is read."""

    renamed: Mapping[str, str] | None = None  # the format's spelling of a behaviour → ours
    allowed: Sequence[str] = ()
    say: Callable[[str], None] = print
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        self._columns: dict[str, list[pl.Series]] = {}
        self._names: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    def add(self, batch: Batch) -> None:
        frame = batch.frame
        before = self._rows.get(batch.source.name, 0)
        rows = self._rows[batch.source.name] = before + frame.height
        if before == 0 or rows // ROWS_BETWEEN_LINES > before // ROWS_BETWEEN_LINES:
            self.say(f"reading {batch.source.name}" + (f": {rows:,} rows so far" if before else ""))
        kept: dict[str, pl.Series] = {}
        for name in ("session", "user", "item"):
            if name in frame:
                kept[name] = values.ids(batch, name, self.faults, may_miss=name == "user" and "session" in frame)
        if "time" in frame:
            earlier = self._columns.get("time")
            numeric = earlier[0].dtype.is_numeric() if earlier else None
            kept["time"] = values.times(batch, self.faults, numeric=numeric)
        elif "position" in frame:
            kept["position"] = values.positions(batch, self.faults)
        kept["behaviour"] = self._behaviours(batch)
        if not self.faults:
            for name, column in kept.items():
                self._columns.setdefault(name, []).append(column)

    def _behaviours(self, batch: Batch) -> pl.Series:
        if "behaviour" not in batch.frame:
            code = self._names.setdefault(batch.behaviour, len(self._names))
            return pl.repeat(code, batch.frame.height, dtype=pl.UInt8, eager=True)
        column = batch.frame["behaviour"].cast(pl.String)
        found = column.unique(maintain_order=True).drop_nulls().to_list()
        known = self.renamed if self.renamed is not None else {name: name for name in self.allowed or found}
        expected = f"expected one of {', '.join(known)}" if known else "expected a name"
        missing = column.is_null() | (column == "")
        self.faults.note("a missing behaviour", expected, batch, missing)
        self.faults.note("an unknown behaviour", expected, batch, ~column.is_in(list(known)) & ~missing, column)
        codes = {name: self._names.setdefault(known[name], len(self._names)) for name in found if name in known}
        if len(self._names) > MOST_BEHAVIOURS:
            raise InputError(
                f"{batch.source.name} holds more than {MOST_BEHAVIOURS} different behaviours, such as {found[0]!r}; "
                "is another column meant by --behaviour?"
            )
        return column.replace_strict(codes, default=None, return_dtype=pl.UInt8)

    def finish(self, sources: Sequence[Source]) -> Log:
        self.faults.raise_any()
        rows = {source.name: self._rows.get(source.name, 0) for source in sources}
        if not sum(rows.values()):
            raise InputError(f"There are no events in {', '.join(rows)}, only a header; expected rows below it.")
        has_sessions = "session" in self._columns
        owners = self._owners()
        item_ids, items = by_id(self._take("item"))
        times, unit, spelled = as_ticks(self._take("time")) if "time" in self._columns else (None, None, None)
        positions = self._take("position").to_numpy() if "position" in self._columns else None
        names = sorted(self._names, key=_behaviour_order)
        recode = np.zeros(256, np.uint8)
        for name, code in self._names.items():
            recode[code] = names.index(name)
        behaviours = recode[self._take("behaviour").to_numpy()]
        return Log(
            owners, items, behaviours, times, positions, item_ids, tuple(names), unit, spelled, has_sessions, rows
        )

    def _owners(self) -> Ints:
        if "session" not in self._columns:
            return by_appearance(self._take("user"))
        sessions = by_appearance(self._take("session"))
        if "user" not in self._columns:
            return sessions
        # Session ids may be numbered anew for each user, so a session is a pair of both.
        users = by_appearance(self._take("user"))
        pairs = sessions.astype(np.int64) * (int(users.max()) + 1) + users
        return by_appearance(pl.Series(pairs))

    def _take(self, name: str) -> pl.Series:
        """The column as a whole, given away so that its pieces can go."""
        parts = self._columns.pop(name)
        if len({part.dtype for part in parts}) > 1:
            common = pl.Float64 if name == "time" else pl.String
            parts = [part.cast(common) for part in parts]
        return pl.concat(parts, rechunk=True)


def _behaviour_order(name: str) -> tuple[int, str]:
    return (CANONICAL_ORDER.index(name) if name in CANONICAL_ORDER else len(CANONICAL_ORDER), name)


def as_ticks(column: pl.Series) -> tuple[Longs, TimeUnit, str]:
    """Times as integers, their unit, and how the source spells them. A number's unit is guessed by its size."""
    if isinstance(column.dtype, pl.Datetime):
        return column.to_physical().to_numpy(), "microseconds", "dates"
    numbers: NDArray[np.int64] | NDArray[np.float64] = column.to_numpy()
    largest = max(abs(float(numbers.max())), abs(float(numbers.min())))
    unit: TimeUnit = "nanoseconds"
    for bound, name in ((1e11, "seconds"), (1e14, "milliseconds"), (1e17, "microseconds")):
        if largest < bound:
            unit = name  # type: ignore[assignment]
            break
    if numbers.dtype == np.int64:
        return numbers.astype(np.int64, copy=False), unit, unit
    scaled = np.rint(numbers * (TICKS["microseconds"] / TICKS[unit])).astype(np.int64)
    return scaled, "microseconds", unit
