"""A server's decision log: lists and events, in segments of JSON lines, joined into sessions.

An event belongs to the list of its request or, where it names none, to its session's last list that held the item. A
session is taken whole or not at all: without one of its lists, neither its weight nor what it earned is right.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.data import decision_log_files
from offrec.data.column_checks import as_numbers
from offrec.data.decision_log_files import Counted
from offrec.data.factorize import factorize_by_appearance, factorize_sorted, run_starts
from offrec.data.formats.record import Columns, FormatRecord
from offrec.data.log import MOST_BEHAVIOURS, Lists, Log, TimeUnit, behaviour_order, padded
from offrec.data.sources import Source
from offrec.errors import InputError
from offrec.types import Doubles, Ints, Longs

UNIT: TimeUnit = "milliseconds"
BARE = "kept without a list"
HOME = "give every request its session"
ROUNDING = 1e-5  # of a log probability that is a float32's sum: 0 may come out a little above

LENGTH = pl.col("items").list.len()
ODD = (LENGTH == 0) | (pl.col("items").list.n_unique() != LENGTH)
DRAWN = pl.col("sampled") & pl.col("log_probability").is_not_null()
LATER = pl.col("history") != 0  # the hash of an empty one
FREE = "serve without exclude, exclude_seen and candidates"
UNUSABLE = (  # what a list is, in words; what to do about it
    (pl.col("twice"), "a request that was answered twice", "give every request an id of its own"),
    (ODD | pl.col("items").list.contains(None), "an empty list, or an item twice in one", "read a log of offrec serve"),
    (pl.col("log_probability") > ROUNDING, "a list likelier than 1", "read a log of offrec serve"),
    (~DRAWN, "a list that was not drawn at random, so no probability", "serve with sample"),
    (  # exclude_seen excludes nothing from first lists: those that look free are of visits that ended early
        (LATER & pl.col("restricted")).any() & (~LATER | pl.col("restricted")).all(),
        "all lists after a pick are restricted by exclude, exclude_seen or candidates",
        FREE,
    ),
    (pl.col("restricted"), "a list restricted by exclude, exclude_seen or candidates", FREE),
)


@dataclass
class Tally:
    """What was left out, and why, in words."""

    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    advice: Counter[str] = field(default_factory=Counter)

    def note(self, count: int, noun: str, what: str, advice: str = "") -> None:
        if count:
            self.notes.append(f"{count:,} {noun}{'' if count == 1 else 's'} {what}.")
            self.say(self.notes[-1])
            self.advice[advice] += count if advice else 0


def log(sources: Sequence[Source], columns: Columns, say: Callable[[str], None]) -> Log:
    if columns != Columns(use_session=columns.use_session):
        raise InputError("The fields of a served log are known; drop --session, --item, … or use --format decisions.")
    tally = Tally(say)
    records, rows = _records(sources, tally)
    lists, events = _whole(*_joined(records, tally), tally)
    lists, events = _consistent(lists, _picks(events, tally), tally)
    if not len(lists):
        why = "; ".join(note.rstrip(".") for note in tally.notes) or "it holds no list"
        advice = next((advice for advice, count in tally.advice.most_common(1) if count), HOME)
        raise InputError(f"The log has no session that estimates can use ({why}): {advice} for one that has.")
    return _log(lists, events, rows, tuple(tally.notes))


def _records(sources: Sequence[Source], tally: Tally) -> tuple[pl.DataFrame, dict[str, int]]:
    """All records by time, those of equal times as they stand in the files."""
    frames: list[pl.DataFrame] = []
    rows: dict[str, int] = {}
    torn = 0
    for source in sources:
        counted = Counted()
        frames += decision_log_files.read(source, counted)
        rows[source.name], torn = counted.records, torn + counted.torn
        tally.say(f"{source.name}: {counted.records:,} records")
    records = pl.concat(frames)
    tally.note(torn, "line", "skipped: torn, at the end of a segment")
    lost = int(records.filter(kind="lost")["count"].sum())
    tally.note(lost, "record", "lost by the server, of any kind")
    return records.filter(pl.col("kind") != "lost").sort("time", maintain_order=True).with_row_index("at"), rows


def _joined(records: pl.DataFrame, tally: Tally) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Lists, and events with their session and, as `list`, the list they belong to."""
    every = records.filter(kind="list").drop("item", "behaviour", "kind")
    lists = every.unique(pl.exclude("at"), keep="first", maintain_order=True)
    tally.note(every.height - lists.height, "list", "left out: written twice")
    lists = lists.with_columns(twice=pl.col("request").is_duplicated())
    events = records.filter(kind="event").select("at", "time", "request", "session", "item", "behaviour")
    known = lists.unique("request", keep="first").select("request", list="at", home="session", offered="items")
    events = events.join(known, on="request", how="left", maintain_order="left").with_columns(
        session=pl.coalesce("session", "home")
    )
    gone = pl.col("request").is_not_null() & pl.col("list").is_null()
    theirs = (pl.col("session") == pl.col("home")) & pl.col("offered").list.contains(pl.col("item"))
    events = events.with_columns(gone=gone, list=pl.when(theirs).then("list"))
    events = pl.concat([events.filter(pl.col("request").is_not_null()), _by_item(events, lists)]).sort("at")
    tally.note(lists["session"].null_count(), "list", "left out: no session id")
    tally.note(events["session"].null_count(), "event", "left out: no session id")
    has_session = pl.col("session").is_not_null()
    return lists.filter(has_session), events.filter(has_session)


