"""The log: the checked events of all sources as flat arrays of integers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.data import column_checks, list_checks
from offrec.data.bad_rows import BadRows, ReadTask, RowBatch
from offrec.data.factorize import factorize_by_appearance, factorize_sorted, run_starts
from offrec.data.sources import Source
from offrec.data.threads import run_concurrently
from offrec.errors import InputError
from offrec.types import Bytes, Doubles, Floats, Indices, Ints, Longs

TICKS_PER_SECOND = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
BEHAVIOUR_ORDER = ("view", "click", "cart", "buy")
MAX_BEHAVIOURS = 255
ROWS_BETWEEN_PROGRESS_LINES = 5_000_000
TimeUnit = Literal["seconds", "milliseconds", "microseconds", "nanoseconds"]


@dataclass(frozen=True)
class ServedLists:
    """The served lists of a log. Each list has a row of the log: the row of its pick, or a row without an event."""

    row: Longs  # [D]
    items: Ints  # [D, K] index into item_ids, padded on the right with −1
    log_propensity: Doubles  # [D]
    picked: Longs  # [D] the row of the event that was picked from the list; −1 if nothing was picked


@dataclass(frozen=True)
class Log:
    """Events in the order of the files. Owners are numbered in the order of first appearance.

    The owner of an event is its session if the log has session ids, else its user. Consecutive events of one owner
    form a run.
    """

    owners: Indices  # [R] the owner of each run
    runs: Longs  # [R] the number of events of each run
    items: Ints  # [E] index into item_ids; −1 if the row is a list without a pick
    behaviours: Bytes  # [E] index into behaviour_names
    times: Longs | None  # [E] in time_unit
    positions: Longs | None  # [E] only if the log has no times
    item_ids: Longs | list[str]  # [A] ascending
    behaviour_names: tuple[str, ...]
    time_unit: TimeUnit | None
    time_format: str | None  # the format of times in the sources: a unit, or "dates"
    has_sessions: bool
    rows: dict[str, int]  # source → number of rows
    lists: ServedLists | None = None  # only if the log has propensities
    notes: tuple[str, ...] = ()  # messages about excluded lists and events
    rewards: Floats | None = None  # [E] the reward column, NaN where it has no number
    unseen_items: int = 0  # the last items of item_ids have no events and stay in the catalogue; not ascending
    owner_ids: pl.DataFrame | None = None  # one row per owner: its user and session id as text; only if requested

    @property
    def has_times(self) -> bool:
        """Whether events have times."""
        return self.times is not None


@dataclass(frozen=True)
class CheckedBatch:
    """A batch that passed all checks that do not need other batches. Threads check batches concurrently."""

    source: Source
    rows: int
    columns: dict[str, pl.Series]
    behaviours: list[str]  # the names of the codes in the column `behaviour`
    bad_rows: BadRows
    position: int = 0  # as in `RowBatch`


@dataclass(frozen=True)
class BatchChecker:
    """Checks batches.

    Args:
        behaviour_names: The format's names of behaviours → ours; None: keep the names.
        allowed: The behaviours that may occur; empty: any.
        numeric_times: Whether times in text are numbers; None: decide by the first time.
    """

    behaviour_names: Mapping[str, str] | None = None
    allowed: Sequence[str] = ()
    numeric_times: bool | None = None

    def check(self, task: ReadTask) -> CheckedBatch | BadRows:
        """Read a batch and check it. Return only the bad rows if the batch cannot be read."""
        bad_rows = BadRows()
        batch = task(bad_rows)
        if batch is None:
            return bad_rows
        frame = batch.frame
        columns: dict[str, pl.Series] = {}
        for name in ("session", "user", "item"):
            if name in frame:
                columns[name] = column_checks.check_ids(batch, name, bad_rows, optional=_is_optional(name, frame))
        if "time" in frame:
            columns["time"] = column_checks.check_times(batch, bad_rows, numeric=self.numeric_times)
        elif "position" in frame:
            columns["position"] = column_checks.check_positions(batch, bad_rows)
        columns["behaviour"], names = self._check_behaviours(batch, bad_rows)
        if "reward" in frame:
            columns["reward"] = column_checks.check_rewards(batch, bad_rows)
        if "propensity" in frame:
            columns["log_propensity"] = list_checks.check_propensity(batch, bad_rows)
        if "offered" in frame:
            columns |= list_checks.check_offered(batch, columns["item"], bad_rows)
        if not bad_rows:
            owners = [name for name in ("session", "user") if name in columns]
            begins = np.flatnonzero(run_starts([columns[name] for name in owners]))
            columns |= {name: columns[name].gather(begins) for name in owners}
            columns["runs"] = pl.Series(np.diff(begins, append=frame.height))
        return CheckedBatch(batch.source, frame.height, columns, names, bad_rows, batch.position)

    def _check_behaviours(self, batch: RowBatch, bad_rows: BadRows) -> tuple[pl.Series, list[str]]:
        """Return the code of each row's behaviour, and the names of the codes."""
        if "behaviour" not in batch.frame:
            return pl.repeat(0, batch.frame.height, dtype=pl.UInt8, eager=True), [batch.behaviour]
        column, without_pick = batch.frame["behaviour"].cast(pl.String), None
        if "offered" in batch.frame:  # ignore the column in rows without a pick: they have no behaviour
            without_pick = batch.frame["item"].is_null()
            column = pl.select(pl.when(~without_pick).then(column)).to_series()
        names = column.unique(maintain_order=True).drop_nulls().to_list()
        known = self.behaviour_names
        if known is None:
            known = {name: name for name in self.allowed or names}
        listed = ", ".join(list(filter(None, known))[:20])
        expected = f"expected one of {listed}" if listed else "expected a name"
        missing = (column.is_null() if without_pick is None else column.is_null() & ~without_pick) | (column == "")
        bad_rows.add_rows("a missing behaviour", expected, batch, missing)
        bad_rows.add_rows("an unknown behaviour", expected, batch, ~column.is_in(list(known)) & ~missing, column)
        if len(names) > MAX_BEHAVIOURS:
            raise InputError(
                f"{batch.source.name} contains more than {MAX_BEHAVIOURS} different behaviours, such as {names[0]!r}; "
                "expected a few: specify another column with --behaviour."
            )
        if not names:
            return pl.repeat(0, len(column), dtype=pl.UInt8, eager=True), []
        codes = column.replace_strict(names, list(range(len(names))), default=0, return_dtype=pl.UInt8)
        return codes, [known.get(name, name) for name in names]


