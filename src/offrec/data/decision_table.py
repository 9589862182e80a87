"""Read a table of decisions together with the probabilities that other policies give to them.

Each row is a decision: its reward, the probability of what was shown under the policy that showed it (the propensity),
and the probability of the same under each policy that is to be evaluated. What was shown, to whom and in which slot
does not matter here, because the probabilities already depend on it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import polars as pl

from offrec.data import column_checks, list_checks, sources, tables
from offrec.data.bad_rows import BadRows, RowBatch
from offrec.data.rewards import REWARDS
from offrec.data.sources import Source
from offrec.errors import InputError
from offrec.types import Doubles, Longs

PROBABILITY = "expected the probability that the policy gives to what was shown, from 0 to 1"
MAX_SPREAD = 1.01  # ratio of propensities that count as equal
REWARD = "expected a finite number"
OPTIONS = {"reward": "--reward-column"}  # of columns whose option has another name


@dataclass(frozen=True)
class TableColumns:
    """The table's names of its columns. None: offrec's own name, if the table has such a column."""

    propensity: str = "propensity"
    session: str | None = None  # without it, every row is a session of its own
    time: str | None = None  # the order of the decisions of a session; without it, the order of the rows
    reward: str | None = None  # without it, the reward of each behaviour
    behaviour: str | None = None
    reads_sessions: bool = True  # False: every row is a session, even if the table has a column `session`


@dataclass(frozen=True)
class DecisionTable:
    """The decisions of a table, session by session."""

    offsets: Longs  # [S + 1]
    reward: Doubles  # [D]
    log_propensity: Doubles  # [D]
    log_probability: dict[str, Doubles]  # policy → [D] log π of what was shown; −∞ if the policy never shows it
    averaged: tuple[str, ...] = ()  # policies whose propensities differ within the columns of `LoggedPolicy.match`
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoggedPolicy:
    """A policy that is known from its own log.

    Args:
        name: Its name in results.
        paths: The tables that it wrote.
        match: The columns on which its propensities depend, such as item and slot. Its probability of a row is the
            harmonic mean of its propensities in its own rows with the same values, and 0 if there are none.
    """

    name: str
    paths: tuple[str, ...]
    match: tuple[str, ...]


@dataclass
class _Reader:
    """Reads and checks the columns of tables, batch by batch."""

    columns: TableColumns
    probabilities: Sequence[str] = ()
    match: Sequence[str] = ()
    has_rewards: bool = True
    numeric_times: bool | None = None
    bad_rows: BadRows = field(default_factory=BadRows)

    def read(self, paths: Sequence[str | Path]) -> pl.DataFrame:
        """Return the checked columns of all rows."""
        frames = []
        for source in sources.find(paths):
            for task in tables.read_tasks(source, self.resolve):
                batch = task(self.bad_rows)
                if batch is not None:
                    frames.append(self.check(batch))
        self.bad_rows.raise_any()
        if not any(frame.height for frame in frames):
            raise InputError(f"{paths[0]} has no rows; give a table with at least one decision.")
        try:
            return pl.concat(frames, how="vertical_relaxed")
        except pl.exceptions.PolarsError as error:
            raise InputError("The tables have different columns; give tables with the same columns.") from error

    def resolve(self, source: Source, available: Sequence[str]) -> Mapping[str, str]:
        """Choose the columns to read, see `bad_rows.Resolve`."""
        resolved = {"propensity": self._existing(source, available, "propensity", self.columns.propensity)}
        names = ["session", "time", "reward", "behaviour"] if self.has_rewards else []
        for name in names:
            given = getattr(self.columns, name)
            if given is None and (name not in available or (name == "session" and not self.columns.reads_sessions)):
                continue
            resolved[name] = self._existing(source, available, name, given or name)
        if "session" not in resolved:
            resolved.pop("time", None)
        if self.has_rewards and "reward" not in resolved and "behaviour" not in resolved:
            raise InputError(
                f"{source.name} has no column 'reward' or 'behaviour'; {_listed(available)}; specify the reward with "
                "--reward-column."
            )
        for prefix, wanted, option in (("pi", self.probabilities, "probabilities"), ("key", self.match, "match")):
            for number, column in enumerate(wanted):
                resolved[f"{prefix}{number}"] = self._existing(source, available, option, column)
        return resolved

    def _existing(self, source: Source, available: Sequence[str], name: str, column: str) -> str:
        if column in available:
            return column
        near = get_close_matches(column, available, n=3)
        advice = f"did you mean {' or '.join(near)}?" if near else _listed(available)
        option = OPTIONS.get(name, f"--{name}")
        raise InputError(f"{option}: {source.name} has no column {column!r}; {advice}")

    def check(self, batch: RowBatch) -> pl.DataFrame:
        """Check a batch and return its numbers."""
        frame = batch.frame
        checked = {"log_propensity": list_checks.check_propensity(batch, self.bad_rows)}
        if "session" in frame:
            checked["session"] = column_checks.check_ids(batch, "session", self.bad_rows).cast(pl.String)
        if "time" in frame:
            checked["time"] = column_checks.check_times(batch, self.bad_rows, numeric=self.numeric_times)
            self.numeric_times = checked["time"].dtype.is_numeric()
        if "reward" in frame:
            checked["reward"] = self._numbers(batch, "reward", -math.inf, math.inf, "reward", REWARD)
        elif "behaviour" in frame:
            checked["behaviour"] = frame["behaviour"].cast(pl.String).fill_null("")
        for number, column in enumerate(self.probabilities):
            name = f"pi{number}"
            checked[name] = self._numbers(batch, name, 0.0, 1.0, f"probability {column}", PROBABILITY)
        for number in range(len(self.match)):
            checked[f"key{number}"] = frame[f"key{number}"].cast(pl.String)
        return pl.DataFrame(checked)

    def _numbers(self, batch: RowBatch, name: str, low: float, high: float, kind: str, expected: str) -> pl.Series:
        values = batch.frame[name]
        if values.dtype == pl.Boolean:
            values = values.cast(pl.Int8)
        numbers = values.cast(pl.Float64, strict=False)
        missing = values.is_null() | (values.cast(pl.String) == "")
        self.bad_rows.add_rows(f"a missing {kind}", expected, batch, missing)
        is_valid = (numbers.is_finite() & (numbers >= low) & (numbers <= high)).fill_null(False)
        self.bad_rows.add_rows(f"the {kind}", expected, batch, ~is_valid & ~missing, values)
        return numbers.alias(name)


def read_decision_table(
    paths: Sequence[str | Path],
    probabilities: Sequence[str] = (),
    columns: TableColumns | None = None,
    rewards: Mapping[str, float] | None = None,
    policies: Sequence[LoggedPolicy] = (),
) -> DecisionTable:
    """Read a table of decisions with the probabilities of other policies.

    Args:
        paths: Files, globs or folders of Parquet files, as for `offrec prepare`.
        probabilities: The columns with the probabilities of the policies.
        columns: The names of the other columns.
        rewards: Reward of each behaviour, for tables without a column of rewards; missing ones use the default.
        policies: Policies that are known from their own logs.

    Returns:
        The decisions, ordered by session, time and row.

    Raises:
        InputError: If a column does not exist, a value is missing or out of range, or no policy is given.
    """
    columns = columns or TableColumns()
    if not probabilities and not policies:
        raise InputError("No policy was given; name its column with --probabilities.")
    if len(set(probabilities)) < len(probabilities):
        raise InputError(f"--probabilities names a column twice; got {', '.join(probabilities)}.")
    names_of_logs = [policy.name for policy in policies]
    if len({*probabilities, *names_of_logs}) < len(probabilities) + len(names_of_logs):
        raise InputError(f"--policy-log names a policy twice; got {', '.join([*probabilities, *names_of_logs])}.")
    match = tuple(dict.fromkeys(name for policy in policies for name in policy.match))
    frame = _Reader(columns, probabilities, match).read(paths)
    if "reward" not in frame:
        frame = frame.with_columns(_rewards_of(frame["behaviour"], rewards or {}))
    frame, notes, averaged = frame.with_row_index("row"), [], []
    for number, policy in enumerate(policies):
        frame, note, is_averaged = _join(frame, policy, columns, match, f"policy{number}")
        notes += note
        averaged += [policy.name] if is_averaged else []
    if "session" in frame:
        first = pl.col("row").min().over("session")
        frame = frame.sort(first, *(["time"] if "time" in frame.columns else []), "row")
        session = frame["session"].to_numpy()
        starts = np.flatnonzero(np.concatenate([[True], session[1:] != session[:-1]]))
        offsets = np.append(starts, len(session)).astype(np.int64)
    else:
        offsets = np.arange(frame.height + 1)
    names = {f"pi{number}": column for number, column in enumerate(probabilities)}
    names |= {f"policy{number}": policy.name for number, policy in enumerate(policies)}
    with np.errstate(divide="ignore"):
        log_probability = {name: np.log(frame[column].to_numpy()) for column, name in names.items()}
    reward, log_propensity = (frame[name].to_numpy().astype(np.float64) for name in ("reward", "log_propensity"))
    return DecisionTable(offsets, reward, log_propensity, log_probability, tuple(averaged), tuple(notes))


def _rewards_of(behaviour: pl.Series, rewards: Mapping[str, float]) -> pl.Series:
    """Return the reward of each row's behaviour; "none" and rows without a behaviour earn 0."""
    known = {**REWARDS, **rewards, "none": 0.0, "": 0.0}
    unknown = [name for name in behaviour.unique().to_list() if name not in known]
    if unknown:
        raise InputError(
            f"The behaviour {unknown[0]!r} has no reward; give one, such as --reward {unknown[0]}=1, or a column of "
            "rewards with --reward-column."
        )
    return behaviour.replace_strict(list(known), list(known.values()), return_dtype=pl.Float64).alias("reward")


