"""What goes wrong in earnest: a killed server, a damaged run, a full disk. Real processes, under load."""

import json
import os
import re
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from random_runs import write_run
from small_server import Process, client_of, records, until

from offrec.serving.decision_log import DecisionLog, DecisionLogOptions
from offrec.training import checkpoint

ASK = {"history": [3, 5], "k": 5, "sample": True, "session_id": "s"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", list(range(300)))


class Visitors:
    """Some who ask without pause. `answered`: (request id, when), of those that got their list."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.answered: list[tuple[str, float]] = []
        self.fingerprints: set[str] = set()
        self.failed: list[Any] = []
        self.stop = threading.Event()

    def come(self, number: int) -> None:
        with httpx.Client(base_url=self.address, timeout=30) as client:
            count = 0
            while not self.stop.is_set():
                count += 1
                try:
                    answer = client.post("/v1/recommend", json={**ASK, "request_id": f"{number}-{count}"})
                except httpx.TransportError as error:
                    self.failed.append(error)
                    return
                if answer.status_code != 200:
                    self.failed.append(answer.text)
                    return
                self.answered.append((f"{number}-{count}", time.monotonic()))
                self.fingerprints.add(answer.json()["fingerprint"])


@contextmanager
def visitors(address: str, many: int = 6) -> Iterator[Visitors]:
    found = Visitors(address)
    threads = [threading.Thread(target=found.come, args=(number,)) for number in range(many)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        found.stop.set()
        for thread in threads:
            thread.join()


def flushed(address: str) -> int:
    found = re.search(r"offrec_log_flushed_total (\d+)", httpx.get(f"{address}/metrics").text)
    assert found is not None
    return int(found[1])


def test_kill_9_leaves_every_flushed_record_readable(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with Process(run, "--log", folder, "--flush-seconds", "0.2") as server, visitors(server.address) as crowd:
        time.sleep(2.0)
        until(lambda: flushed(server.address) > 100)
        on_disk, when = flushed(server.address), time.monotonic()
        server.child.send_signal(signal.SIGKILL)
        server.child.wait()
    assert server.child.returncode == -signal.SIGKILL
    found, torn = records(folder)
    assert len(found) >= on_disk > 100
    assert torn <= 1
    assert all(record["kind"] == "list" and len(record["items"]) == 5 for record in found)
    ids = [record["request_id"] for record in found]
    assert len(set(ids)) == len(ids)
    early = {request for request, answered in crowd.answered if answered < when - 1.0}
    assert early, "somebody came a second, five flushes, before the end"
    assert early <= set(ids)
    missing = {request for request, _ in crowd.answered} - set(ids)
    assert len(missing) < len(crowd.answered) / 2
    said: list[str] = []
    DecisionLog(folder, DecisionLogOptions(), said.append).close()
    assert f"it holds {len(found):,} records" in said[0]
    assert "what came after its last flush is lost" in said[0]


def damaged(run: Path, how: str) -> None:
    weights = run / "best.safetensors"
    if how == "no run.json":
        (run / "run.json").unlink()
    elif how == "cut short":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "flipped":
        data = bytearray(weights.read_bytes())
        data[-5] ^= 64
        weights.write_bytes(data)
    elif how == "no numbers":
        tensors, facts = checkpoint.load(weights)
        tensors["module.actor.bias"][3] = float("nan")
        checkpoint.save(weights, tensors, facts)
    elif how == "ids of another catalogue":
        shutil.copyfile(write_run(run.parent / "few", [1, 2, 3]) / "item_ids.npy", run / "item_ids.npy")
    elif how == "odd options":
        facts = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**facts, "options": None}))


def put(source: Path, place: Path) -> None:
    """A run in the place of another, as `offrec train --force` or a switched link leave it."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)


def test_reloads_under_load_fail_no_request(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", list(range(100, 500)), seed=5)  # even another catalogue
    first = tmp_path / "first"
    put(run, first)
    place = tmp_path / "served"
    put(first, place)
    with client_of({"run": place}) as client, visitors(str(client.base_url), 4) as crowd:
        before = client.get("/v1/policies").json()["policies"][0]["fingerprint"]
        for turn in range(8):
            put(other if turn % 2 == 0 else first, place)
            reloaded = client.post("/v1/reload", json={"policy": "run"} if turn % 3 else {})
            assert reloaded.status_code == 200, reloaded.text
        assert reloaded.json() == {"reloaded": {"run": before}}
        for how in ("no run.json", "cut short", "flipped", "no numbers", "ids of another catalogue", "odd options"):
            put(first, place)
            damaged(place, how)
            refused = client.post("/v1/reload", json={})
            assert refused.status_code == 409, how
            assert "was refused and the old one stays" in refused.json()["error"]
            assert client.get("/v1/policies").json()["policies"][0]["fingerprint"] == before
        metrics = client.get("/metrics").text
        assert 'offrec_reloads_total{result="accepted"} 8' in metrics
        assert 'offrec_reloads_total{result="refused"} 6' in metrics
        assert client.post("/v1/reload", json={"policy": "other"}).status_code == 404
        asked = len(crowd.answered)
        until(lambda: len(crowd.answered) > asked + 20)
    assert crowd.failed == []
    assert len(crowd.fingerprints) == 2, "both answered"


def test_a_full_disk_is_told_and_the_server_goes_on(run: Path, tmp_path: Path) -> None:
    """A limit on the size of files, as a full disk that can be emptied again."""
    folder = tmp_path / "log"
    with Process(run, "--log", folder, "--flush-seconds", "0.05") as server:
        with httpx.Client(base_url=server.address) as client:
            assert client.post("/v1/recommend", json=ASK).json()["logged"]
            until(lambda: flushed(server.address) == 1)
            os.kill(server.child.pid, signal.SIGHUP)
            server.wait_for("reloaded run")
            _, hard = resource.prlimit(server.child.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            for _ in range(20):
                client.post("/v1/recommend", json=ASK)
            until(lambda: client.get("/healthz").json()["decision_log"] == "File too large")
            assert client.get("/readyz").status_code == 200
            lists = [client.post("/v1/recommend", json=ASK) for _ in range(3)]
            assert [one.status_code for one in lists] == [200] * 3
            assert not any(one.json()["logged"] for one in lists)
            event = client.post("/v1/events", json={"item": 3, "behaviour": "click"})
            assert event.status_code == 503
            assert "not recorded: the decision log cannot be written (File too large)" in event.json()["error"]
            assert "offrec_log_failing 1" in client.get("/metrics").text
            resource.prlimit(server.child.pid, resource.RLIMIT_FSIZE, (hard, hard))
            until(lambda: client.get("/healthz").json()["decision_log"] == "ok")
            assert client.post("/v1/recommend", json=ASK).json()["logged"]
        server.child.send_signal(signal.SIGTERM)
        server.child.wait(20)
    assert "records are being lost" in "".join(server.said)
    found, torn = records(folder)
    assert torn == 0
    lost = sum(record["count"] for record in found if record["kind"] == "lost")
    lists = [record for record in found if record["kind"] == "list"]
    assert lost >= 4
    assert len(lists) + lost == 1 + 20 + 3 + 1 + 1, "every list and the event: written or counted"


def test_a_full_disk_stops_the_server_where_it_was_told_to(run: Path, tmp_path: Path) -> None:
    words = ("--log", tmp_path / "log", "--flush-seconds", "0.05", "--on-log-failure", "stop")
    with Process(run, *words) as server:
        resource.prlimit(server.child.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        httpx.post(f"{server.address}/v1/recommend", json=ASK)
        assert server.child.wait(20) == 1
        server.reader.join()
    assert "offrec: Stopped: the decision log cannot be written (File too large)." in "".join(server.said)
    assert "1 records of the decision log were lost" in "".join(server.said)
