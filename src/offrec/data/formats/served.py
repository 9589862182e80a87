"""Read a server's decision log: lists and events in files of JSON lines, joined into sessions.

An event belongs to the list of its request. If it names no request, it belongs to the last list of its session that
contained the item. A session is used completely or not at all: if one of its lists is missing, both its importance
weight and its return are wrong.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.data import decision_log_files
from offrec.data.column_checks import as_integers_if_exact
from offrec.data.dataset_checks import MAX_REWARD
from offrec.data.decision_log_files import RecordCounts
from offrec.data.factorize import factorize_by_appearance, factorize_sorted, run_starts
from offrec.data.formats.record import Columns, FormatRecord, Say
from offrec.data.log import MAX_BEHAVIOURS, Log, ServedLists, TimeUnit, behaviour_order, ids_of_owners, pad_lists
from offrec.data.sources import Source
from offrec.errors import InputError
from offrec.types import Doubles, Ints, Longs

REWARD = "reward"  # the field of an event
UNIT: TimeUnit = "milliseconds"
WITHOUT_LIST = "kept without a list"
SEND_SESSIONS = "send a session id with every request"
SERVE_FREELY = "serve without exclude, exclude_seen, skip_recent, candidates, allow and deny"
RESTRICTIONS = "exclude, exclude_seen, skip_recent, candidates, allow or deny"
READ_OTHER_LOG = "read a log of offrec serve"
ROUNDING = 1e-5  # a log probability is a float32 sum, so it can be slightly above 0

LENGTH = pl.col("items").list.len()
IS_MALFORMED = (
    (LENGTH == 0) | (pl.col("items").list.n_unique() != LENGTH) | pl.col("items").list.contains(None)
)  # fmt: skip
IS_SAMPLED = pl.col("sampled") & pl.col("log_probability").is_not_null()
HAS_HISTORY = pl.col("history") != 0  # 0 is the hash of an empty history
UNUSABLE_LISTS = (  # condition on a list, description, advice
    (pl.col("repeated_request"), "a request that was answered twice", "give every request its own id"),
    (IS_MALFORMED, "an empty list, or a list with a repeated item", READ_OTHER_LOG),
    (pl.col("log_probability") > ROUNDING, "a list with a probability above 1", READ_OTHER_LOG),
    (~IS_SAMPLED, "a list that was not sampled, so it has no probability", "serve with sample"),
    (  # exclude_seen does not restrict first lists, so all unrestricted lists come from sessions that ended early
        (HAS_HISTORY & pl.col("restricted")).any() & (~HAS_HISTORY | pl.col("restricted")).all(),
        f"all lists after a pick are restricted by {RESTRICTIONS}",
        SERVE_FREELY,
    ),
    (pl.col("restricted"), f"a list restricted by {RESTRICTIONS}", SERVE_FREELY),
)


@dataclass
class Exclusions:
    """Notes about excluded records, and the most useful advice."""

    say: Say
    notes: list[str] = field(default_factory=list)
    advice: Counter[str] = field(default_factory=Counter)

    def add(self, count: int, noun: str, description: str, advice: str = "") -> None:
        """Add a note such as "3 sessions left out: …", unless `count` is 0."""
        if count:
            self.notes.append(f"{count:,} {noun}{'' if count == 1 else 's'} {description}.")
            self.say(self.notes[-1])
            self.advice[advice] += count if advice else 0


def read_log(sources: Sequence[Source], columns: Columns, say: Say) -> Log:
    """Read the files of a decision log as a log with served lists.

    Raises:
        InputError: If no session is usable.
    """
    if columns != Columns(use_session=columns.use_session, reward=columns.reward):
        raise InputError("--format served has fixed fields; remove --session, --item, … or use --format decisions.")
    if columns.reward not in (None, REWARD):
        raise InputError(
            f"--reward must be {REWARD} with --format served, the field of its events; got {columns.reward!r}."
        )
    exclusions = Exclusions(say)
    records, rows = _read_records(sources, exclusions)
    lists, events = _join_events(records, exclusions)
    lists, events = _drop_unusable(lists, events, exclusions)
    lists, events = _drop_inconsistent(lists, _find_picks(events, exclusions), exclusions)
    if not len(lists):
        reasons = "; ".join(note.rstrip(".") for note in exclusions.notes) or "it contains no list"
        advice = next((advice for advice, count in exclusions.advice.most_common(1) if count), SEND_SESSIONS)
        raise InputError(f"The log has no session that estimates can use ({reasons}); {advice}.")
    rewards_are_read = columns.reward is not None
    if rewards_are_read:
        _check_rewards(events["reward"])
    return _build_log(lists, events, rows, tuple(exclusions.notes), rewards_are_read)


def _check_rewards(rewards: pl.Series) -> None:
    if rewards.is_null().all():
        raise InputError("--reward was given, but no event of the log has a reward; send it with POST /v1/events.")
    largest = float(rewards.abs().max())  # type: ignore[arg-type]
    if not largest <= MAX_REWARD:
        raise InputError(
            f"The log has a reward of {largest:g}; expected numbers from {-MAX_REWARD:g} to {MAX_REWARD:g}."
        )


def _read_records(sources: Sequence[Source], exclusions: Exclusions) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return all records ordered by time, numbered in the column `order`, and the number of records per file."""
    frames: list[pl.DataFrame] = []
    rows: dict[str, int] = {}
    incomplete = 0
    for source in sources:
        counts = RecordCounts()
        frames += decision_log_files.read(source, counts)
        rows[source.name], incomplete = counts.records, incomplete + counts.incomplete
        exclusions.say(f"{source.name}: {counts.records:,} records")
        for note in counts.notes(source.name):
            exclusions.notes.append(note)
            exclusions.say(note)
    records = pl.concat(frames)
    exclusions.add(incomplete, "line", "skipped: incomplete, at the end of a file")
    lost = int(records.filter(kind="lost")["count"].sum())
    exclusions.add(lost, "record", "lost by the server")
    return records.filter(pl.col("kind") != "lost").sort("time", maintain_order=True).with_row_index("order"), rows


