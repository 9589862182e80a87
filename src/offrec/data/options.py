"""The options of `offrec prepare`, and the protocol they come to for a log."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

from offrec.data.formats import FORMATS, Columns, ProtocolDefaults
from offrec.data.log import Log
from offrec.data.protocol import Protocol, Split, Unseen
from offrec.data.sessions import check_filter
from offrec.errors import InputError


@dataclass(frozen=True)
class PrepareOptions:
    """Every choice between a raw log and a dataset. What is left unset follows --protocol."""

    format: str = "events"
    """What the sources are: RetailRocket's events.csv; YooChoose's clicks, with or without its buys; any table, as CSV,
    TSV, JSON lines or Parquet, of events, or of decisions (served lists, how likely each was, what was picked); or the
    folder that `offrec serve` writes its decision log to."""
    protocol: Literal["plain", "paper"] = "plain"
    """`paper` filters and cuts as Xin et al. (2020) and the paper do for this format; `plain` keeps every event."""
    session: str | None = None
    """The column that tells sessions apart (`events` only; default: `session`, where the table has it)."""
    user: str | None = None
    """The column that tells users apart (default: `user`). With a session column too, a session is a pair of both."""
    item: str | None = None
    """The column with the item's id (default: `item`)."""
    time: str | None = None
    """The column with the event's time, a number since 1970 or ISO 8601 (default: `time`)."""
    position: str | None = None
    """The column that orders a session's events where there are no times (default: `position`). Without either, the
    file's order counts."""
    behaviour: str | None = None
    """The column that says what the user did (default: `behaviour`). Without it every event is a `view`."""
    offered: str | None = None
    """The column with the ordered list that was served (`decisions` only; default: `offered`). Without it each list is
    the item alone."""
    propensity: str | None = None
    """The column that says how likely the list was, or the event's item (default: `propensity`, where there is one)."""
    catalogue: str | None = None
    """Number items as this dataset or run does, and keep all of its items, so that its policies can be judged on this
    log (`offrec estimate RUN --dataset`). Events of items that it does not know are left out and counted."""
    sessions: Literal["auto", "column", "user", "gap"] = "auto"
    """What a session is: the session column's, all that a user did, or a user's events cut by inactivity. `auto`: the
    column where there is one, else the gap."""
    gap_minutes: float = 30.0
    """Minutes without an event after which a user's next session begins (only where users are cut by a gap)."""
    drop: tuple[str, ...] = ()
    """Behaviours to leave out before anything is counted; `none` drops none, whatever the protocol does."""
    behaviours: tuple[str, ...] = ()
    """The behaviours that may occur; any other is then an error (`events` only)."""
    filter: tuple[str, ...] = ()
    """Applied once, in the order given: `item=3` keeps items with at least 3 events, `session=3` sessions, and
    `session.click=3` counts clicks only. `none` filters nothing, whatever the protocol does."""
    sample: int | None = None
    """Keep so many sessions, drawn after the filters with the split's seed; 0 keeps all, whatever the protocol does."""
    split: Split = "random"
    """How sessions are split: at random, or by the time they start."""
    split_seed: int = 0
    """The seed of the split and of the sample."""
    split_parts: tuple[float, float, float] = (8.0, 1.0, 1.0)
    """The proportions of training, validation and test."""
    score_first: bool = True
    """Whether the first event of a session, which has no history, is scored."""
    unseen: Unseen = "keep"
    """Whether test items that never occur in training are scored."""
    score_last: int | None = None
    """Score only the last so many events of each session."""

    @property
    def columns(self) -> Columns:
        named = {field.name: getattr(self, field.name) for field in fields(Columns) if field.name != "use_session"}
        return Columns(**named, use_session=self.sessions in {"auto", "column"})


def from_choices(choices: dict[str, Any]) -> PrepareOptions:
    known = [field.name for field in fields(PrepareOptions)]
    if unknown := [name for name in choices if name not in known]:
        raise InputError(f"Preparing has no option {unknown[0]!r}; it has {', '.join(known)}.")
    return PrepareOptions(**choices)


def check(options: PrepareOptions) -> None:
    """What is wrong with the options alone, before anything is read."""
    for field in fields(options):
        value, allowed = getattr(options, field.name), get_args(field.type)
        if get_origin(field.type) is Literal and value not in allowed:
            raise InputError(f"There is no choice {value!r} for {field.name}; expected one of {', '.join(allowed)}.")
    kind = FORMATS[options.format]
    for text in _chosen(options.filter, ()):
        check_filter(text)
    if not 0 < options.gap_minutes < math.inf:
        raise InputError(
            f"A gap of {options.gap_minutes:g} minutes cannot be; expected a finite number above 0, such as 30."
        )
    parts = options.split_parts
    if len(parts) != 3 or not math.isfinite(sum(parts)) or min(parts) <= 0:
        raise InputError(f"The split parts {parts} cannot be; expected three finite numbers above 0, such as 8 1 1.")
    for name, least in (("sample", 0), ("split_seed", 0), ("score_last", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} {value} cannot be; expected {least} or more.")
    if options.behaviours and (kind.behaviours is not None or kind.read is None):
        raise InputError(f"The behaviours of {options.format} are known; drop --behaviours or use --format events.")


def protocol(options: PrepareOptions, log: Log) -> Protocol:
    """Every choice spelled out: what was asked for, else the preset's, else what the log allows."""
    preset = FORMATS[options.format].paper if options.protocol == "paper" else ProtocolDefaults()
    for name in _chosen(options.drop, ()):
        if name not in log.behaviour_names:
            raise InputError(f"There is no behaviour {name!r} to drop; the log has {', '.join(log.behaviour_names)}.")
    return Protocol(
        format=options.format,
        sessions=_sessions(options, preset, log),
        gap_minutes=options.gap_minutes,
        behaviours_dropped=_chosen(options.drop, preset.drop),
        filters=_chosen(options.filter, preset.filters),
        sample=(preset.sample if options.sample is None else options.sample) or None,
        split=options.split,
        split_seed=options.split_seed,
        split_parts=options.split_parts,
        score_first=options.score_first,
        unseen=options.unseen,
        score_last=options.score_last,
    )


def _chosen(asked: tuple[str, ...], preset: tuple[str, ...]) -> tuple[str, ...]:
    return () if tuple(asked) == ("none",) else tuple(asked) or preset


def _sessions(options: PrepareOptions, preset: ProtocolDefaults, log: Log) -> str:
    how = preset.sessions if options.sessions == "auto" else options.sessions
    if how == "auto":
        how = "column" if log.has_sessions else "gap"
    if how == "column" and not log.has_sessions:
        raise InputError("The log has no session column; name one with --session, or use --sessions gap or user.")
    if how != "column" and log.has_sessions:
        raise InputError(f"--sessions {how} needs users, and this log has only sessions; leave it out.")
    if log.times is None and how == "gap":
        raise InputError("The log has no times to cut users by; use --sessions user, or name a column with --time.")
    if log.times is None and options.split == "time":
        raise InputError("The log has no times to split by; use --split random, or name a column with --time.")
    return how