def _by_item(events: pl.DataFrame, lists: pl.DataFrame) -> pl.DataFrame:
    """The events that name no request, with their session's last list that held the item."""
    shown = lists.filter(pl.col("session").is_not_null()).select("at", "session", last="at", item="items")
    shown = shown.explode("item").sort("at")
    bare = events.filter(pl.col("request").is_null())
    found = bare.join_asof(shown, on="at", by=["session", "item"], strategy="backward", check_sortedness=False)
    return found.with_columns(list="last").drop("last")


def _whole(lists: pl.DataFrame, events: pl.DataFrame, tally: Tally) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Without the sessions that hold a list of which nobody can say how likely it was."""
    for unfit, what, advice in UNUSABLE:
        out = lists.filter(unfit)["session"].unique()
        tally.note(len(out), "session", f"left out: {what}", advice)
        lists, events = _without(out, lists), _without(out, events)
    bare = events.join(lists, on="session", how="anti")["session"].unique()
    tally.note(len(bare), "session", "left out: events and no list", HOME)
    return lists, _without(bare, events)


def _without(sessions: pl.Series, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(~pl.col("session").is_in(sessions.implode()))


def _picks(events: pl.DataFrame, tally: Tally) -> pl.DataFrame:
    """A list's pick is the item of its first event. The furthest of what became of it, its `end`, stands for all."""
    listed = pl.col("list").is_not_null()
    first = pl.struct("session", "request", "list", "item", "behaviour").is_first_distinct()
    picked = listed & (pl.col("item") == pl.col("item").first().over("list"))
    events = events.with_columns(
        list=pl.when(picked).then("list"),
        other=listed & ~picked,
        copy=~first & (listed | pl.col("request").is_not_null()),
    )
    tally.note(int(events["other"].sum()), "event", f"{BARE}: not of the item that was first picked from its list")
    tally.note(int(events["gone"].sum()), "event", f"{BARE}: its request is not in the log")
    strange = events.filter(pl.col("list").is_null() & ~pl.col("other") & ~pl.col("gone")).height
    tally.note(strange, "event", f"{BARE}: no list of its session offered the item")
    order = {name: behaviour_order(name)[0] for name in events["behaviour"].unique()}
    rank = pl.col("behaviour").replace_strict(order, return_dtype=pl.Int64)
    last = pl.col("at", "behaviour").sort_by(rank, ~pl.col("copy"), "at").last().over("list").name.prefix("last_")
    again = listed & (pl.col("at") > pl.col("at").min().over("list"))
    return events.with_columns(last, again=again).with_columns(end=listed & (pl.col("at") == pl.col("last_at")))


