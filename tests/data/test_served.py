"""A server's decision log: segments, torn lines, what is joined, and what is left out and why."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from small_logs import Prepare, error_message, sessions_of, stored_decisions

from offrec.data.prepare import prepare
from offrec.errors import InputError

Record = dict[str, Any]


def listed(request: str, time: int, session: str | None, history: list[Any], items: list[Any], **more: Any) -> Record:
    record = {
        "kind": "list",
        "request_id": request,
        "time": time,
        "session_id": session,
        "policy": "sr",
        "fingerprint": "f",
    }
    record |= {
        "history": history,
        "items": items,
        "position_probabilities": [0.5] * len(items),
        "log_probability": math.log(0.5),
    }
    return record | {"sampled": True, "temperature": 1.0, "restricted": False} | more


def event(time: int, item: Any, request: str | None = None, session: str | None = None, **more: Any) -> Record:
    return {
        "kind": "event",
        "request_id": request,
        "time": time,
        "session_id": session,
        "item": item,
        "behaviour": "click",
    } | more


def lost(count: int) -> Record:
    return {"kind": "lost", "count": count, "time": 1}


GOOD = [
    listed("1", 10, "a", [], [5, 7], log_probability=math.log(0.125)),
    event(11, 7, "1"),
    listed("2", 12, "a", [7], [9, 5]),
    listed("3", 13, "b", [], [5, 6]),  # nothing comes of it
    listed("4", 14, "a", [7], [6]),
    event(15, 6, None, "a", behaviour="buy"),
    listed("5", 16, "c", [], [8, 5]),
    event(17, 5, "5", "c"),
]
PICKS = [event(21, 5, "9"), event(22, 4, "9")]
NOT_DRAWN = "a list that was not drawn at random, so no probability"
RESTRICTED = "a list restricted by exclude, exclude_seen or candidates"
OTHER_HISTORY = "a list that was served to another history than the events make"
TWICE = "a request that was answered twice"
ODD = "an empty list, or an item twice in one"
EXPECTED = [
    [(0, [5, 7], 0.125, (7, "click")), (1, [9, 5], 0.5, None), (1, [6], 0.5, (6, "buy"))],
    [(0, [5, 6], 0.5, None)],
    [(0, [8, 5], 0.5, (5, "click"))],
]


def lines(records: list[Record]) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "served"
    path.mkdir()
    return path


def write(folder: Path, records: list[Record], name: str = "decisions-1000-7-0.jsonl") -> None:
    (folder / name).write_bytes(lines(records))


def served(folder: Path, **choices: Any) -> Any:
    return prepare(folder, out=folder.parent / "dataset", format="served", force=True, **choices)


def notes(folder: Path, *more: Record) -> list[str]:
    """What is said of a log that holds more than it should; sessions a, b and c come out whole."""
    write(folder, [*GOOD, *more])
    dataset = served(folder)
    assert sorted(one for one in stored_decisions(dataset) if one in EXPECTED) == sorted(EXPECTED)
    found: list[str] = dataset.meta["decisions"]["notes"]
    return found


def test_lists_and_events_become_decisions(folder: Path) -> None:
    write(folder, GOOD)
    said: list[str] = []
    dataset = served(folder, progress=said.append)
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert sorted(sessions_of(dataset)) == [[], [(5, "click")], [(7, "click"), (6, "buy")]]
    assert dataset.meta["decisions"] == {"count": 5, "k": 2, "with_pick": 3, "sessions_without_events": 1, "notes": []}
    assert dataset.meta["time_format"] == "milliseconds"
    assert "decisions-1000-7-0.jsonl: 8 records" in said


def test_segments_of_several_processes_are_read_by_time(folder: Path) -> None:
    write(folder, GOOD[::2], "decisions-1000-7-0.jsonl.open")
    (folder / "decisions-0900-8-0.jsonl.gz").write_bytes(gzip.compress(lines(GOOD[1::2])))
    (folder / "decisions-2000-7-1.jsonl.open").write_bytes(b"")
    (folder / "README").write_text("not a segment")
    dataset = served(folder)
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert dataset.meta["source_rows"] == {"decisions-0900-8-0.jsonl.gz": 4, "decisions-1000-7-0.jsonl.open": 4}


def test_ids_may_be_text(folder: Path) -> None:
    rows = [listed(str(n), n, f"ü{n}", [], ["x y", 'say "hi"']) for n in range(3)]
    write(folder, [*rows, event(9, 'say "hi"', "2")])
    assert sorted(stored_decisions(served(folder)), key=repr)[0] == [
        (0, ["x y", 'say "hi"'], 0.5, ('say "hi"', "click"))
    ]


@pytest.mark.parametrize("torn", [b'{"kind":"list","requ', b'{"kind":"event","item":"\xc3', b"{", b'{"kind":"lost"'])
def test_a_torn_last_line_is_skipped_and_counted(folder: Path, torn: bytes) -> None:
    (folder / "decisions-1-7-0.jsonl").write_bytes(lines(GOOD[:4]) + torn)
    (folder / "decisions-2-8-0.jsonl.open").write_bytes(lines(GOOD[4:]) + torn)
    dataset = served(folder)
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert dataset.meta["decisions"]["notes"] == ["2 lines skipped: torn, at the end of a segment."]


def test_a_last_line_that_lacks_only_its_end_counts(folder: Path) -> None:
    (folder / "decisions-1-7-0.jsonl").write_bytes(lines(GOOD).rstrip(b"\n"))
    dataset = served(folder)
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert dataset.meta["decisions"]["notes"] == []


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[1]",
        b'{"kind":"list","requ',
        b'{"kind":"click","item":1}',
        b'{"kind":"event","time":1}',
        b'{"kind":"event","time":"noon","item":1,"behaviour":"click"}',
        b'{"kind":"list","request_id":"1","time":1,"items":5,"history":[],"sampled":true,"restricted":false}',
        b'{"kind":"list","request_id":"1","time":1,"items":[5],"sampled":true,"restricted":false}',
    ],
)
def test_anything_else_unreadable_is_one_sentence(folder: Path, line: bytes) -> None:
    (folder / "decisions-1-7-0.jsonl").write_bytes(lines(GOOD[:2]) + b"\n" + line + b"\n" + lines(GOOD[2:]))
    with pytest.raises(InputError) as caught:
        served(folder)
    start = f"decisions-1-7-0.jsonl, line 4: {line[:60].decode()!r} is no whole list, event or lost record; "
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ([lost(3), lost(2)], "5 records lost by the server, of any kind."),
        ([listed("9", 1, None, [], [5])], "1 list left out: no session id."),
        ([GOOD[0], GOOD[3]], "2 lists left out: written twice."),
        ([event(9, 5), event(9, 5)], "2 events left out: no session id."),
        (
            [listed("9", 20, "d", [], [5]), listed("10", 21, "d", [4], [5])],
            f"1 session left out: {OTHER_HISTORY}.",
        ),
        (
            [listed("9", 20, "d", [4], [5]), event(21, 5, "9")],
            f"1 session left out: {OTHER_HISTORY}.",
        ),
        (
            [listed("9", 20, "d", [], [5, 4]), *PICKS, listed("10", 23, "d", [4, 5], [6])],
            f"1 session left out: {OTHER_HISTORY}.",
        ),
        ([event(20, 5, None, "d")], "1 session left out: events and no list."),
    ],
)
def test_what_is_left_out_is_counted_in_words(folder: Path, more: list[Record], note: str) -> None:
    assert note in notes(folder, *more)


def of_d(folder: Path, *more: Record) -> tuple[list[Any], list[str]]:
    """What session d, which is served 5 and 4 at time 20, comes to with more records, and what is said of it."""
    said = notes(folder, listed("9", 20, "d", [], [5, 4]), *more)
    (found,) = [one for one in stored_decisions(served(folder)) if one[0][1] == [5, 4]]
    return found, said


MERGED = "merged with an earlier one of the same item and list"
IN_FULL = "kept without a list: another of the same item and list stands for it, the history holds both"


@pytest.mark.parametrize(("history", "note"), [([5], MERGED), ([5, 5], IN_FULL)])
def test_a_list_earns_the_furthest_of_what_became_of_its_pick(folder: Path, history: list[int], note: str) -> None:
    """Whether the shop's histories hold an item once, or once for each event."""
    bought, after = event(22, 5, "9", behaviour="buy"), listed("10", 24, "d", history, [6])
    found, said = of_d(folder, event(21, 5, "9"), bought, after)
    assert found == [(0, [5, 4], 0.5, (5, "buy")), (len(history), [6], 0.5, None)]
    assert said == [f"1 event {note}."]
    assert [(5, "click"), (5, "buy")][-len(history) :] in sessions_of(served(folder))


