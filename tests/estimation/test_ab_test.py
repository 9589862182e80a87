"""`offrec ab` on logs as a server writes them: figures by hand, notes, and one sentence for what it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offrec.data.line_checksums import seal_end, seal_record
from offrec.errors import InputError
from offrec.estimation.ab_test import AbOptions, AbResult, compare_split

HOUR = 3_600_000
SPLIT = "old=0.5,new=0.5"
Record = dict[str, Any]


def served(session: str | None, time: int, policy: str, split: str | None = SPLIT, request: str = "") -> Record:
    record = {"kind": "list", "request_id": request or f"{session}-{time}", "time": time, "session_id": session}
    record |= {"policy": policy, "history": [], "items": [1, 2], "sampled": False, "restricted": False}
    return record | ({"split": split} if split else {})


def event(
    session: str | None, time: int, behaviour: str, request: str | None = None, item: int = 1, **more: Any
) -> Record:
    names = {"request_id": request, "session_id": session}
    return {"kind": "event", **names, "time": time, "item": item, "behaviour": behaviour, **more}


LATER = served(None, 100 * HOUR, "old", None)  # so that all windows have passed


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(exist_ok=True)
    lines = b"".join(map(seal_record, records))
    (folder / "decisions-1-1-0.jsonl").write_bytes(lines + seal_end(len(records)))
    return folder


def compare(folder: Path, records: list[Record], **options: Any) -> AbResult:
    return compare_split([write(folder, records)], AbOptions(**options))


def traffic(sessions: int, gain: float, share: float = 0.5, seed: int = 0) -> list[Record]:
    """Sessions with a purchase in 20 % of the sessions of the old policy, and 20 % + gain of those of the new one."""
    random = np.random.default_rng(seed)
    records = []
    for number in range(sessions):
        is_new = random.random() < share
        policy, time = "new" if is_new else "old", 1000 * number
        records.append(served(f"s{number}", time, policy, f"old={1 - share:g},new={share:g}"))
        if random.random() < 0.2 + gain * is_new:
            records.append(event(f"s{number}", time + 5, "buy"))
    return [*records, LATER]


def test_rewards_per_session_by_hand(tmp_path: Path) -> None:
    result = compare(
        tmp_path / "log",
        [
            served("a", 0, "old", request="1"),
            event("a", 1, "click", "1"),
            event(None, 2, "buy", "1"),  # the same pick: its most valuable behaviour counts
            event("a", 3, "click", "1", item=2),
            event("a", 30 * HOUR, "buy", "1", item=7),  # after the window
            served("b", 5, "old"),
            served("c", 6, "new"),
            event("c", 7, "buy"),
            served("d", 8, "new", split=None),  # the request named the policy
            served("late", 90 * HOUR, "new"),
            LATER,
        ],
    )
    assert [(arm.policy, arm.sessions, arm.reward) for arm in result.arms] == [
        ("old", 2, pytest.approx(0.6)),
        ("new", 1, 1.0),
    ]
    assert result.arms[0].low is None
    assert result.differences[0].verdict == "too few sessions"
    assert result.notes == [
        "2 lists left out: requested by the name of a policy, or without a session id.",
        "1 session not counted yet: started less than 24 h before the last record.",
    ]


def test_rewards_of_events_are_used_on_request(tmp_path: Path) -> None:
    """A pick earns what its most valuable behaviour was sent with; events without a reward earn that of theirs."""
    records = [
        served("a", 0, "old", request="1"),
        event("a", 1, "click", "1", reward=50.0),
        event("a", 2, "buy", "1", reward=30.0),
        event("a", 3, "click", "1", item=2),
        served("b", 5, "old", request="2"),
        event("b", 6, "buy", "2", reward=-4.0),  # a return
        served("c", 7, "new", request="3"),
        event("c", 8, "rent", "3", reward=7.0),  # a behaviour without a reward of its own
        event("c", 9, "click", "3"),
        LATER,
    ]
    result = compare(tmp_path / "log", records, event_rewards=True)
    assert [arm.reward for arm in result.arms] == [pytest.approx((30 + 0.2 - 4) / 2), 7.0]
    assert not any("reward" in note for note in result.notes)
    without = compare(tmp_path / "log", records, reward={"rent": 3.0})
    assert [arm.reward for arm in without.arms] == [pytest.approx((1 + 0.2 + 1) / 2), 3.0]
    assert without.notes[-1] == "4 events sent with a reward, which is not used; --event-rewards uses it."


def test_a_large_difference_is_found_and_none_is_not(tmp_path: Path) -> None:
    better = compare(tmp_path / "better", traffic(4000, 0.2, 0.3), planned=4000)
    (one,) = better.differences
    assert one.low is not None
    assert one.high is not None
    assert 0 < one.low < 0.2 < one.high
    assert one.verdict == "more"
    assert abs(one.difference - (better.arms[1].reward - better.arms[0].reward)) < 0.02
    assert compare(tmp_path / "same", traffic(2000, 0.0)).differences[0].verdict == "not decided"


def test_the_figures_of_a_shorter_log_do_not_change_when_it_grows(tmp_path: Path) -> None:
    """A look today is a point of the course that a look tomorrow shows."""
    records = traffic(600, 0.1)
    course = compare(tmp_path / "all", records).courses[0]
    part = [record for record in records[:-1] if record["time"] < 300_000]
    earlier = compare(tmp_path / "part", [*part, LATER]).courses[0]
    assert earlier.low.tolist() == pytest.approx(course.low[: len(earlier.low)].tolist(), nan_ok=True)


def test_sessions_served_by_several_policies_and_wrong_shares_are_noted(tmp_path: Path) -> None:
    records = [served("x", 0, "old"), served("x", 5, "new"), *traffic(400, 0.0, share=0.5)]
    records = [
        record for record in records if record.get("policy") != "new" or record["time"] % 7000 or record["time"] < 9
    ]
    missing = [record for record in records if record.get("policy") != "new" or record["time"] % 2000]
    notes = compare(tmp_path / "log", missing).notes
    assert any(
        "1 session served by several policies, because the split changed: counted for the first." in note
        for note in notes
    )
    assert any("contradict the split old=0.5,new=0.5: sessions of one policy are missing" in note for note in notes)


def test_a_change_of_the_shares_does_not_remove_returning_visitors(tmp_path: Path) -> None:
    """Both policies earn the same. Returning visitors buy more, and only those of the old policy change policies."""
    random, first, second = np.random.default_rng(3), {"old": 0.9, "new": 0.1}, {"old": 0.5, "new": 0.5}
    texts = [",".join(f"{name}={share:g}" for name, share in shares.items()) for shares in (first, second)]
    records = []
    for number in range(6000):
        place, time, returns = random.random(), 1000 * number, random.random() < 0.5
        policies = ["old" if place < shares["old"] else "new" for shares in (first, second)]
        records.append(served(f"s{number}", time, policies[0], texts[0]))
        if returns:
            records.append(served(f"s{number}", 5 * HOUR + time, policies[1], texts[1]))
        if random.random() < (0.9 if returns else 0.05):
            records.append(event(f"s{number}", 5 * HOUR + time + 1, "buy"))
    result = compare(tmp_path / "log", [*records, LATER], planned=6000)
    (one,) = result.differences
    assert sum(arm.sessions for arm in result.arms) == 6000
    assert one.low is not None
    assert one.high is not None
    assert one.low < 0 < one.high
    assert not any("contradict" in note for note in result.notes)


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        ([served("a", 0, "old", None)], {}, "The log contains no session of a traffic split; serve with --split"),
        ([event("a", 0, "buy")], {}, "contains no list; serve recommendations first"),
        ([served("a", 0, "old")], {}, "No session is finished: all 1 began less than 24 hours before the last record"),
        ([served("a", 0, "old"), event("a", 1, "like"), LATER], {}, "The behaviour 'like' has no reward; set one with"),
        (traffic(9, 0.3), {"reward": {"rent": 1.0}}, "--reward names 'rent', but the behaviours of the log are buy"),
        ([served("a", 0, "old", "old"), LATER], {}, "The log contains the split 'old'; expected shares"),
        ([served("a", 0, "x"), LATER], {}, "The log contains lists of 'x', which is not in their split"),
        (traffic(9, 0.3), {"window_hours": 0.0}, "--window-hours must be positive; got 0"),
        (traffic(9, 0.3), {"confidence": 1.0}, "--confidence must be at least 0.5 and below 1; got 1"),
        (traffic(9, 0.3), {"event_rewards": True}, "--event-rewards was given, but no event of the log has a reward"),
        (
            [served("a", 0, "old"), event("a", 1, "buy", reward=1e300), LATER],
            {"event_rewards": True},
            r"The log has a reward of 1e\+300; expected numbers from -1e\+09 to 1e\+09",
        ),
        (
            [served("a", 0, "old"), event("a", 1, "like", reward=1), event("a", 2, "like"), LATER],
            {"event_rewards": True},
            "The behaviour 'like' has no reward",
        ),
        (traffic(9, 0.3), {"planned": 3}, "--planned must be at least 100; got 3"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    tmp_path: Path, records: list[Record], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        compare(tmp_path / "log", records, **options)


def test_the_command_prints_json_and_draws_a_picture(tmp_path: Path) -> None:
    write(tmp_path / "decisions", traffic(600, 0.2))
    command = [
        sys.executable,
        "-m",
        "offrec",
        "ab",
        "decisions",
        "--reward",
        "buy=2",
        "--picture",
        "course.svg",
        "--json",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    assert [arm["policy"] for arm in figures["policies"]] == ["old", "new"]
    assert figures["differences"][0]["verdict"] in ("more", "not decided")
    assert figures["options"]["reward"]["buy"] == 2
    assert "<svg" in (tmp_path / "course.svg").read_text()
