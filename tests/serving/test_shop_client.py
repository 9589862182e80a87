"""The shop's visitors come to a server: its log is what they saw and did, and they earn what the policy earns."""

import math
from collections import defaultdict
from pathlib import Path

import pytest
from random_runs import write_run
from small_server import client_of, records

from offrec.errors import InputError, RunError
from offrec.runs.loading import load
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.shop_client import RemotePlayer
from offrec.shop import Shop

SESSIONS = 150


def test_visitors_leave_a_log_of_what_they_saw_and_did(tmp_path: Path) -> None:
    shop = Shop.open("demo", 0)
    run = write_run(tmp_path / "run", list(range(shop.world.items)), network_repeat="off", spread=2.0)
    log = DecisionLogOptions(flush_seconds=0.1)
    with client_of({"run": run}, seed=3, log=tmp_path / "log", log_options=log) as client:
        found = shop.rollout(RemotePlayer(shop.dynamics, str(client.base_url)), SESSIONS, seed=5)
    records_, _ = records(tmp_path / "log")
    lists = {record["request_id"]: record for record in records_ if record["kind"] == "list"}
    events = [record for record in records_ if record["kind"] == "event"]
    assert len(lists) == int(found.steps.sum())
    assert len(events) == int(found.lengths.sum()) > 0
    assert sum(event["behaviour"] == "buy" for event in events) == int(found.bought.sum())
    picks: dict[str, list[int]] = defaultdict(list)
    for record in records_:
        if record["kind"] == "list":
            assert record["history"] == picks[record["session_id"]]
            assert not record["restricted"]
            assert len(record["items"]) == shop.world.k
        else:
            assert record["item"] in lists[record["request_id"]]["items"]
            picks[record["session_id"]].append(record["item"])
    policy = load(run, "cpu")
    inside = shop.rollout(policy, SESSIONS, "sample", seed=5)
    spread = math.hypot(float(found.rewards.std()), float(inside.rewards.std())) / math.sqrt(SESSIONS)
    assert abs(found.reward.mean - inside.reward.mean) < 4 * spread
    assert all(record["log_probability"] < 0 for record in lists.values())


def test_a_server_that_does_not_answer_is_told(tmp_path: Path) -> None:
    shop = Shop.open("tiny", 0)
    with pytest.raises(RunError, match="does not answer"):
        shop.rollout(RemotePlayer(shop.dynamics, "http://127.0.0.1:9"), 2, seed=1)
    with pytest.raises(InputError, match="no address of a server"):
        RemotePlayer(shop.dynamics, "127.0.0.1:8000")
    with client_of({"run": write_run(tmp_path / "run", list(range(shop.world.items)))}) as client:
        with pytest.raises(RunError, match="answered 404: There is no policy"):
            shop.rollout(RemotePlayer(shop.dynamics, str(client.base_url), policy="other"), 2, seed=1)
        with pytest.raises(RunError, match="answered 409: This server keeps no decision log"):
            shop.rollout(RemotePlayer(shop.dynamics, str(client.base_url)), 20, seed=1)
