"""Tables with propensities become decisions, and bad tables give one message."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_logs import Prepare, StoredDecision, error_message, items_of, parquet, sessions_of, stored_decisions

from offrec.data import statistics
from offrec.errors import InputError

ROWS: list[dict[str, Any]] = [  # session b has no pick; item 9 was offered but never picked
    {"session": "a", "time": 1, "offered": [5, 7], "propensity": 0.5, "item": 7, "behaviour": "view"},
    {"session": "a", "time": 2, "offered": [9, 5], "propensity": 0.25, "item": None, "behaviour": "none"},
    {"session": "a", "time": 3, "offered": [6], "propensity": 1.0, "item": 6, "behaviour": "buy"},
    {"session": "b", "time": 4, "offered": [7, 6], "propensity": 0.125, "item": None, "behaviour": None},
    {"session": "c", "time": 5, "offered": [6, 7], "propensity": 0.5, "item": 6, "behaviour": "view"},
    {"session": "c", "time": 6, "offered": [5, 6], "propensity": 0.5, "item": None, "behaviour": "none"},
]
EXPECTED: list[list[StoredDecision]] = [
    [(0, [5, 7], 0.5, (7, "view")), (1, [9, 5], 0.25, None), (1, [6], 1.0, (6, "buy"))],
    [(0, [7, 6], 0.125, None)],
    [(0, [6, 7], 0.5, (6, "view")), (1, [5, 6], 0.5, None)],
]


def as_json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_csv(rows: list[dict[str, Any]]) -> str:
    lines = ["session,time,offered,propensity,item,behaviour"]
    for row in rows:
        texts = {**row, "offered": " ".join(map(str, row["offered"]))}
        lines.append(",".join("" if value is None else str(value) for value in texts.values()))
    return "\n".join(lines) + "\n"


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    return parquet(pl.DataFrame(rows))


@pytest.mark.parametrize(("name", "write"), [("d.jsonl", as_json_lines), ("d.csv", as_csv), ("d.parquet", as_parquet)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_table_of_decisions_is_stored(prepare_log: Prepare, name: str, write: Any, shuffled: bool) -> None:
    rows = [ROWS[index] for index in (4, 1, 3, 5, 2, 0)] if shuffled else ROWS
    dataset = prepare_log((name, write(rows)), format="decisions", split="time")
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert [len(session) for session in stored_decisions(dataset)] == np.diff(dataset.decisions.offsets).tolist()  # type: ignore[union-attr]
    assert sorted(sessions_of(dataset)) == [[], [(6, "view")], [(7, "view"), (6, "buy")]]
    assert dataset.behaviours == ["view", "buy"]
    assert [dataset.vocabulary.id(index) for index in range(dataset.n_items)] == [5, 6, 7, 9]
    about = {"count": 6, "k": 2, "with_pick": 3, "sessions_without_events": 1, "notes": []}
    assert dataset.meta["decisions"] == about
    assert len(np.load(dataset.path / "times.npy")) == 3


@pytest.mark.parametrize(("column", "option"), [("offered", ""), ("slate", " --offered slate")])
@pytest.mark.parametrize(("name", "write"), [("d.csv", as_csv), ("d.parquet", as_parquet)])
def test_lists_that_are_read_as_events_get_the_format_as_advice(
    prepare_log: Prepare, name: str, write: Any, column: str, option: str
) -> None:
    rows = [{column if key == "offered" else key: value for key, value in row.items()} for row in ROWS]
    content = as_csv(ROWS).replace("offered", column) if name == "d.csv" else write(rows)
    advice = f"if each row is a list that was shown (column {column!r}), add --format decisions{option}."
    message = error_message(prepare_log, (name, content))
    assert message.endswith(f"a missing item id (the first of 3 such rows); {advice}")
    lines: list[str] = []
    prepare_log((name, content), progress=lines.append, format="decisions", **({"offered": column} if option else {}))
    assert not [line for line in lines if "is not used" in line]
    picks = [{**row, "session": str(at)} for at, row in enumerate(ROWS) if row["item"] is not None]
    prepare_log(("picks.csv", as_csv(picks).replace("offered", column)), progress=lines.append, out="picks")
    assert f"Warning: picks.csv: The column {column!r} is not used; {advice}" in lines


def test_a_decision_log_that_is_read_as_events_gets_the_format_as_advice(prepare_log: Prepare, tmp_path: Path) -> None:
    record = {"kind": "list", "request_id": "r", "session_id": "s", "items": [1], "log_probability": -1.0}
    content = json.dumps(record) + "\n"
    assert error_message(prepare_log, ("decisions-1.jsonl", content)).endswith("and add --format served.")
    (tmp_path / "log").mkdir()
    (tmp_path / "log/decisions-1.jsonl").write_text(content)
    with pytest.raises(InputError, match="contains a decision log of offrec serve; add --format served"):
        prepare_log(tmp_path / "log")


@pytest.mark.parametrize(("split", "command"), [("validation", "train"), ("test", "evaluate")])
def test_a_split_without_picks_is_a_warning(prepare_log: Prepare, split: str, command: str) -> None:
    without, lines = {"validation": 8, "test": 9}[split], list[str]()
    rows = [
        {"session": n, "time": n, "offered": [1, 2], "propensity": 0.5, "item": None if n == without else 1}
        for n in range(10)
    ]
    prepare_log(("d.jsonl", as_json_lines(rows)), format="decisions", split="time", progress=lines.append)
    missing = f"the {split} split contains no picks, which offrec {command} needs"
    warnings = [line for line in lines if line.startswith("Warning")]
    assert warnings == [f"Warning: {missing}; add data or choose another --split."]


def test_the_picks_of_the_decisions_are_the_events(prepare_log: Prepare) -> None:
    dataset = prepare_log(("d.jsonl", as_json_lines(ROWS)), format="decisions")
    for picks, decisions in zip(sessions_of(dataset), stored_decisions(dataset), strict=True):
        assert [pick for *_, pick in decisions if pick] == picks


def test_the_printed_table_shows_decisions(prepare_log: Prepare) -> None:
    table = dict(statistics.rows(prepare_log(("d.jsonl", as_json_lines(ROWS)), format="decisions").meta))
    assert table["decisions"] == "6 lists of up to 2 items, 50.0% with a pick"
    assert table["sessions without a pick"] == "1"
    assert table["session length (min / 50 % / 90 % / 99 % / max)"] == "0 / 1 / 2 / 2 / 2"


def test_columns_may_have_other_names_and_text_ids(prepare_log: Prepare) -> None:
    text = "visit,nr,shown,chance,took\na,1,x y,0.5,y\nb,1,y,0.25,\nc,1,z x,0.5,x\nc,0,x z,1,\n"
    names = {"session": "visit", "position": "nr", "offered": "shown", "propensity": "chance", "item": "took"}
    dataset = prepare_log(("log.csv", text), format="decisions", **names)
    c = [(0, ["x", "z"], 1.0, None), (0, ["z", "x"], 0.5, ("x", "view"))]
    assert sorted(stored_decisions(dataset)) == sorted(
        [[(0, ["x", "y"], 0.5, ("y", "view"))], [(0, ["y"], 0.25, None)], c]
    )


def test_a_single_item_is_a_list_of_one(prepare_log: Prepare) -> None:
    frame = pl.DataFrame({"session": [1, 2, 3], "offered": [4, 5, 4], "propensity": [0.5] * 3, "item": [None, None, 4]})
    dataset = prepare_log(("log.parquet", parquet(frame)), format="decisions")
    lists = [[(0, [4], 0.5, (4, "view"))], [(0, [4], 0.5, None)], [(0, [5], 0.5, None)]]
    assert sorted(stored_decisions(dataset), key=repr) == lists


@pytest.mark.parametrize("format", ["events", "decisions"])
@pytest.mark.parametrize("column", ["propensity", "chance"])
def test_a_propensity_makes_each_event_a_decision(prepare_log: Prepare, format: str, column: str) -> None:
    text = f"session,item,time,{column}\n1,8,2,0.5\n1,7,1,0.25\n2,7,1,1\n3,8,1,0.125\n"
    options = {} if column == "propensity" else {"propensity": column}
    dataset = prepare_log(("log.csv", text), format=format, **options)
    first = [(0, [7], 0.25, (7, "view")), (1, [8], 0.5, (8, "view"))]
    assert sorted(stored_decisions(dataset)) == sorted(
        [first, [(0, [7], 1.0, (7, "view"))], [(0, [8], 0.125, (8, "view"))]]
    )


def test_sessions_of_users_end_after_a_gap_between_lists(prepare_log: Prepare) -> None:
    rows = "".join(f"{user},{time},7,0.5,{item}\n" for user in "ab" for time, item in ((0, 7), (1700, ""), (9999, "")))
    dataset = prepare_log(("log.csv", "user,time,offered,propensity,item\n" + rows), format="decisions")
    assert sorted(map(len, stored_decisions(dataset))) == [1, 1, 2, 2]
    assert sorted(map(len, items_of(dataset))) == [0, 0, 1, 1]


def test_a_session_filter_removes_decisions_and_adds_a_note(prepare_log: Prepare) -> None:
    rows = [row | {"session": row["session"] + str(copy)} for copy in range(2) for row in ROWS]
    dataset = prepare_log(("d.jsonl", as_json_lines(rows)), format="decisions", filter=("session=1", "session.view=1"))
    assert sorted(stored_decisions(dataset)) == sorted([EXPECTED[0], EXPECTED[2]] * 2)
    note = "filter session=1 kept 4 of 6 sessions and 6 of 6 events: estimates are about these sessions only."
    assert dataset.meta["decisions"]["notes"] == [note]


def test_lists_without_a_pick_have_no_behaviour(prepare_log: Prepare) -> None:
    rows = [*ROWS, *[row | {"session": "d"} for row in ROWS[:3]]]
    dropped = prepare_log(("d.jsonl", as_json_lines(rows)), format="decisions", drop=("view",))
    first = [(0, [9, 5], 0.25, None), (0, [6], 1.0, (6, "buy"))]
    assert sorted(stored_decisions(dropped)) == sorted([first, first, EXPECTED[1], [(0, [5, 6], 0.5, None)]])
    filtered = prepare_log(("d.jsonl", as_json_lines(rows)), out="f", format="decisions", filter=("session.view=1",))
    assert sorted(stored_decisions(filtered)) == sorted([EXPECTED[0], EXPECTED[0], EXPECTED[2]])


def test_dropping_a_pick_drops_its_list(prepare_log: Prepare) -> None:
    dropped = prepare_log(("d.jsonl", as_json_lines(ROWS)), format="decisions", drop=("buy",))
    assert sorted(stored_decisions(dropped)) == sorted([EXPECTED[0][:2], EXPECTED[1], EXPECTED[2]])
    filtered = prepare_log(("d.jsonl", as_json_lines(ROWS)), out="f", format="decisions", filter=("item=2",))
    first = [(0, [9, 5], 0.25, None), (0, [6], 1.0, (6, "buy"))]
    assert sorted(stored_decisions(filtered)) == sorted(
        [first, EXPECTED[1], EXPECTED[2]]
    )  # item 7 was picked once, but remains in lists
    assert filtered.meta["decisions"]["notes"][0].startswith("filter item=2 kept 3 of 3 sessions and 2 of 3 events")


def test_the_paper_protocol_does_not_filter_decisions(prepare_log: Prepare) -> None:
    dataset = prepare_log(("d.jsonl", as_json_lines(ROWS)), format="decisions", protocol="paper")
    assert dataset.protocol.filters == ()
    assert len(stored_decisions(dataset)) == 3


def test_the_data_hash_depends_on_decisions(prepare_log: Prepare) -> None:
    base = prepare_log(("d.jsonl", as_json_lines(ROWS)), out="1", format="decisions")
    likelier = prepare_log(
        ("d.jsonl", as_json_lines([*ROWS[:-1], ROWS[-1] | {"propensity": 0.75}])), out="2", format="decisions"
    )
    assert base.meta["data_hash"] != likelier.meta["data_hash"]
    assert items_of(base) == items_of(likelier)


def with_first_row(**changes: Any) -> str:
    return as_json_lines([ROWS[0] | changes, *ROWS[1:]])


PROBABILITY = "expected the probability of the list under the policy that served it, above 0 and at most 1."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"propensity": 0}, f"the propensity '0' (the only such row); {PROBABILITY}"),
        ({"propensity": -0.5}, f"the propensity '-0.5' (the only such row); {PROBABILITY}"),
        ({"propensity": 1.5}, f"the propensity '1.5' (the only such row); {PROBABILITY}"),
        ({"propensity": "often"}, f"the propensity 'often' (the only such row); {PROBABILITY}"),
        ({"propensity": "nan"}, f"the propensity 'nan' (the only such row); {PROBABILITY}"),
        ({"propensity": None}, f"a missing propensity (the only such row); {PROBABILITY}"),
        (
            {"offered": [7, 5, 7]},
            "a list with a repeated item: '7 5 7' (the only such row); expected distinct items.",
        ),
        (
            {"item": 8},
            "a picked item that was not offered: '8' (the only such row); expected an item of the list, or none.",
        ),
        (
            {"offered": []},
            "a list that is empty or lacks an item (the only such row); expected every item that was offered.",
        ),
        (
            {"offered": [7, None]},
            "a list that is empty or lacks an item (the only such row); expected every item that was offered.",
        ),
        (
            {"offered": None},
            "a list that is empty or lacks an item (the only such row); expected every item that was offered.",
        ),
        ({"behaviour": None}, "a missing behaviour (the only such row); expected one of buy, view."),
    ],
)
def test_the_message_says_what_is_wrong(prepare_log: Prepare, changes: dict[str, Any], message: str) -> None:
    text = error_message(prepare_log, ("d.jsonl", with_first_row(**changes)), format="decisions")
    assert text == f"d.jsonl, line 1: {message}"


def test_missing_columns_are_named(prepare_log: Prepare) -> None:
    listed = "it has session, item; specify one with --propensity."
    text = ("log.csv", "session,item\n1,2\n")
    assert error_message(prepare_log, text, format="decisions") == f"log.csv has no column 'propensity'; {listed}"
    assert error_message(prepare_log, text, propensity="chance") == f"log.csv has no column 'chance'; {listed}"
    message = "--offered cannot be used with --format events; use --format decisions."
    assert error_message(prepare_log, text, offered="list") == message
    text = ("log.csv", "session,offered,propensity\n1,2,0.5\n")
    message = "log.csv has no column 'item'; it has session, offered, propensity; specify one with --item."
    assert error_message(prepare_log, text, format="decisions") == message


def test_lists_of_decimals_or_lists_are_refused(prepare_log: Prepare) -> None:
    frame = pl.DataFrame({"session": [1], "offered": [[1.5]], "propensity": [0.5], "item": [1]})
    message = "d.parquet, row 1: decimal numbers as item ids: '1.5' (the only such row); write ids as integers or text."
    assert error_message(prepare_log, ("d.parquet", parquet(frame)), format="decisions") == message
    frame = frame.with_columns(offered=pl.Series([[[1]]]))
    message = (
        "d.parquet has a column 'offered' of type List(List(Int64)); expected lists of numbers or text: convert the "
        "column or name another."
    )
    assert error_message(prepare_log, ("d.parquet", parquet(frame)), format="decisions") == message


def test_a_log_without_a_pick_is_refused(prepare_log: Prepare) -> None:
    rows = [row | {"item": None} for row in ROWS]
    advice = "training needs events: add data."
    message = f"Nothing was picked from any list; {advice}"
    assert error_message(prepare_log, ("d.jsonl", as_json_lines(rows)), format="decisions") == message
    rows = [row | {"item": None if row["session"] == "a" else row["item"]} for row in ROWS]
    message = f"Nothing was picked from the lists of the 1 training sessions; {advice}"
    text = error_message(
        prepare_log, ("d.jsonl", as_json_lines(rows)), format="decisions", split="time", split_parts=(1, 1, 1)
    )
    assert text == message


def test_the_example_of_the_how_to_page(prepare_log: Prepare) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "your-log.md").read_text(encoding="utf-8")
    start = page.index("session,time,offered,propensity")
    dataset = prepare_log(("lists.csv", page[start : page.index("```", start)]), format="decisions")
    b = [(0, ["shoe", "shirt"], 0.125, ("shoe", "view")), (1, ["hat", "shoe"], 0.25, None)]
    assert b in stored_decisions(dataset)
    assert dataset.meta["decisions"] == {"count": 7, "k": 2, "with_pick": 4, "sessions_without_events": 1, "notes": []}


def test_the_full_log_of_a_shop_is_a_table_of_decisions(tmp_path: Path, prepare_log: Prepare) -> None:
    from offrec.shop.log import write_log
    from offrec.shop.store import Shop

    write_log(Shop.open("tiny"), 40, tmp_path / "log")
    full = pl.read_parquet(tmp_path / "log" / "full.parquet")
    dataset = prepare_log(tmp_path / "log" / "full.parquet", format="decisions")
    decisions = dataset.decisions
    assert decisions is not None
    assert dataset.meta["shop"]["world"] == "tiny"
    assert len(decisions) == full.height
    assert len(dataset.sessions) == full["session"].n_unique()
    assert np.sort(decisions.log_propensity) == pytest.approx(np.sort(full["propensity"].log().to_numpy()))
    sessions = [[] for _ in range(full["session"].n_unique())]  # type: ignore[var-annotated]
    for row in full.to_dicts():
        pick = None if row["item"] is None else (row["item"], row["behaviour"])
        position = sum(decision[-1] is not None for decision in sessions[row["session"]])
        sessions[row["session"]].append((position, row["offered"], round(row["propensity"], 9), pick))
    assert sorted(map(repr, stored_decisions(dataset))) == sorted(map(repr, sessions))