def test_what_is_furthest_is_not_what_came_last(folder: Path) -> None:
    words = ("view", "buy", "cart", "click")
    picks = [event(21 + at, 5, "9", behaviour=word) for at, word in enumerate(words)]
    found, said = of_d(folder, *picks, listed("10", 30, "d", [5], [6]))
    assert found == [(0, [5, 4], 0.5, (5, "buy")), (1, [6], 0.5, None)]
    assert said == [f"3 events {MERGED}."]
    assert [(5, "buy")] in sessions_of(served(folder))
    own = [event(21, 5, "9", behaviour="rented"), event(22, 5, "9", behaviour="kept"), event(23, 5, "9")]
    assert of_d(folder, *own)[0] == [(0, [5, 4], 0.5, (5, "kept"))]


def test_a_purchase_after_the_next_list_was_served(folder: Path) -> None:
    after = [listed("10", 22, "d", [5], [6]), event(23, 6, "10"), event(24, 5, "9", behaviour="buy")]
    for history in ([5, 6], [5, 6, 5]):
        found, _ = of_d(folder, event(21, 5, "9"), *after, listed("11", 25, "d", history, [8]))
        buy, click, nothing = (5, "buy"), (6, "click"), None
        assert [(one[0], one[3]) for one in found] == [(0, buy), (1, click), (len(history), nothing)]