def _join_events(records: pl.DataFrame, exclusions: Exclusions) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return lists, and events with their session and, in the column `list`, the `order` of their list."""
    written = records.filter(kind="list").drop("item", "behaviour", "reward", "kind", "policy", "split")
    lists = written.unique(pl.exclude("order"), keep="first", maintain_order=True)
    exclusions.add(written.height - lists.height, "list", "left out: written twice")
    lists = lists.with_columns(repeated_request=pl.col("request").is_duplicated())
    events = records.filter(kind="event").select("order", "time", "request", "session", "item", "behaviour", "reward")
    requests = lists.unique("request", keep="first").select(
        "request", list="order", list_session="session", offered="items"
    )
    events = events.join(requests, on="request", how="left", maintain_order="left").with_columns(
        session=pl.coalesce("session", "list_session")
    )
    unknown_request = pl.col("request").is_not_null() & pl.col("list").is_null()
    is_offered = (pl.col("session") == pl.col("list_session")) & pl.col("offered").list.contains(pl.col("item"))
    events = events.with_columns(unknown_request=unknown_request, list=pl.when(is_offered).then("list"))
    has_request = events.filter(pl.col("request").is_not_null())
    events = pl.concat([has_request, _join_by_item(events, lists)]).sort("order")
    exclusions.add(lists["session"].null_count(), "list", "left out: no session id")
    exclusions.add(events["session"].null_count(), "event", "left out: no session id")
    has_session = pl.col("session").is_not_null()
    return lists.filter(has_session), events.filter(has_session)


def _join_by_item(events: pl.DataFrame, lists: pl.DataFrame) -> pl.DataFrame:
    """Join the events without a request with the last list of their session that contained the item."""
    offers = lists.filter(pl.col("session").is_not_null()).select("order", "session", last="order", item="items")
    offers = offers.explode("item").sort("order")
    without_request = events.filter(pl.col("request").is_null())
    joined = without_request.join_asof(
        offers, on="order", by=["session", "item"], strategy="backward", check_sortedness=False
    )
    return joined.with_columns(list="last").drop("last")


def _drop_unusable(
    lists: pl.DataFrame, events: pl.DataFrame, exclusions: Exclusions
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Drop the sessions that contain a list without a known probability, or no list."""
    for condition, description, advice in UNUSABLE_LISTS:
        sessions = lists.filter(condition)["session"].unique()
        exclusions.add(len(sessions), "session", f"left out: {description}", advice)
        lists, events = _drop_sessions(sessions, lists), _drop_sessions(sessions, events)
    without_list = events.join(lists, on="session", how="anti")["session"].unique()
    exclusions.add(len(without_list), "session", "left out: events without a list", SEND_SESSIONS)
    return lists, _drop_sessions(without_list, events)


