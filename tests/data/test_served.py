"""A server's decision log: several files, incomplete lines, joins, and the notes about what is left out."""

import gzip
import math
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from small_logs import Prepare, error_message, sessions_of, stored_decisions

from offrec.data import decision_log_files
from offrec.data.line_checksums import is_sealed, seal_end, seal_record
from offrec.data.prepare import prepare
from offrec.data.rewards import event_rewards
from offrec.errors import InputError

Record = dict[str, Any]


def served_list(
    request: str, time: int, session: str | None, history: list[Any], items: list[Any], **more: Any
) -> Record:
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
    served_list("1", 10, "a", [], [5, 7], log_probability=math.log(0.125)),
    event(11, 7, "1"),
    served_list("2", 12, "a", [7], [9, 5]),
    served_list("3", 13, "b", [], [5, 6]),  # no event follows
    served_list("4", 14, "a", [7], [6]),
    event(15, 6, None, "a", behaviour="buy"),
    served_list("5", 16, "c", [], [8, 5]),
    event(17, 5, "5", "c"),
]
PICKS = [event(21, 5, "9"), event(22, 4, "9")]
NOT_SAMPLED = "a list that was not sampled, so it has no probability"
RESTRICTED = "a list restricted by exclude, exclude_seen, skip_recent, candidates, allow or deny"
OTHER_HISTORY = "the history of a list differs from the one that the events imply"
REPEATED_REQUEST = "a request that was answered twice"
MALFORMED = "an empty list, or a list with a repeated item"
EXPECTED = [
    [(0, [5, 7], 0.125, (7, "click")), (1, [9, 5], 0.5, None), (1, [6], 0.5, (6, "buy"))],
    [(0, [5, 6], 0.5, None)],
    [(0, [8, 5], 0.5, (5, "click"))],
]


def lines(records: list[Record]) -> bytes:
    return b"".join(map(seal_record, records))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "served"
    path.mkdir()
    return path


def write(folder: Path, records: list[Record], name: str = "decisions-1000-7-0.jsonl") -> None:
    (folder / name).write_bytes(lines(records) + (b"" if name.endswith(".open") else seal_end(len(records))))


def prepare_served(folder: Path, **options: Any) -> Any:
    return prepare(folder, out=folder.parent / "dataset", format="served", force=True, **options)


def notes(folder: Path, *more: Record) -> list[str]:
    """Prepare GOOD with more records; check that sessions a, b and c are unchanged and return the notes."""
    write(folder, [*GOOD, *more])
    dataset = prepare_served(folder)
    assert sorted(session for session in stored_decisions(dataset) if session in EXPECTED) == sorted(EXPECTED)
    messages: list[str] = dataset.meta["decisions"]["notes"]
    return messages


def test_lists_and_events_become_decisions(folder: Path) -> None:
    write(folder, GOOD)
    lines: list[str] = []
    dataset = prepare_served(folder, progress=lines.append)
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert sorted(sessions_of(dataset)) == [[], [(5, "click")], [(7, "click"), (6, "buy")]]
    assert dataset.meta["decisions"] == {"count": 5, "k": 2, "with_pick": 3, "sessions_without_events": 1, "notes": []}
    assert dataset.meta["time_format"] == "milliseconds"
    assert "decisions-1000-7-0.jsonl: 8 records" in lines


def test_the_files_of_several_processes_are_merged_by_time(folder: Path) -> None:
    write(folder, GOOD[::2], "decisions-1000-7-0.jsonl.open")
    (folder / "decisions-0900-8-0.jsonl.gz").write_bytes(gzip.compress(lines(GOOD[1::2])))
    (folder / "decisions-2000-7-1.jsonl.open").write_bytes(b"")
    (folder / "README").write_text("not a log file")
    dataset = prepare_served(folder)
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert dataset.meta["source_rows"] == {"decisions-0900-8-0.jsonl.gz": 4, "decisions-1000-7-0.jsonl.open": 4}


def test_ids_can_be_text(folder: Path) -> None:
    rows = [served_list(str(n), n, f"ü{n}", [], ["x y", 'say "hi"']) for n in range(3)]
    write(folder, [*rows, event(9, 'say "hi"', "2")])
    assert sorted(stored_decisions(prepare_served(folder)), key=repr)[0] == [
        (0, ["x y", 'say "hi"'], 0.5, ('say "hi"', "click"))
    ]


