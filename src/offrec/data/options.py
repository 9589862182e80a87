"""The options of `offrec prepare`, and the protocol that they define for a log."""

import math
import typing
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import tyro

from offrec.data.formats import FORMATS, Columns, ProtocolDefaults
from offrec.data.log import Log
from offrec.data.protocol import Protocol, Split, Unseen
from offrec.data.sessions import check_filter
from offrec.errors import InputError

Column = Annotated[str | None, tyro.conf.arg(metavar="COLUMN", help_behavior_hint="")]


class DescribesLog(typing.Protocol):
    """What a protocol depends on: a log, or the facts about a log that is divided into partitions."""

    @property
    def behaviour_names(self) -> tuple[str, ...]: ...

    @property
    def has_sessions(self) -> bool: ...

    @property
    def has_times(self) -> bool: ...


@dataclass(frozen=True)
class PrepareOptions:
    """Every option that determines how a raw log becomes a dataset. --protocol sets the defaults."""

    format: str = "events"
    """The format of the sources. `events`: any table with one event per row (CSV, TSV, JSON lines or Parquet).
    `decisions`: any table with one served list per row, its propensity and the item that was picked. `retailrocket`:
    RetailRocket's events.csv. `yoochoose`: YooChoose's clicks, with or without its buys. `served`: the folder of a
    decision log that `offrec serve` wrote. `open-bandit`: a campaign of the Open Bandit Dataset, such as the folder
    random/men."""
    protocol: Literal["plain", "paper"] = "plain"
    """`paper` filters and splits as Xin et al. (2020) and the paper do for this format; `plain` keeps every event."""
    session: Column = None
    """The column with the session id (default: `session`, if the table has that column)."""
    user: Column = None
    """The column with the user id (default: `user`). If the table also has a session column, a session is a pair of
    user and session id."""
    item: Column = None
    """The column with the item id (default: `item`)."""
    time: Column = None
    """The column with the time of the event: a number since 1970 or ISO 8601 text (default: `time`)."""
    position: Column = None
    """The column that orders the events of a session if the log has no times (default: `position`). Without times and
    positions, events keep the order of the file."""
    behaviour: Column = None
    """The column with the user's behaviour (default: `behaviour`). Without it, every event is a `view`."""
    reward: Column = None
    """The column with the event's reward: any number, such as a price or a rating. An event without a number has the
    reward of its behaviour. Without this option, every event has. With --format served: --reward reward."""
    reward_behaviours: tuple[str, ...] = ()
    """With --reward: the behaviours whose events read the column, such as buy. Default: all of them. All other events
    have the reward of their behaviour."""
    offered: Column = None
    """The column with the ordered list that was served (`decisions` only; default: `offered`). Without it, each list
    contains only the item of its row."""
    propensity: Column = None
    """The column with the probability of the served list, or of the event's item (default: `propensity`, if the table
    has that column)."""
    catalogue: Annotated[str | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Use the items and indices of this dataset or run folder. Its policies can then be evaluated on this log
    (`offrec estimate RUN --dataset`). Events with other items are dropped and counted."""
    keep_new_items: bool = False
    """With --catalogue: give items that the folder does not contain the next indices, instead of dropping them."""
    items: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE")] = ()
    """A table with one row per item (CSV or Parquet): its id in `item` or `id`, a `title`, a `category` and further
    columns of text, numbers or lists of numbers (embeddings). Or RetailRocket's item_properties files. Networks use
    all columns except the title as features of the items."""
    keep_unseen_items: bool = False
    """Whether items of the table that are not in the log become part of the catalogue, so that they can be
    recommended."""
    sessions: Literal["auto", "column", "user", "gap"] = "auto"
    """How to define sessions. `column`: the events with one session id. `user`: all events of a user. `gap`: the
    events of a user between two periods of inactivity. `auto`: `column` if the log has session ids, else `gap`."""
    gap_minutes: float = 30.0
    """With `--sessions gap`: a new session starts after this many minutes without an event."""
    drop: tuple[str, ...] = ()
    """Behaviours to remove before filters are applied. `none` removes none, even if the protocol would remove some."""
    behaviours: tuple[str, ...] = ()
    """The behaviours that may occur; any other behaviour is an error. Default: any behaviour may occur."""
    filter: tuple[str, ...] = ()
    """Filters, applied once each in the given order. `item=3` keeps items with at least 3 events, `session=3` keeps
    sessions with at least 3 events, and `session.click=3` counts only clicks. `none` applies no filter, even if the
    protocol would apply one."""
    sample: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """Keep a random sample of this many sessions, drawn after the filters. 0 keeps all, even if the protocol would
    sample."""
    sample_first: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """Keep a random sample of this many sessions, drawn before anything is dropped or filtered, so that filters count
    events of the sample only. May be combined with --sample."""
    split: Split = "random"
    """How to split the sessions. `random`: at random. `time`: by their start time. `hash`: by a keyed hash of the
    session id or, without session ids, of the user id. The split of a session by hash does not depend on the other
    sessions, so that it also works for logs larger than one machine."""
    split_seed: int = 0
    """The seed of the split and of the samples."""
    split_parts: tuple[float, float, float] = (8.0, 1.0, 1.0)
    """The proportions of training, validation and test sessions."""
    score_first: bool = True
    """Whether to score the first event of a session, which has no history."""
    unseen: Unseen = "keep"
    """Whether to score test events with items that never occur in training."""
    score_last: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """Score only the last N events of each session. Default: all of them."""

    @property
    def columns(self) -> Columns:
        """The columns to read."""
        names = {field.name: getattr(self, field.name) for field in fields(Columns) if field.name != "use_session"}
        return Columns(**names, use_session=self.sessions in {"auto", "column"})


def from_keywords(values: dict[str, Any]) -> PrepareOptions:
    """Build the options from keyword arguments of `offrec.prepare`."""
    known = [field.name for field in fields(PrepareOptions)]
    if unknown := [name for name in values if name not in known]:
        raise InputError(f"prepare has no option {unknown[0]!r}; its options are {', '.join(known)}.")
    takes_several = {field.name for field in fields(PrepareOptions) if "tuple[str, ...]" in str(field.type)}
    one = {name: (value,) for name, value in values.items() if name in takes_several and isinstance(value, str)}
    return PrepareOptions(**{**values, **one})


def check(options: PrepareOptions) -> None:
    """Check everything about the options that does not depend on the log.

    Raises:
        InputError: If an option has an impossible value.
    """
    for field in fields(options):
        value, allowed = getattr(options, field.name), get_args(field.type)
        if get_origin(field.type) is Literal and value not in allowed:
            raise InputError(f"{_flag(field.name)} must be one of {', '.join(allowed)}; got {value!r}.")
    record = FORMATS[options.format]
    if options.reward_behaviours and options.reward is None:
        raise InputError("--reward-behaviours needs a column of rewards; specify one with --reward.")
    for text in _values(options.filter, ()):
        check_filter(text)
    if not 0 < options.gap_minutes < math.inf:
        raise InputError(f"--gap-minutes must be positive and finite; got {options.gap_minutes:g}.")
    parts = options.split_parts
    if len(parts) != 3 or not math.isfinite(sum(parts)) or min(parts) <= 0:
        text = " ".join(f"{part:g}" for part in parts)
        raise InputError(f"--split-parts must be three positive numbers, such as 8 1 1; got {text}.")
    for name, minimum in (("sample", 0), ("sample_first", 1), ("split_seed", 0), ("score_last", 1)):
        value = getattr(options, name)
        if value is not None and value < minimum:
            raise InputError(f"{_flag(name)} must be at least {minimum}; got {value}.")
    if options.keep_unseen_items and not options.items:
        raise InputError("--keep-unseen-items needs --items FILE, the table that lists the items.")
    if options.keep_new_items and options.catalogue is None:
        raise InputError("--keep-new-items needs --catalogue, whose items come first; add it or remove the option.")
    if options.keep_unseen_items and options.catalogue is not None:
        raise InputError("--keep-unseen-items cannot be used with --catalogue, which defines the items; remove one.")
    if options.behaviours and (record.behaviours is not None or record.read is None):
        raise InputError(
            f"--behaviours cannot be used with --format {options.format}, which defines its behaviours; "
            "remove it or use --format events."
        )


def limit_rewards(log: Log, behaviours: tuple[str, ...]) -> Log:
    """Remove the rewards of all other behaviours from the log's reward column; no behaviours: keep all rewards.

    Raises:
        InputError: If the log does not have one of the behaviours.
    """
    if log.rewards is None or not behaviours:
        return log
    for name in behaviours:
        if name not in log.behaviour_names:
            raise InputError(f"--reward-behaviours {name!r} is not a behaviour of the log, which has {_listed(log)}.")
    reads_column = np.array([name in behaviours for name in log.behaviour_names])
    return replace(log, rewards=np.where(reads_column[log.behaviours], log.rewards, np.float32("nan")))


def resolve_protocol(options: PrepareOptions, log: DescribesLog) -> Protocol:
    """Set every field of the protocol: from the options, else from the format's defaults, else from the log."""
    defaults = FORMATS[options.format].paper if options.protocol == "paper" else ProtocolDefaults()
    for name in _values(options.drop, ()):
        if name not in log.behaviour_names:
            raise InputError(f"--drop {name!r} is not a behaviour of the log, which has {_listed(log)}.")
    return Protocol(
        format=options.format,
        sessions=_session_definition(options, defaults, log),
        gap_minutes=options.gap_minutes,
        behaviours_dropped=_values(options.drop, defaults.drop),
        filters=_values(options.filter, defaults.filters),
        sample=(defaults.sample if options.sample is None else options.sample) or None,
        split=options.split,
        split_seed=options.split_seed,
        split_parts=options.split_parts,
        score_first=options.score_first,
        unseen=options.unseen,
        score_last=options.score_last,
        sample_first=options.sample_first,
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _listed(log: DescribesLog) -> str:
    return ", ".join(log.behaviour_names)


def _values(values: tuple[str, ...], defaults: tuple[str, ...]) -> tuple[str, ...]:
    return () if tuple(values) == ("none",) else tuple(values) or defaults


def _session_definition(options: PrepareOptions, defaults: ProtocolDefaults, log: DescribesLog) -> str:
    definition = defaults.sessions if options.sessions == "auto" else options.sessions
    if definition == "auto":
        definition = "column" if log.has_sessions else "gap"
    if definition == "column" and not log.has_sessions:
        raise InputError("The log has no session column; specify one with --session, or use --sessions gap or user.")
    if definition != "column" and log.has_sessions:
        raise InputError(f"--sessions {definition} needs user ids, but this log has only session ids; remove it.")
    if not log.has_times and definition == "gap":
        raise InputError(
            "--sessions gap needs timestamps, but the log has none; specify a column with --time or use "
            "--sessions user."
        )
    if not log.has_times and options.split == "time":
        raise InputError(
            "--split time needs timestamps, but the log has none; specify a column with --time or use --split random."
        )
    return definition
