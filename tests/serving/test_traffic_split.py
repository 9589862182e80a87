"""A session stays with its policy; shares are those of the split; the log says which split assigned a list."""

from pathlib import Path

import pytest
from random_runs import write_run
from small_server import open_client, read_records

from offrec.errors import InputError
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.traffic_split import TrafficSplit, parse_split


def test_sessions_are_split_by_the_shares_and_stay_with_their_policy() -> None:
    split = TrafficSplit({"a": 0.9, "b": 0.1}, "key")
    sessions = [f"visit-{number}" for number in range(20_000)]
    assigned = [split.assign(session) for session in sessions]
    assert assigned == [split.assign(session) for session in sessions]
    assert abs(assigned.count("b") / len(sessions) - 0.1) < 0.007
    larger = TrafficSplit({"a": 0.7, "b": 0.3}, "key")
    assert all(larger.assign(session) == "b" for session, name in zip(sessions, assigned, strict=True) if name == "b")
    other = [TrafficSplit({"a": 0.5, "b": 0.5}, "other").assign(session) for session in sessions]
    both = sum(name == "b" == moved for name, moved in zip(assigned, other, strict=True))
    assert abs(both / len(sessions) - 0.05) < 0.007, "another key is independent"
    long = [[TrafficSplit(split.shares, "k" * 64 + end).assign(session) for session in sessions] for end in "ab"]
    assert long[0] != long[1], "the whole key counts"


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("a=0.5,b=0.4", "", "The shares of --split must add up to 1; got 0.9."),
        ("a=0.5,c=0.5", "", "--split names 'c', which is not served; the policies are a, b."),
        ("a=0.5,a=0.5", "", "--split names 'a' twice; give each policy one share."),
        ("a=1", "", "--split a=1: a share must be above 0 and below 1; for a single policy, remove --split."),
        ("nope=1", "", "--split names 'nope', which is not served; the policies are a, b."),
        ("a", "", "--split must be NAME=SHARE,…, such as a=0.9,b=0.1; got 'a'."),
        ("a=nan,b=0.5", "", "--split must be NAME=SHARE,…, such as a=0.9,b=0.1; got 'a=nan'."),
        ("", "x", "--split-key has no effect without --split; add --split or remove it."),
    ],
)
def test_invalid_splits_are_one_sentence(text: str, key: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_split(text, ["a", "b"], key)
    assert str(caught.value) == message


def test_the_server_assigns_policies_and_logs_the_split(tmp_path: Path) -> None:
    runs = {name: write_run(tmp_path / name, list(range(20)), seed=seed) for seed, name in enumerate("abc")}
    split = parse_split("b=0.5,c=0.5", runs)
    assert split is not None
    options = DecisionLogOptions(flush_seconds=0.02)
    with open_client(runs, log=tmp_path / "log", log_options=options, split=split) as client:
        assert client.get("/v1/policies").json()["split"] == {"b": 0.5, "c": 0.5}
        for number in range(20):
            response = client.post("/v1/recommend", json={"session_id": f"s{number}"}).json()
            assert response["policy"] == split.assign(f"s{number}")
        assert client.post("/v1/recommend", json={}).json()["policy"] == "a", "no session: the default policy"
        assert client.post("/v1/recommend", json={"session_id": "s1", "policy": "a"}).json()["policy"] == "a"
    records = read_records(tmp_path / "log")[0]
    assert [record.get("split") for record in records] == ["b=0.5,c=0.5"] * 20 + [None] * 2
    assert {record["policy"] for record in records[:20]} == {"b", "c"}