@pytest.mark.parametrize(
    "incomplete", [b'{"kind":"list","requ', b'{"kind":"event","item":"\xc3', b"{", b'{"kind":"lost"']
)
def test_an_incomplete_last_line_is_skipped_and_counted(folder: Path, incomplete: bytes) -> None:
    (folder / "decisions-1-7-0.jsonl").write_bytes(lines(GOOD[:4]) + incomplete)
    (folder / "decisions-2-8-0.jsonl.open").write_bytes(lines(GOOD[4:]) + incomplete)
    dataset = prepare_served(folder)
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert dataset.meta["decisions"]["notes"] == [
        "decisions-1-7-0.jsonl: not closed: the server crashed or the file was cut.",
        "decisions-2-8-0.jsonl.open: still open; later records are not included.",
        "2 lines skipped: incomplete, at the end of a file.",
    ]


def test_a_last_line_without_a_newline_is_read(folder: Path) -> None:
    (folder / "decisions-1-7-0.jsonl").write_bytes((lines(GOOD) + seal_end(len(GOOD))).rstrip(b"\n"))
    dataset = prepare_served(folder)
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert dataset.meta["decisions"]["notes"] == []


NOT_CLOSED = "decisions-1-7-0.jsonl: not closed: the server crashed or the file was cut."


def file_notes(folder: Path, content: bytes) -> list[str]:
    """The notes about one file, next to a complete one."""
    (folder / "decisions-1-7-0.jsonl").write_bytes(content)
    write(folder, GOOD, "decisions-2-7-1.jsonl")
    result = []
    for source in decision_log_files.find([folder]):
        counts = decision_log_files.RecordCounts()
        list(decision_log_files.read(source, counts))
        result += counts.notes(source.name)
    return result


def test_a_file_cut_between_two_lines_gets_a_note(folder: Path) -> None:
    """However many lines are missing, down to an empty file."""
    whole = (lines(GOOD) + seal_end(len(GOOD))).splitlines(keepends=True)
    for kept in range(len(whole)):
        assert file_notes(folder, b"".join(whole[:kept])) == [NOT_CLOSED]
    assert file_notes(folder, b"".join(whole)) == []
    file_notes(folder, b"".join(whole[:-1]))
    assert prepare_served(folder).meta["decisions"]["notes"][0] == NOT_CLOSED


def test_a_missing_or_repeated_line_gets_a_note(folder: Path) -> None:
    whole = (lines(GOOD) + seal_end(len(GOOD))).splitlines(keepends=True)
    for number in range(len(GOOD)):
        for changed in (whole[:number] + whole[number + 1 :], whole[: number + 1] + whole[number:]):
            notes = file_notes(folder, b"".join(changed))
            assert notes == ["decisions-1-7-0.jsonl: 1 records are missing or repeated."]


def test_files_can_be_concatenated(folder: Path) -> None:
    parts = [lines(GOOD[:3]) + seal_end(3), lines(GOOD[3:]) + seal_end(len(GOOD) - 3)]
    (folder / "all.jsonl").write_bytes(b"".join(parts))
    dataset = prepare_served(folder)
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert dataset.meta["decisions"]["notes"] == []
    (folder / "all.jsonl").write_bytes(b"".join([*parts, lines(GOOD[:3])]))
    assert "all.jsonl: not closed" in prepare_served(folder).meta["decisions"]["notes"][0]