class LogBuilder:
    """Builds a log from batches, in the order in which they are added. Bad rows are reported at the end.

    Args:
        say: Prints a line.
        keep_owner_ids: Whether the log contains the ids of its owners.
    """

    def __init__(self, say: Callable[[str], None], *, keep_owner_ids: bool = False) -> None:
        self._say, self._keep_owner_ids = say, keep_owner_ids
        self._bad_rows = BadRows()
        self._columns: dict[str, list[pl.Series]] = {}
        self._names: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    def add(self, batch: CheckedBatch | BadRows) -> None:
        """Add the next batch."""
        if isinstance(batch, BadRows):
            self._bad_rows.extend(batch)
            return
        self._bad_rows.extend(batch.bad_rows)
        self._count_rows(batch.source.name, batch.rows)
        codes = [self._names.setdefault(name, len(self._names)) for name in batch.behaviours]
        if self._bad_rows:
            self._columns.clear()
            return
        behaviours = np.array([*codes, 0], np.uint8)[batch.columns["behaviour"].to_numpy()]
        for name, column in {**batch.columns, "behaviour": pl.Series(behaviours)}.items():
            self._columns.setdefault(name, []).append(column)

    def _count_rows(self, name: str, more: int) -> None:
        before = self._rows.get(name, 0)
        rows = self._rows[name] = before + more
        if before == 0 or rows // ROWS_BETWEEN_PROGRESS_LINES > before // ROWS_BETWEEN_PROGRESS_LINES:
            self._say(f"reading {name}" + (f": {rows:,} rows so far" if before else ""))

    def finish(self, sources: Sequence[Source]) -> Log:
        """Return the log of all batches.

        Raises:
            InputError: If there are bad rows, or no rows at all.
        """
        self._bad_rows.raise_any()
        rows = {source.name: self._rows.get(source.name, 0) for source in sources}
        if not sum(rows.values()):
            raise InputError(f"{', '.join(rows)} contains only a header; expected events below it.")
        has_sessions = "session" in self._columns
        (owners, owner_ids), (item_ids, items), (times, unit, time_format) = run_concurrently(
            self._owners, self._items, self._times
        )
        positions = self._take("position").to_numpy() if "position" in self._columns else None
        names = sorted(self._names, key=behaviour_order)
        new_codes = np.zeros(256, np.uint8)
        for name, code in self._names.items():
            new_codes[code] = names.index(name)
        behaviours = new_codes[self._take("behaviour").to_numpy()]
        runs = self._take("runs").to_numpy()
        lists, items = self._lists(items)
        rewards = self._take("reward").to_numpy() if "reward" in self._columns else None
        return Log(
            owners, runs, items, behaviours, times, positions, item_ids, tuple(names), unit, time_format, has_sessions,
            rows, lists, rewards=rewards, owner_ids=owner_ids,
        )  # fmt: skip

    def _items(self) -> tuple[Longs | list[str], Ints]:
        """Return the item ids, and the indices of all picked items, followed by those of all lists."""
        picked = self._take("item")
        if "offered" not in self._columns:
            return factorize_sorted(picked)
        picked, offered = picked.drop_nulls(), self._take("offered")
        dtype = _common_id_type({picked.dtype, offered.dtype})
        return factorize_sorted(pl.concat([picked.cast(dtype), offered.cast(dtype)], rechunk=True))

    def _lists(self, items: Ints) -> tuple[ServedLists | None, Ints]:
        """Split the result of `_items` into the lists and the item of each row."""
        if "log_propensity" not in self._columns:
            return None, items
        log_propensity = self._take("log_propensity").to_numpy()
        row = np.arange(len(log_propensity))
        if "offered_length" not in self._columns:
            return ServedLists(row, items[:, None], log_propensity, row), items
        has_pick = self._take("has_pick").to_numpy()
        picked = np.full(len(row), -1, np.int32)
        picked[has_pick], rest = items[: has_pick.sum()], items[has_pick.sum() :]
        offered = pad_lists(rest, self._take("offered_length").to_numpy())
        return ServedLists(row, offered, log_propensity, np.where(has_pick, row, -1)), picked

    def _owners(self) -> tuple[Indices, pl.DataFrame | None]:
        """Return the owner of each run and, if requested, the ids of the owners."""
        columns: dict[str, pl.Series] = {
            name: self._take(name) for name in ("user", "session") if name in self._columns
        }
        owners = number_owners(columns)
        return owners, ids_of_owners(owners, columns) if self._keep_owner_ids else None

    def _times(self) -> tuple[Longs | None, TimeUnit | None, str | None]:
        return as_ticks(self._take("time")) if "time" in self._columns else (None, None, None)

    def _take(self, name: str) -> pl.Series:
        """Return the whole column and delete its parts to free memory."""
        parts = self._columns.pop(name)
        types = {part.dtype for part in parts}
        if name == "time" and len({dtype.is_numeric() for dtype in types}) > 1:
            raise InputError("Times are numbers in some files and dates in others; prepare them separately.")
        if len(types) > 1:
            common = pl.Float64 if name == "time" else _common_id_type(types)
            parts = [part.cast(common) for part in parts]
        return pl.concat(parts, rechunk=True)