SENT = "left out: sent twice"


@pytest.mark.parametrize(
    ("history", "said"),
    [([5], [f"2 events {SENT}."]), ([5, 5, 5], [f"2 events {IN_FULL}."])],
)
def test_an_event_that_is_sent_twice(folder: Path, history: list[int], said: list[str]) -> None:
    """A retry, unless histories say that the visitor came back to it."""
    twice = [event(21, 5, "9"), event(22, 5, "9", "d"), event(23, 5, "9")]
    found = of_d(folder, *twice, listed("10", 24, "d", history, [6]))
    assert found == ([(0, [5, 4], 0.5, (5, "click")), (len(history), [6], 0.5, None)], said)


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ([5], [f"1 event {SENT}.", f"1 event {MERGED}."]),
        ([5, 5], [f"1 event {SENT}.", f"1 event {IN_FULL}."]),
        ([5, 5, 5], [f"2 events {IN_FULL}."]),
    ],
)
def test_a_purchase_that_is_sent_twice(folder: Path, history: list[int], said: list[str]) -> None:
    buys = [event(22, 5, "9", behaviour="buy"), event(23, 5, "9", behaviour="buy")]
    found = of_d(folder, event(21, 5, "9"), *buys, listed("10", 24, "d", history, [6]))
    assert found == ([(0, [5, 4], 0.5, (5, "buy")), (len(history), [6], 0.5, None)], said)
    assert sum(one == (5, "buy") for session in sessions_of(served(folder)) for one in session) == max(
        1, len(history) - 1
    )