def test_temporary_files_of_killed_commands_are_not_read(folder: Path) -> None:
    write(folder, GOOD)
    write(folder, GOOD, ".decisions-1000-7-0.jsonl.abc-1-00.partial.jsonl")
    assert list(prepare_served(folder).meta["source_rows"]) == ["decisions-1000-7-0.jsonl"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"nonsense", "does not end with the right checksum"),
        (b"[1]", "does not end with the right checksum"),
        (seal_record(event(2, 5)).replace(b"5", b"6", 1), "does not end with the right checksum"),
        (seal_record(event(2, 5))[:-21] + b"}", "does not end with the right checksum"),
        (seal_record({"kind": "click", "item": 1}), "is not a complete record"),
        (seal_record({"kind": "event", "time": 1}), "is not a complete record"),
        (seal_record(event(1, 5) | {"time": "noon"}), "is not a complete record"),
        (seal_record(served_list("1", 1, "a", [], [5]) | {"items": 5}), "is not a complete record"),
        (seal_record(served_list("1", 1, "a", [], [5]) | {"history": None}), "is not a complete record"),
    ],
)
def test_other_unreadable_lines_give_one_sentence(folder: Path, line: bytes, problem: str) -> None:
    line = line.rstrip()
    (folder / "decisions-1-7-0.jsonl").write_bytes(lines(GOOD[:2]) + b"\n" + line + b"\n" + lines(GOOD[2:]))
    with pytest.raises(InputError) as caught:
        prepare_served(folder)
    assert str(caught.value).startswith(f"decisions-1-7-0.jsonl, line 4: {line[:60].decode()!r} {problem}; ")


def test_every_changed_byte_of_a_line_is_detected() -> None:
    line = seal_record(event(2, "é"))[:-1]
    assert is_sealed(line)
    for position in range(len(line)):
        for bit in range(8):
            changed = bytearray(line)
            changed[position] ^= 1 << bit
            assert not is_sealed(bytes(changed))
    assert not any(is_sealed(line[:length]) for length in range(len(line)))


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ([lost(3), lost(2)], "5 records lost by the server."),
        ([served_list("9", 1, None, [], [5])], "1 list left out: no session id."),
        ([GOOD[0], GOOD[3]], "2 lists left out: written twice."),
        ([event(9, 5), event(9, 5)], "2 events left out: no session id."),
        (
            [served_list("9", 20, "d", [], [5]), served_list("10", 21, "d", [4], [5])],
            f"1 session left out: {OTHER_HISTORY}.",
        ),
        (
            [served_list("9", 20, "d", [4], [5]), event(21, 5, "9")],
            f"1 session left out: {OTHER_HISTORY}.",
        ),
        (
            [served_list("9", 20, "d", [], [5, 4]), *PICKS, served_list("10", 23, "d", [4, 5], [6])],
            f"1 session left out: {OTHER_HISTORY}.",
        ),
        ([event(20, 5, None, "d")], "1 session left out: events without a list."),
    ],
)
def test_notes_count_what_is_left_out(folder: Path, more: list[Record], note: str) -> None:
    assert note in notes(folder, *more)


def decisions_of_session_d(folder: Path, *more: Record) -> tuple[list[Any], list[str]]:
    """Add session d, which is served items 5 and 4 at time 20; return its decisions and the notes."""
    messages = notes(folder, served_list("9", 20, "d", [], [5, 4]), *more)
    (decisions,) = [session for session in stored_decisions(prepare_served(folder)) if session[0][1] == [5, 4]]
    return decisions, messages


MERGED = "merged with an earlier event of the same item and list"
IN_FULL = "kept without a list: another event of the same item and list represents it; the history contains both"


@pytest.mark.parametrize(("history", "note"), [([5], MERGED), ([5, 5], IN_FULL)])
def test_the_most_valuable_event_of_a_pick_is_rewarded(folder: Path, history: list[int], note: str) -> None:
    """Whether the histories of the client contain an item once per pick or once per event."""
    buy, after = event(22, 5, "9", behaviour="buy"), served_list("10", 24, "d", history, [6])
    decisions, messages = decisions_of_session_d(folder, event(21, 5, "9"), buy, after)
    assert decisions == [(0, [5, 4], 0.5, (5, "buy")), (len(history), [6], 0.5, None)]
    assert messages == [f"1 event {note}."]
    assert [(5, "click"), (5, "buy")][-len(history) :] in sessions_of(prepare_served(folder))


def test_the_most_valuable_event_need_not_be_the_last(folder: Path) -> None:
    behaviours = ("view", "buy", "cart", "click")
    picks = [event(21 + step, 5, "9", behaviour=name) for step, name in enumerate(behaviours)]
    decisions, messages = decisions_of_session_d(folder, *picks, served_list("10", 30, "d", [5], [6]))
    assert decisions == [(0, [5, 4], 0.5, (5, "buy")), (1, [6], 0.5, None)]
    assert messages == [f"3 events {MERGED}."]
    assert [(5, "buy")] in sessions_of(prepare_served(folder))
    own = [event(21, 5, "9", behaviour="rented"), event(22, 5, "9", behaviour="kept"), event(23, 5, "9")]
    assert decisions_of_session_d(folder, *own)[0] == [(0, [5, 4], 0.5, (5, "kept"))]