def number_owners(columns: Mapping[str, pl.Series]) -> Indices:
    """Return the owner of each row of the columns `user` and `session`, numbered in the order of first appearance."""
    numbers = [factorize_by_appearance(column) for column in columns.values()]
    if len(numbers) == 1:
        return numbers[0]
    # Some logs number the sessions of each user from 1, so the owner is the pair of user and session.
    users, sessions = numbers
    pairs = sessions.astype(np.int64) * (int(users.max()) + 1) + users
    return factorize_by_appearance(pl.Series(pairs))


def ids_of_owners(owners: Indices, columns: Mapping[str, pl.Series]) -> pl.DataFrame:
    """Return the ids of each owner as text, one row per owner; a missing user id is the empty text."""
    first = np.unique(owners, return_index=True)[1]
    return pl.DataFrame({name: ids.gather(first).cast(pl.String).fill_null("") for name, ids in columns.items()})


def _is_optional(name: str, frame: pl.DataFrame) -> bool:
    return (name == "user" and "session" in frame) or (name == "item" and "offered" in frame)


def _common_id_type(types: set[pl.DataType]) -> type[pl.DataType]:
    return pl.String if pl.String in types else pl.Int64


def pad_lists(items: Ints, lengths: Longs) -> Ints:
    """Turn concatenated lists into a table [D, K], padded on the right with −1."""
    table = np.full((len(lengths), int(lengths.max())), -1, np.int32)
    table[np.arange(table.shape[1]) < lengths[:, None]] = items
    return table


def behaviour_order(name: str) -> tuple[int, str]:
    """Return a sort key that orders behaviours as view, click, cart, buy, then all others by name."""
    return (BEHAVIOUR_ORDER.index(name) if name in BEHAVIOUR_ORDER else len(BEHAVIOUR_ORDER), name)


def as_ticks(column: pl.Series) -> tuple[Longs, TimeUnit, str]:
    """Convert times to integers.

    Returns:
        The integers, their unit, and the format of times in the source. The unit of numbers is guessed from their size.
    """
    if isinstance(column.dtype, pl.Datetime):
        return column.to_physical().to_numpy(), "microseconds", "dates"
    unit = guess_unit(largest_time(column))
    return numbers_as_ticks(column, unit), unit if column.dtype == pl.Int64 else "microseconds", unit


def largest_time(column: pl.Series) -> float:
    """Return the largest absolute value of a column of numbers."""
    numbers: NDArray[np.int64] | NDArray[np.float64] = column.to_numpy()
    return max(abs(float(numbers.max())), abs(float(numbers.min())))


def guess_unit(largest: float) -> TimeUnit:
    """Guess the unit of times from the largest of them."""
    for bound, name in ((1e11, "seconds"), (1e14, "milliseconds"), (1e17, "microseconds")):
        if largest < bound:
            return name  # type: ignore[return-value]
    return "nanoseconds"


def numbers_as_ticks(column: pl.Series, unit: TimeUnit) -> Longs:
    """Return integers as they are, and decimal numbers of a unit as microseconds."""
    numbers: NDArray[np.int64] | NDArray[np.float64] = column.to_numpy()
    if numbers.dtype == np.int64:
        return numbers.astype(np.int64, copy=False)
    return np.rint(numbers * (TICKS_PER_SECOND["microseconds"] / TICKS_PER_SECOND[unit])).astype(np.int64)


def to_milliseconds(times: Longs, ticks: int) -> Longs:
    """Convert times of `ticks` per second to milliseconds, in place if the array may be changed."""
    out = times if times.flags.writeable else None
    return np.multiply(times, 1000 // ticks, out) if ticks <= 1000 else np.floor_divide(times, ticks // 1000, out)