def test_another_item_of_the_list_stays_in_the_session(folder: Path) -> None:
    others = [event(21, 5, "9"), event(22, 4, "9"), event(23, 5, "9", behaviour="buy")]
    found, said = of_d(folder, *others, listed("10", 24, "d", [5, 4], [6]))
    assert found == [(0, [5, 4], 0.5, (5, "buy")), (2, [6], 0.5, None)]
    other = "1 event kept without a list: not of the item that was first picked from its list."
    assert said == [other, f"1 event {MERGED}."]


def test_events_without_any_list_belong_to_the_history(folder: Path) -> None:
    """What a visitor finds by search: sent once for each event, as nothing says that two of them are one."""
    for history, fits in (([8, 8], True), ([8], False), ([], False)):
        lists = [listed("9", 20, "d", [], [5, 4]), listed("10", 24, "d", history, [6])]
        said = notes(folder, *lists, event(21, 8, None, "d"), event(22, 8, None, "d", behaviour="buy"))
        assert said[0] == "2 events kept without a list: no list of its session offered the item."
        assert said[1:] == ([] if fits else [f"1 session left out: {OTHER_HISTORY}."])
        assert ([(0, [5, 4], 0.5, None), (2, [6], 0.5, None)] in stored_decisions(served(folder))) == fits


def test_an_item_that_was_not_offered_stays_in_the_session(folder: Path) -> None:
    for pick in (event(21, 8, "9"), event(21, 8, None, "d")):
        found, said = of_d(folder, pick, listed("10", 23, "d", [8], [6]))
        assert found == [(0, [5, 4], 0.5, None), (1, [6], 0.5, None)]
        assert said == ["1 event kept without a list: no list of its session offered the item."]


def test_a_request_that_is_not_there_leaves_the_event_to_its_session(folder: Path) -> None:
    found, said = of_d(folder, event(21, 5, "99", "d"), listed("10", 23, "d", [5], [6]))
    assert found == [(0, [5, 4], 0.5, None), (1, [6], 0.5, None)]
    assert said == ["1 event kept without a list: its request is not in the log."]


def test_a_list_of_another_session_earns_nothing(folder: Path) -> None:
    found, said = of_d(folder, listed("10", 20, "e", [], [5]), event(21, 5, "9", "e"))
    assert found == [(0, [5, 4], 0.5, None)]
    assert said == ["1 event kept without a list: no list of its session offered the item."]


def test_what_is_dropped_takes_its_list_along(folder: Path) -> None:
    write(folder, GOOD)
    dataset = served(folder, drop=("buy",))
    assert sorted(stored_decisions(dataset)) == sorted([EXPECTED[0][:2], *EXPECTED[1:]])
    note = "drop buy left 3 of 3 sessions and 2 of 3 events: estimates speak of what is left."
    assert dataset.meta["decisions"]["notes"] == [note]


def test_without_a_request_the_last_list_that_held_the_item_counts(folder: Path) -> None:
    lists = [listed("10", 21, "d", [], [4]), listed("11", 22, "d", [], [6]), listed("12", 99, "d", [4], [4])]
    found, _ = of_d(folder, *lists, event(30, 4, None, "d"))
    assert found == [(0, [5, 4], 0.5, None), (0, [4], 0.5, (4, "click")), (0, [6], 0.5, None), (1, [4], 0.5, None)]