def test_a_purchase_can_follow_the_next_list(folder: Path) -> None:
    after = [served_list("10", 22, "d", [5], [6]), event(23, 6, "10"), event(24, 5, "9", behaviour="buy")]
    for history in ([5, 6], [5, 6, 5]):
        decisions, _ = decisions_of_session_d(
            folder, event(21, 5, "9"), *after, served_list("11", 25, "d", history, [8])
        )
        buy, click, nothing = (5, "buy"), (6, "click"), None
        assert [(decision[0], decision[3]) for decision in decisions] == [(0, buy), (1, click), (len(history), nothing)]


SENT = "left out: sent twice"


@pytest.mark.parametrize(
    ("history", "messages"),
    [([5], [f"2 events {SENT}."]), ([5, 5, 5], [f"2 events {IN_FULL}."])],
)
def test_an_event_that_was_sent_twice_counts_once(folder: Path, history: list[int], messages: list[str]) -> None:
    """Copies are retries, unless the histories contain them."""
    twice = [event(21, 5, "9"), event(22, 5, "9", "d"), event(23, 5, "9")]
    decisions = decisions_of_session_d(folder, *twice, served_list("10", 24, "d", history, [6]))
    assert decisions == ([(0, [5, 4], 0.5, (5, "click")), (len(history), [6], 0.5, None)], messages)


@pytest.mark.parametrize(
    ("history", "messages"),
    [
        ([5], [f"1 event {SENT}.", f"1 event {MERGED}."]),
        ([5, 5], [f"1 event {SENT}.", f"1 event {IN_FULL}."]),
        ([5, 5, 5], [f"2 events {IN_FULL}."]),
    ],
)
def test_a_purchase_that_was_sent_twice_counts_once(folder: Path, history: list[int], messages: list[str]) -> None:
    buys = [event(22, 5, "9", behaviour="buy"), event(23, 5, "9", behaviour="buy")]
    decisions = decisions_of_session_d(folder, event(21, 5, "9"), *buys, served_list("10", 24, "d", history, [6]))
    assert decisions == ([(0, [5, 4], 0.5, (5, "buy")), (len(history), [6], 0.5, None)], messages)
    assert sum(pick == (5, "buy") for session in sessions_of(prepare_served(folder)) for pick in session) == max(
        1, len(history) - 1
    )


def test_a_second_item_of_a_list_remains_in_the_session(folder: Path) -> None:
    others = [event(21, 5, "9"), event(22, 4, "9"), event(23, 5, "9", behaviour="buy")]
    decisions, messages = decisions_of_session_d(folder, *others, served_list("10", 24, "d", [5, 4], [6]))
    assert decisions == [(0, [5, 4], 0.5, (5, "buy")), (2, [6], 0.5, None)]
    other = "1 event kept without a list: another item was picked from its list first."
    assert messages == [other, f"1 event {MERGED}."]


def test_events_without_a_list_belong_to_the_history(folder: Path) -> None:
    """Items found by search, for example: every event counts, because nothing tells copies apart."""
    for history, is_consistent in (([8, 8], True), ([8], False), ([], False)):
        lists = [served_list("9", 20, "d", [], [5, 4]), served_list("10", 24, "d", history, [6])]
        messages = notes(folder, *lists, event(21, 8, None, "d"), event(22, 8, None, "d", behaviour="buy"))
        assert messages[0] == "2 events kept without a list: no list of its session had the item."
        assert messages[1:] == ([] if is_consistent else [f"1 session left out: {OTHER_HISTORY}."])
        assert (
            [(0, [5, 4], 0.5, None), (2, [6], 0.5, None)] in stored_decisions(prepare_served(folder))
        ) == is_consistent