def _consistent(lists: pl.DataFrame, events: pl.DataFrame, tally: Tally) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Without the sessions whose lists were served to another history than their events make.

    A shop may send an item that was clicked and then bought once, or once for each, even for the same again. The
    histories tell.
    """
    furthest = pl.when(pl.col("list").is_not_null()).then("last_behaviour").otherwise("behaviour")
    at_end = pl.when("end").then("list")
    once = events.filter(~pl.col("again"), ~pl.col("copy")).with_columns(behaviour=furthest, earns="list")
    each = events.filter(~pl.col("copy")).with_columns(earns=at_end)
    out, found = lists["session"].unique(), []
    for reading in (once, each, events.with_columns(earns=at_end)):
        tried = pl.col("session").is_in(out.implode())
        out = _strange(lists.filter(tried), reading)
        found.append(_without(out, reading.filter(tried)))
    what = "left out: a list that was served to another history than the events make"
    tally.note(len(out), "session", what, "send what the visitor has picked so far as history")
    kept = pl.concat(found)
    gone = _without(out, events).join(kept, on="at", how="anti")
    tally.note(int(gone["copy"].sum()), "event", "left out: sent twice")
    tally.note(int((~gone["copy"]).sum()), "event", "merged with an earlier one of the same item and list")
    beside = kept.filter(pl.col("list").is_not_null() & pl.col("earns").is_null()).height
    tally.note(beside, "event", f"{BARE}: another of the same item and list stands for it, the history holds both")
    return _without(out, lists), kept.select("at", "time", "session", "item", "behaviour", list="earns")


def _strange(lists: pl.DataFrame, events: pl.DataFrame) -> pl.Series:
    """The sessions of lists that were served to another history than the events make."""
    events = events.join(lists.select("session").unique(), on="session", how="semi", maintain_order="left")
    rows = pl.concat([lists.select("session", "at"), events.select("session", "at", "item")], how="diagonal")
    picked = pl.col("item").is_not_null().cast(pl.Int64)
    rows = rows.sort("session", "at").with_columns(place=picked.cum_sum().over("session") - picked)
    happened = rows["item"].is_not_null().to_numpy()
    term = np.zeros(rows.height, np.uint64)
    term[happened] = decision_log_files.terms(rows["item"].drop_nulls(), rows["place"].to_numpy()[happened])
    until = np.cumsum(term, dtype=np.uint64) - term
    begins = np.where(run_starts([rows["session"]]), np.arange(rows.height), 0)
    start = until[np.maximum.accumulate(begins)]
    found = rows.with_columns(hash=pl.Series(until - start)).select("at", "hash")
    seen = lists.join(found, on="at", how="left", maintain_order="left")
    return seen.filter(pl.col("history") != pl.col("hash"))["session"].unique()


def _log(lists: pl.DataFrame, events: pl.DataFrame, rows: dict[str, int], notes: tuple[str, ...]) -> Log:
    """Session after session, in each the lists and events by time."""
    shown = lists.select("session", "at", "time", "items", "log_probability")
    both = pl.concat([shown, events], how="diagonal").sort("at")
    owner = factorize_by_appearance(both["session"])
    both = both[np.argsort(owner, kind="stable")]
    owners, runs = np.unique(owner, return_counts=True)
    happened = both["item"].is_not_null().to_numpy()
    item_ids, picked, offered = _numbered(both["item"].drop_nulls(), both["items"].drop_nulls())
    items = np.full(both.height, -1, np.int32)
    items[happened] = picked
    names = sorted(events["behaviour"].unique().to_list(), key=behaviour_order)
    if len(names) > MOST_BEHAVIOURS:
        raise InputError(f"The log holds {len(names):,} different behaviours, such as {names[0]!r}; expected a few.")
    behaviours = both["behaviour"].cast(pl.Enum(names)).to_physical().fill_null(0).cast(pl.UInt8).to_numpy()
    served = Lists(np.flatnonzero(~happened), offered, _log_propensity(both), _picked(both, happened))
    times, unit = both["time"].to_numpy(), UNIT
    about = (item_ids, tuple(names), unit, unit, True, rows, served, notes)
    return Log(owners.astype(np.int32), runs, items, behaviours, times, None, *about)


def _numbered(picked: pl.Series, lists: pl.Series) -> tuple[Longs | list[str], Ints, Ints]:
    """The catalogue, and in it the picked items and the lists, padded with −1."""
    item_ids, places = factorize_sorted(
        as_numbers(pl.concat([picked, lists.explode().alias(picked.name)], rechunk=True))
    )
    return item_ids, places[: len(picked)], padded(places[len(picked) :], lists.list.len().cast(pl.Int64).to_numpy())


def _log_propensity(both: pl.DataFrame) -> Doubles:
    found: Doubles = np.minimum(both["log_probability"].drop_nulls().to_numpy(), 0.0)
    return found


def _picked(both: pl.DataFrame, happened: NDArray[np.bool_]) -> Longs:
    """[D] the row of the event that belongs to each list; −1: none."""
    at, row = both["at"].to_numpy(), np.arange(both.height)
    lists = both["list"].drop_nulls().to_numpy()
    event = np.full(int(max(at.max(), lists.max(initial=0))) + 1, -1, np.int64)  # list → row
    event[lists] = row[both["list"].is_not_null().to_numpy()]
    found: Longs = event[at[~happened]]
    return found


# Unlike the paper's other logs, nothing is filtered: estimates from sessions of a certain length speak of those alone.
RECORD = FormatRecord(
    name="served",
    help="The folder of a decision log that `offrec serve` wrote.",
    read_whole=log,
    has_lists=True,
    find=decision_log_files.find,
)