def _join(
    frame: pl.DataFrame, policy: LoggedPolicy, columns: TableColumns, match: Sequence[str], name: str
) -> tuple[pl.DataFrame, list[str], bool]:
    """Add the probabilities of a policy that is known from its own log.

    Returns:
        The frame, what is not exact about the probabilities, and whether they are means of different propensities.
    """
    own = _Reader(columns, match=policy.match, has_rewards=False).read(policy.paths)
    keys = [f"key{number}" for number in range(len(policy.match))]
    theirs = [f"key{match.index(column)}" for column in policy.match]
    probability = pl.col("log_propensity").exp()
    # The policy's own rows contain an item most often where it is likely. Their arithmetic mean would be too large.
    table = own.group_by(keys).agg(
        (1 / (1 / probability).mean()).alias(name), (probability.max() / probability.min()).alias("spread")
    )
    joined = frame.join(
        table.rename(dict(zip(keys, theirs, strict=True))), on=theirs, how="left", maintain_order="left"
    )
    notes, listed = [], ", ".join(policy.match)
    if unknown := joined[name].null_count():
        notes.append(
            f"{policy.name} never shows {unknown:,} of the {joined.height:,} decisions: its log has no such {listed}."
        )
    spread = float(table["spread"].max() or 1.0)  # type: ignore[arg-type]
    if is_averaged := spread > MAX_SPREAD:
        notes.append(
            f"The propensities of {policy.name} differ by up to a factor of {spread:.2f} within one {listed}; their "
            "harmonic mean is used. Add the other columns on which they depend to --match."
        )
    return joined.drop("spread").with_columns(pl.col(name).fill_null(0.0)), notes, is_averaged


def _listed(available: Sequence[str]) -> str:
    return f"it has {', '.join(available[:20])}{', …' if len(available) > 20 else '.'}"