def test_an_item_that_was_not_offered_remains_in_the_session(folder: Path) -> None:
    for pick in (event(21, 8, "9"), event(21, 8, None, "d")):
        decisions, messages = decisions_of_session_d(folder, pick, served_list("10", 23, "d", [8], [6]))
        assert decisions == [(0, [5, 4], 0.5, None), (1, [6], 0.5, None)]
        assert messages == ["1 event kept without a list: no list of its session had the item."]


def test_an_event_with_an_unknown_request_remains_in_its_session(folder: Path) -> None:
    decisions, messages = decisions_of_session_d(folder, event(21, 5, "99", "d"), served_list("10", 23, "d", [5], [6]))
    assert decisions == [(0, [5, 4], 0.5, None), (1, [6], 0.5, None)]
    assert messages == ["1 event kept without a list: its request is not in the log."]


def test_a_list_of_another_session_is_not_rewarded(folder: Path) -> None:
    decisions, messages = decisions_of_session_d(folder, served_list("10", 20, "e", [], [5]), event(21, 5, "9", "e"))
    assert decisions == [(0, [5, 4], 0.5, None)]
    assert messages == ["1 event kept without a list: no list of its session had the item."]


def test_dropping_a_pick_drops_its_list(folder: Path) -> None:
    write(folder, GOOD)
    dataset = prepare_served(folder, drop=("buy",))
    assert sorted(stored_decisions(dataset)) == sorted([EXPECTED[0][:2], *EXPECTED[1:]])
    note = "drop buy kept 3 of 3 sessions and 2 of 3 events: estimates are about these sessions only."
    assert dataset.meta["decisions"]["notes"] == [note]


def test_an_event_without_a_request_belongs_to_the_last_list_with_the_item(folder: Path) -> None:
    lists = [
        served_list("10", 21, "d", [], [4]),
        served_list("11", 22, "d", [], [6]),
        served_list("12", 99, "d", [4], [4]),
    ]
    decisions, _ = decisions_of_session_d(folder, *lists, event(30, 4, None, "d"))
    assert decisions == [(0, [5, 4], 0.5, None), (0, [4], 0.5, (4, "click")), (0, [6], 0.5, None), (1, [4], 0.5, None)]


def test_a_pick_can_follow_the_next_list(folder: Path) -> None:
    decisions, messages = decisions_of_session_d(
        folder, served_list("10", 21, "d", [], [6]), event(22, 5, "9"), event(23, 6, "10")
    )
    assert decisions == [(0, [5, 4], 0.5, (5, "click")), (0, [6], 0.5, (6, "click"))]
    assert messages == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sampled": False}, NOT_SAMPLED),
        ({"log_probability": None}, NOT_SAMPLED),
        ({"restricted": True}, RESTRICTED),
        ({"items": [6, 6], "restricted": True}, MALFORMED),
        ({"items": []}, MALFORMED),
        ({"items": [None]}, MALFORMED),
        ({"log_probability": 0.5}, "a list with a probability above 1"),
        ({"request_id": "9"}, REPEATED_REQUEST),
        ({"request_id": "9", "items": [5, 4], "history": [], "time": 29}, REPEATED_REQUEST),
    ],
)
def test_an_unusable_list_excludes_its_session(folder: Path, change: Record, reason: str) -> None:
    """Without one of its lists, the weight and the reward of a session would be wrong."""
    lists = [served_list("9", 20, "d", [], [5, 4]), served_list("10", 22, "d", [5], [6]) | change]
    assert notes(folder, *lists, event(21, 5, "9"), event(23, 6, "10", "d")) == [f"1 session left out: {reason}."]
    assert len(prepare_served(folder).sessions) == len(EXPECTED)


def test_a_request_id_of_two_sessions_excludes_both(folder: Path) -> None:
    messages = notes(folder, served_list("9", 20, "d", [], [5]), served_list("9", 21, "e", [], [4]), event(22, 4, "9"))
    assert messages == [f"2 sessions left out: {REPEATED_REQUEST}."]
    assert len(prepare_served(folder).sessions) == len(EXPECTED)