def _drop_sessions(sessions: pl.Series, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(~pl.col("session").is_in(sessions.implode()))


def _find_picks(events: pl.DataFrame, exclusions: Exclusions) -> pl.DataFrame:
    """Mark the events of each list's pick, which is the item of the list's first event.

    A pick can have several events, such as a click and then a buy. The one with the most valuable behaviour, marked by
    `is_final`, represents them.
    """
    listed = pl.col("list").is_not_null()
    is_first_copy = pl.struct("session", "request", "list", "item", "behaviour").is_first_distinct()
    is_pick = listed & (pl.col("item") == pl.col("item").first().over("list"))
    events = events.with_columns(
        list=pl.when(is_pick).then("list"),
        other_item=listed & ~is_pick,
        is_copy=~is_first_copy & (listed | pl.col("request").is_not_null()),
    )
    other_items, unknown_requests = int(events["other_item"].sum()), int(events["unknown_request"].sum())
    exclusions.add(other_items, "event", f"{WITHOUT_LIST}: another item was picked from its list first")
    exclusions.add(unknown_requests, "event", f"{WITHOUT_LIST}: its request is not in the log")
    not_offered = pl.col("list").is_null() & ~pl.col("other_item") & ~pl.col("unknown_request")
    exclusions.add(events.filter(not_offered).height, "event", f"{WITHOUT_LIST}: no list of its session had the item")
    values = {name: behaviour_order(name)[0] for name in events["behaviour"].unique()}
    value = pl.col("behaviour").replace_strict(values, return_dtype=pl.Int64)
    most_valuable = (
        pl.col("order", "behaviour", "reward").sort_by(value, ~pl.col("is_copy"), "order").last().over("list")
    )
    is_later = listed & (pl.col("order") > pl.col("order").min().over("list"))
    return events.with_columns(most_valuable.name.prefix("final_"), is_later=is_later).with_columns(
        is_final=listed & (pl.col("order") == pl.col("final_order"))
    )


def _drop_inconsistent(
    lists: pl.DataFrame, events: pl.DataFrame, exclusions: Exclusions
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Drop the sessions with a list whose history differs from the one that the events imply.

    A client may send an item that was clicked and then bought once, once per behaviour, or once per event. The
    histories show which of the three it does.
    """
    has_list = pl.col("list").is_not_null()
    final = {name: pl.when(has_list).then(f"final_{name}").otherwise(name) for name in ("behaviour", "reward")}
    final_list = pl.when("is_final").then("list")
    one_per_pick = events.filter(~pl.col("is_later"), ~pl.col("is_copy")).with_columns(**final, rewarded_list="list")
    one_per_behaviour = events.filter(~pl.col("is_copy")).with_columns(rewarded_list=final_list)
    one_per_event = events.with_columns(rewarded_list=final_list)
    sessions, consistent = lists["session"].unique(), []
    for variant in (one_per_pick, one_per_behaviour, one_per_event):
        remaining = pl.col("session").is_in(sessions.implode())
        sessions = _inconsistent_sessions(lists.filter(remaining), variant)
        consistent.append(_drop_sessions(sessions, variant.filter(remaining)))
    description = "left out: the history of a list differs from the one that the events imply"
    exclusions.add(
        len(sessions), "session", description, "send the items that the visitor has picked so far as history"
    )
    used = pl.concat(consistent)
    removed = _drop_sessions(sessions, events).join(used, on="order", how="anti")
    exclusions.add(int(removed["is_copy"].sum()), "event", "left out: sent twice")
    merged = int((~removed["is_copy"]).sum())
    exclusions.add(merged, "event", "merged with an earlier event of the same item and list")
    represented = used.filter(pl.col("list").is_not_null() & pl.col("rewarded_list").is_null()).height
    description = f"{WITHOUT_LIST}: another event of the same item and list represents it; the history contains both"
    exclusions.add(represented, "event", description)
    columns = ("order", "time", "session", "item", "behaviour", "reward")
    return _drop_sessions(sessions, lists), used.select(*columns, list="rewarded_list")


def _inconsistent_sessions(lists: pl.DataFrame, events: pl.DataFrame) -> pl.Series:
    """Return the sessions with a list whose history differs from the one that the events imply."""
    events = events.join(lists.select("session").unique(), on="session", how="semi", maintain_order="left")
    rows = pl.concat([lists.select("session", "order"), events.select("session", "order", "item")], how="diagonal")
    is_event = pl.col("item").is_not_null().cast(pl.Int64)
    rows = rows.sort("session", "order").with_columns(position=is_event.cum_sum().over("session") - is_event)
    event_rows = rows["item"].is_not_null().to_numpy()
    terms = np.zeros(rows.height, np.uint64)
    positions = rows["position"].to_numpy()[event_rows]
    terms[event_rows] = decision_log_files.hash_terms(rows["item"].drop_nulls(), positions)
    before = np.cumsum(terms, dtype=np.uint64) - terms
    begins = np.where(run_starts([rows["session"]]), np.arange(rows.height), 0)
    start = before[np.maximum.accumulate(begins)]
    hashes = rows.with_columns(hash=pl.Series(before - start)).select("order", "hash")
    joined = lists.join(hashes, on="order", how="left", maintain_order="left")
    return joined.filter(pl.col("history") != pl.col("hash"))["session"].unique()


def _build_log(
    lists: pl.DataFrame, events: pl.DataFrame, rows: dict[str, int], notes: tuple[str, ...], rewards_are_read: bool
) -> Log:
    """Return the log, ordered by session and within a session by time."""
    served = lists.select("session", "order", "time", "items", "log_probability")
    records = pl.concat([served, events], how="diagonal").sort("order")
    owner = factorize_by_appearance(records["session"])
    records = records[np.argsort(owner, kind="stable")]
    owners, runs = np.unique(owner, return_counts=True)
    owner_ids = ids_of_owners(np.sort(owner), {"session": records["session"]})
    is_event = records["item"].is_not_null().to_numpy()
    item_ids, picked, offered = _index_items(records["item"].drop_nulls(), records["items"].drop_nulls())
    items = np.full(records.height, -1, np.int32)
    items[is_event] = picked
    names = sorted(events["behaviour"].unique().to_list(), key=behaviour_order)
    if len(names) > MAX_BEHAVIOURS:
        raise InputError(f"The log contains {len(names):,} different behaviours, such as {names[0]!r}; expected a few.")
    behaviours = records["behaviour"].cast(pl.Enum(names)).to_physical().fill_null(0).cast(pl.UInt8).to_numpy()
    return Log(
        owners=owners,
        runs=runs,
        items=items,
        behaviours=behaviours,
        times=records["time"].to_numpy(),
        positions=None,
        item_ids=item_ids,
        behaviour_names=tuple(names),
        time_unit=UNIT,
        time_format=UNIT,
        has_sessions=True,
        rows=rows,
        lists=ServedLists(
            np.flatnonzero(~is_event), offered, _log_propensity(records), _picked_rows(records, is_event)
        ),
        notes=notes,
        owner_ids=owner_ids,
        rewards=records["reward"].fill_null(math.nan).cast(pl.Float32).to_numpy() if rewards_are_read else None,
    )


def _index_items(picked: pl.Series, lists: pl.Series) -> tuple[Longs | list[str], Ints, Ints]:
    """Return the item ids, the indices of the picked items, and the lists as indices, padded with −1."""
    all_items = pl.concat([picked, lists.explode().alias(picked.name)], rechunk=True)
    item_ids, indices = factorize_sorted(as_integers_if_exact(all_items))
    lengths = lists.list.len().cast(pl.Int64).to_numpy()
    return item_ids, indices[: len(picked)], pad_lists(indices[len(picked) :], lengths)


def _log_propensity(records: pl.DataFrame) -> Doubles:
    log_propensity: Doubles = np.minimum(records["log_probability"].drop_nulls().to_numpy(), 0.0)
    return log_propensity


def _picked_rows(records: pl.DataFrame, is_event: NDArray[np.bool_]) -> Longs:
    """[D] the row of the event that was picked from each list; −1 if nothing was picked."""
    order, row = records["order"].to_numpy(), np.arange(records.height)
    lists = records["list"].drop_nulls().to_numpy()
    row_of_list = np.full(int(max(order.max(), lists.max(initial=0))) + 1, -1, np.int64)
    row_of_list[lists] = row[records["list"].is_not_null().to_numpy()]
    picked: Longs = row_of_list[order[~is_event]]
    return picked


# `--protocol paper` applies no filters: estimates from filtered sessions would be valid for those sessions only.
RECORD = FormatRecord(
    name="served",
    help="The folder of a decision log that `offrec serve` wrote.",
    read_whole=read_log,
    has_lists=True,
    find=decision_log_files.find,
)
