"""The log: every event of every source as flat arrays, checked. What a format reads goes in, numbers come out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.data import column_checks, list_checks
from offrec.data.bad_rows import BadRows, RowBatch
from offrec.data.factorize import factorize_by_appearance, factorize_sorted, run_starts
from offrec.data.sources import Source
from offrec.data.tables import ReadTask
from offrec.data.threads import run_concurrently
from offrec.errors import InputError
from offrec.types import Bytes, Doubles, Ints, Longs

TICKS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
CANONICAL_ORDER = ("view", "click", "cart", "buy")
MOST_BEHAVIOURS = 255
ROWS_BETWEEN_LINES = 5_000_000
TimeUnit = Literal["seconds", "milliseconds", "microseconds", "nanoseconds"]


@dataclass(frozen=True)
class Lists:
    """The lists that were served, each at a row of the log: the row of its pick, or one without an event."""

    row: Longs  # [D]
    items: Ints  # [D, K] index into item_ids; −1 is padding, at the right
    log_propensity: Doubles  # [D]
    picked: Longs  # [D] the row of the event that was picked from it; −1: none


@dataclass(frozen=True)
class Log:
    """Events in the order of the files. Owners are numbered as they first appear."""

    owners: Ints  # [R] whose each run of events is: the session where the log has sessions, else the user
    runs: Longs  # [R] how many events in a row are the owner's
    items: Ints  # [E] index into item_ids; −1: no event but a list
    behaviours: Bytes  # [E] index into behaviour_names
    times: Longs | None  # [E] in time_unit
    positions: Longs | None  # [E] only where there are no times
    item_ids: Longs | list[str]  # [A] ascending
    behaviour_names: tuple[str, ...]
    time_unit: TimeUnit | None
    times_as: str | None  # how the source spells times
    has_sessions: bool
    rows: dict[str, int]  # source → rows read
    lists: Lists | None = None  # only of logs with propensities
    notes: tuple[str, ...] = ()  # what was left out of the lists, in words


@dataclass(frozen=True)
class Checked:
    """A batch as far as it can be read by itself: in any thread, and knowing nothing of the others."""

    source: Source
    rows: int
    columns: dict[str, pl.Series]
    behaviours: list[str]  # what the codes of the batch's behaviour column stand for
    bad_rows: BadRows


@dataclass(frozen=True)
class Reader:
    renamed: Mapping[str, str] | None = None  # the format's spelling of a behaviour → ours; None: as they are
    allowed: Sequence[str] = ()
    numeric_times: bool | None = None  # None: the first time decides

    def check(self, task: ReadTask) -> Checked | BadRows:
        bad_rows = BadRows()
        batch = task(bad_rows)
        if batch is None:
            return bad_rows
        frame = batch.frame
        kept: dict[str, pl.Series] = {}
        for name in ("session", "user", "item"):
            if name in frame:
                kept[name] = column_checks.check_ids(batch, name, bad_rows, may_miss=_may_miss(name, frame))
        if "time" in frame:
            kept["time"] = column_checks.check_times(batch, bad_rows, numeric=self.numeric_times)
        elif "position" in frame:
            kept["position"] = column_checks.check_positions(batch, bad_rows)
        kept["behaviour"], names = self._behaviours(batch, bad_rows)
        if "propensity" in frame:
            kept["log_propensity"] = list_checks.check_propensity(batch, bad_rows)
        if "offered" in frame:
            kept |= list_checks.check_offered(batch, kept["item"], bad_rows)
        if not bad_rows:
            owners = [name for name in ("session", "user") if name in kept]
            begins = np.flatnonzero(run_starts([kept[name] for name in owners]))
            kept |= {name: kept[name].gather(begins) for name in owners}
            kept["runs"] = pl.Series(np.diff(begins, append=frame.height))
        return Checked(batch.source, frame.height, kept, names, bad_rows)

    def _behaviours(self, batch: RowBatch, bad_rows: BadRows) -> tuple[pl.Series, list[str]]:
        if "behaviour" not in batch.frame:
            return pl.repeat(0, batch.frame.height, dtype=pl.UInt8, eager=True), [batch.behaviour]
        column, idle = batch.frame["behaviour"].cast(pl.String), None
        if "offered" in batch.frame:  # nothing was done where nothing was picked, whatever it says
            idle = batch.frame["item"].is_null()
            column = pl.select(pl.when(~idle).then(column)).to_series()
        found = column.unique(maintain_order=True).drop_nulls().to_list()
        known = self.renamed if self.renamed is not None else {name: name for name in self.allowed or found}
        expected = f"expected one of {', '.join(list(known)[:20])}" if known else "expected a name"
        missing = (column.is_null() if idle is None else column.is_null() & ~idle) | (column == "")
        bad_rows.add_rows("a missing behaviour", expected, batch, missing)
        bad_rows.add_rows("an unknown behaviour", expected, batch, ~column.is_in(list(known)) & ~missing, column)
        if len(found) > MOST_BEHAVIOURS:
            raise InputError(
                f"{batch.source.name} holds more than {MOST_BEHAVIOURS} different behaviours, such as {found[0]!r}; "
                "is another column meant by --behaviour?"
            )
        if not found:
            return pl.repeat(0, len(column), dtype=pl.UInt8, eager=True), []
        codes = column.replace_strict(found, list(range(len(found))), default=0, return_dtype=pl.UInt8)
        return codes, [known.get(name, name) for name in found]


class LogBuilder:
    """Takes batches in their order and keeps what the log needs; a fault anywhere is raised once everything is read."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._faults = BadRows()
        self._columns: dict[str, list[pl.Series]] = {}
        self._names: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    def add(self, checked: Checked | BadRows) -> None:
        if isinstance(checked, BadRows):
            self._faults.extend(checked)
            return
        self._faults.extend(checked.bad_rows)
        self._count(checked.source.name, checked.rows)
        codes = [self._names.setdefault(name, len(self._names)) for name in checked.behaviours]
        if self._faults:
            self._columns.clear()
            return
        behaviours = np.array([*codes, 0], np.uint8)[checked.columns["behaviour"].to_numpy()]
        for name, column in {**checked.columns, "behaviour": pl.Series(behaviours)}.items():
            self._columns.setdefault(name, []).append(column)

    def _count(self, name: str, more: int) -> None:
        before = self._rows.get(name, 0)
        rows = self._rows[name] = before + more
        if before == 0 or rows // ROWS_BETWEEN_LINES > before // ROWS_BETWEEN_LINES:
            self._say(f"reading {name}" + (f": {rows:,} rows so far" if before else ""))

    def finish(self, sources: Sequence[Source]) -> Log:
        self._faults.raise_any()
        rows = {source.name: self._rows.get(source.name, 0) for source in sources}
        if not sum(rows.values()):
            raise InputError(f"There are no events in {', '.join(rows)}, only a header; expected rows below it.")
        has_sessions = "session" in self._columns
        owners, (item_ids, items), (times, unit, spelled) = run_concurrently(self._owners, self._items, self._times)
        positions = self._take("position").to_numpy() if "position" in self._columns else None
        names = sorted(self._names, key=behaviour_order)
        recode = np.zeros(256, np.uint8)
        for name, code in self._names.items():
            recode[code] = names.index(name)
        behaviours = recode[self._take("behaviour").to_numpy()]
        runs = self._take("runs").to_numpy()
        known = (item_ids, tuple(names), unit, spelled, has_sessions, rows)
        lists, items = self._lists(items)
        return Log(owners, runs, items, behaviours, times, positions, *known, lists)

    def _items(self) -> tuple[Longs | list[str], Ints]:
        """The catalogue, and in it the picked items, then those of the lists, one list after the other."""
        picked = self._take("item")
        if "offered" not in self._columns:
            return factorize_sorted(picked)
        picked, offered = picked.drop_nulls(), self._take("offered")
        kind = _common({picked.dtype, offered.dtype})
        return factorize_sorted(pl.concat([picked.cast(kind), offered.cast(kind)], rechunk=True))

    def _lists(self, items: Ints) -> tuple[Lists | None, Ints]:
        """`items` as `_items` gives them, parted."""
        if "log_propensity" not in self._columns:
            return None, items
        log_propensity = self._take("log_propensity").to_numpy()
        row = np.arange(len(log_propensity))
        if "offered_length" not in self._columns:
            return Lists(row, items[:, None], log_propensity, row), items
        happened = self._take("happened").to_numpy()
        picked = np.full(len(row), -1, np.int32)
        picked[happened], rest = items[: happened.sum()], items[happened.sum() :]
        offered = padded(rest, self._take("offered_length").to_numpy())
        return Lists(row, offered, log_propensity, np.where(happened, row, -1)), picked

    def _owners(self) -> Ints:
        if "session" not in self._columns:
            return factorize_by_appearance(self._take("user"))
        sessions = factorize_by_appearance(self._take("session"))
        if "user" not in self._columns:
            return sessions
        # Session ids may be numbered anew for each user, so a session is a pair of both.
        users = factorize_by_appearance(self._take("user"))
        pairs = sessions.astype(np.int64) * (int(users.max()) + 1) + users
        return factorize_by_appearance(pl.Series(pairs))

    def _times(self) -> tuple[Longs | None, TimeUnit | None, str | None]:
        return as_ticks(self._take("time")) if "time" in self._columns else (None, None, None)

    def _take(self, name: str) -> pl.Series:
        """The column as a whole, given away so that its pieces can go."""
        parts = self._columns.pop(name)
        types = {part.dtype for part in parts}
        if name == "time" and len({kind.is_numeric() for kind in types}) > 1:
            raise InputError("Times are numbers in some files and dates in others; prepare files of one kind together.")
        if len(types) > 1:
            common = pl.Float64 if name == "time" else _common(types)
            parts = [part.cast(common) for part in parts]
        return pl.concat(parts, rechunk=True)


def _may_miss(name: str, frame: pl.DataFrame) -> bool:
    return (name == "user" and "session" in frame) or (name == "item" and "offered" in frame)


def _common(types: set[pl.DataType]) -> type[pl.DataType]:
    """Of ids."""
    return pl.String if pl.String in types else pl.Int64


def padded(numbers: Ints, lengths: Longs) -> Ints:
    """Lists that stand one after the other, side by side: [D, K], padded with −1."""
    table = np.full((len(lengths), int(lengths.max())), -1, np.int32)
    table[np.arange(table.shape[1]) < lengths[:, None]] = numbers
    return table


def behaviour_order(name: str) -> tuple[int, str]:
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