def test_a_log_served_with_exclude_seen_is_refused(folder: Path) -> None:
    """Only sessions that ended early have no restricted list; estimates from those alone would be biased."""
    rows = [served_list(f"short {n}", n, f"short {n}", [], [5, 9]) for n in range(2)]
    for visit in "abc":
        for step in range(4):
            request, behaviour = f"{visit}{step}", "buy" if step else "click"
            rows += [served_list(request, step, visit, list(range(step)), [step, 9], restricted=step > 0)]
            rows += [event(step, step, request, behaviour=behaviour)]
    write(folder, rows)
    with pytest.raises(InputError) as caught:
        prepare_served(folder)
    assert str(caught.value) == (
        "The log has no session that estimates can use (5 sessions left out: all lists after a pick are restricted by "
        "exclude, exclude_seen, skip_recent, candidates, allow or deny); serve without exclude, exclude_seen, "
        "skip_recent, candidates, allow and deny."
    )
    assert notes(
        folder, *[row | {"session_id": f"of {row['session_id']}"} for row in rows if row["kind"] == "list"]
    ) == [f"3 sessions left out: {RESTRICTED}."]


def test_a_log_probability_slightly_above_zero_is_clipped(folder: Path) -> None:
    write(folder, [*GOOD, served_list("9", 20, "d", [], [5], log_probability=1e-7)])
    decisions = prepare_served(folder).decisions
    assert decisions.log_propensity.max() == 0.0


def test_unusable_folders_are_refused(folder: Path, prepare_log: Prepare) -> None:
    with pytest.raises(
        InputError, match=r"served contains no decisions-….jsonl; name the folder that offrec serve writes its log to\."
    ):
        prepare_served(folder)
    (folder / "decisions-1-7-0.jsonl.open").write_bytes(b"")
    with pytest.raises(InputError, match="served contains only empty files; serve recommendations first"):
        prepare_served(folder)
    write(folder, [served_list("1", 1, "a", [], [5], sampled=False, log_probability=None), event(2, 5, "1")])
    with pytest.raises(InputError) as caught:
        prepare_served(folder)
    assert str(caught.value) == (
        f"The log has no session that estimates can use (1 session left out: {NOT_SAMPLED}); serve with sample."
    )
    write(folder, [served_list(str(n), 1, str(n), [], [5]) for n in range(3)])
    with pytest.raises(InputError, match="Nothing was picked from any list"):
        prepare_served(folder)
    write(folder, [event(1, 5, None, "a")])
    with pytest.raises(InputError, match=r"events without a list\); send a session id with every request"):
        prepare_served(folder)
    message = "--format served has fixed fields; remove --session, --item, … or use --format decisions."
    assert error_message(prepare_log, ("decisions-1-7-0.jsonl", lines(GOOD)), format="served", item="id") == message


def test_rewards_of_events_are_read_if_they_are_named(folder: Path) -> None:
    """A pick with several events has the reward of its most valuable behaviour; others have that of the behaviour."""
    more = [served_list("9", 20, "d", [], [4, 3]), event(21, 4, "9", reward=0.5)]
    more += [event(22, 4, "9", behaviour="buy", reward=30), event(23, 8, None, "d", reward=-2)]
    write(folder, [*GOOD, *more])
    dataset = prepare_served(folder, reward="reward")
    rewards = event_rewards(dataset, {})
    stored = {pick: float(reward) for pick, reward in zip(chain(*sessions_of(dataset)), rewards, strict=True)}
    expected = {(7, "click"): 0.2, (6, "buy"): 1.0, (5, "click"): 0.2, (4, "buy"): 30.0, (8, "click"): -2.0}
    assert stored == pytest.approx(expected)
    assert prepare_served(folder).reward_column is None


@pytest.mark.parametrize(
    ("options", "reward", "message"),
    [
        ({"reward": "price"}, 1.0, "--reward must be reward with --format served"),
        ({"reward": "reward"}, None, "no event of the log has a reward; send it with POST /v1/events"),
        ({"reward": "reward"}, 1e300, "The log has a reward of 1e\\+300; expected numbers from -1e\\+09 to 1e\\+09"),
    ],
)
def test_unusable_rewards_are_refused(folder: Path, options: Record, reward: float | None, message: str) -> None:
    write(folder, [*GOOD, served_list("9", 20, "d", [], [4, 3]), event(21, 4, "9", reward=reward)])
    with pytest.raises(InputError, match=message):
        prepare_served(folder, **options)