def test_a_pick_that_came_after_the_next_list_was_served(folder: Path) -> None:
    found, said = of_d(folder, listed("10", 21, "d", [], [6]), event(22, 5, "9"), event(23, 6, "10"))
    assert found == [(0, [5, 4], 0.5, (5, "click")), (0, [6], 0.5, (6, "click"))]
    assert said == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sampled": False}, NOT_DRAWN),
        ({"log_probability": None}, NOT_DRAWN),
        ({"restricted": True}, RESTRICTED),
        ({"items": [6, 6], "restricted": True}, ODD),
        ({"items": []}, ODD),
        ({"items": [None]}, ODD),
        ({"log_probability": 0.5}, "a list likelier than 1"),
        ({"request_id": "9"}, TWICE),
        ({"request_id": "9", "items": [5, 4], "history": [], "time": 29}, TWICE),
    ],
)
def test_a_list_that_cannot_be_used_takes_its_session_along(folder: Path, change: Record, reason: str) -> None:
    """With what was picked from it, or after it, gone or moved, weights and rewards would be those of no visit."""
    lists = [listed("9", 20, "d", [], [5, 4]), listed("10", 22, "d", [5], [6]) | change]
    assert notes(folder, *lists, event(21, 5, "9"), event(23, 6, "10", "d")) == [f"1 session left out: {reason}."]
    assert len(served(folder).sessions) == len(EXPECTED)


def test_an_id_that_two_sessions_share(folder: Path) -> None:
    said = notes(folder, listed("9", 20, "d", [], [5]), listed("9", 21, "e", [], [4]), event(22, 4, "9"))
    assert said == [f"2 sessions left out: {TWICE}."]
    assert len(served(folder).sessions) == len(EXPECTED)


def test_visits_with_exclude_seen_are_no_log_for_estimates(folder: Path) -> None:
    """Their first lists are free as nothing has been seen, and those alone would say that visits earn a click."""
    rows = [listed(f"short {n}", n, f"short {n}", [], [5, 9]) for n in range(2)]
    for visit in "abc":
        for step in range(4):
            request, behaviour = f"{visit}{step}", "buy" if step else "click"
            rows += [listed(request, step, visit, list(range(step)), [step, 9], restricted=step > 0)]
            rows += [event(step, step, request, behaviour=behaviour)]
    write(folder, rows)
    with pytest.raises(InputError) as caught:
        served(folder)
    assert str(caught.value) == (
        "The log has no session that estimates can use (5 sessions left out: all lists after a pick are restricted by "
        "exclude, exclude_seen or candidates): serve without exclude, exclude_seen and candidates for one that has."
    )
    assert notes(
        folder, *[row | {"session_id": f"of {row['session_id']}"} for row in rows if row["kind"] == "list"]
    ) == [f"3 sessions left out: {RESTRICTED}."]


def test_a_probability_of_one_may_be_rounded_up(folder: Path) -> None:
    write(folder, [*GOOD, listed("9", 20, "d", [], [5], log_probability=1e-7)])
    decisions = served(folder).decisions
    assert decisions.log_propensity.max() == 0.0


def test_folders_that_are_no_log(folder: Path, prepare_log: Prepare) -> None:
    with pytest.raises(
        InputError, match=r"served holds no decisions-….jsonl; name the folder that offrec serve writes its log to\."
    ):
        served(folder)
    (folder / "decisions-1-7-0.jsonl.open").write_bytes(b"")
    with pytest.raises(InputError, match=r"Every segment in .*served is empty; nothing has been served"):
        served(folder)
    write(folder, [listed("1", 1, "a", [], [5], sampled=False, log_probability=None), event(2, 5, "1")])
    with pytest.raises(InputError) as caught:
        served(folder)
    assert str(caught.value) == (
        f"The log has no session that estimates can use (1 session left out: {NOT_DRAWN}): serve with sample for one "
        "that has."
    )
    write(folder, [listed(str(n), 1, str(n), [], [5]) for n in range(3)])
    with pytest.raises(InputError, match="Nothing was picked from any of the lists"):
        served(folder)
    write(folder, [event(1, 5, None, "a")])
    with pytest.raises(InputError, match=r"events and no list\): give every request its session for one"):
        served(folder)
    sentence = "The fields of a served log are known; drop --session, --item, … or use --format decisions."
    assert error_message(prepare_log, ("decisions-1-7-0.jsonl", lines(GOOD)), format="served", item="id") == sentence
