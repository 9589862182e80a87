"""Visitors of the simulated shop use a server: its log contains what they saw and did, and they earn the same."""

import math
from collections import defaultdict
from pathlib import Path

import pytest
from random_runs import write_run
from small_server import open_client, read_records

from offrec.errors import InputError, RunError
from offrec.runs.loading import load
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.shop_client import RemotePlayer
from offrec.shop import Shop

SESSIONS = 150


def test_the_log_contains_what_visitors_saw_and_did(tmp_path: Path) -> None:
    shop = Shop.open("demo", 0)
    run = write_run(tmp_path / "run", list(range(shop.world.items)), network_repeat="off", spread=2.0)
    options = DecisionLogOptions(flush_seconds=0.1)
    with open_client({"run": run}, seed=3, log=tmp_path / "log", log_options=options) as client:
        remote = shop.rollout(RemotePlayer(shop.dynamics, str(client.base_url)), SESSIONS, seed=5)
    records, _ = read_records(tmp_path / "log")
    lists = {record["request_id"]: record for record in records if record["kind"] == "list"}
    events = [record for record in records if record["kind"] == "event"]
    assert len(lists) == int(remote.steps.sum())
    assert len(events) == int(remote.lengths.sum()) > 0
    assert sum(event["behaviour"] == "buy" for event in events) == int(remote.bought.sum())
    picks: dict[str, list[int]] = defaultdict(list)
    for record in records:
        if record["kind"] == "list":
            assert record["history"] == picks[record["session_id"]]
            assert not record["restricted"]
            assert len(record["items"]) == shop.world.k
        else:
            assert record["item"] in lists[record["request_id"]]["items"]
            picks[record["session_id"]].append(record["item"])
    local = shop.rollout(load(run, "cpu"), SESSIONS, "sample", seed=5)
    error = math.hypot(float(remote.rewards.std()), float(local.rewards.std())) / math.sqrt(SESSIONS)
    assert abs(remote.reward.mean - local.reward.mean) < 4 * error
    assert all(record["log_probability"] < 0 for record in lists.values())


def test_errors_of_the_server_end_the_simulation(tmp_path: Path) -> None:
    shop = Shop.open("tiny", 0)
    with pytest.raises(RunError, match="does not answer"):
        shop.rollout(RemotePlayer(shop.dynamics, "http://127.0.0.1:9"), 2, seed=1)
    with pytest.raises(InputError, match=r"'127\.0\.0\.1:8000'.*http://"):
        RemotePlayer(shop.dynamics, "127.0.0.1:8000")
    with open_client({"run": write_run(tmp_path / "run", list(range(shop.world.items)))}) as client:
        address = str(client.base_url)
        with pytest.raises(RunError, match="answered 404"):
            shop.rollout(RemotePlayer(shop.dynamics, address, policy="other"), 2, seed=1)
        with pytest.raises(RunError, match="answered 409"):
            shop.rollout(RemotePlayer(shop.dynamics, address), 20, seed=1)
