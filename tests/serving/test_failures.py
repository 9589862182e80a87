"""Failures in production: a killed server, damaged runs, a full disk. Real processes, under load."""

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
from small_server import ServerProcess, open_client, read_records, wait_until

from offrec.serving.decision_log import DecisionLog, DecisionLogOptions
from offrec.training import checkpoint

REQUEST = {"history": [3, 5], "k": 5, "sample": True, "session_id": "s"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", list(range(300)))


class Load:
    """Clients that send requests without pause. `answered`: (request id, time) of every successful request."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.answered: list[tuple[str, float]] = []
        self.fingerprints: set[str] = set()
        self.failures: list[Any] = []
        self.stop = threading.Event()

    def send_requests(self, client_number: int) -> None:
        with httpx.Client(base_url=self.address, timeout=30) as client:
            count = 0
            while not self.stop.is_set():
                count += 1
                request_id = f"{client_number}-{count}"
                try:
                    response = client.post("/v1/recommend", json={**REQUEST, "request_id": request_id})
                except httpx.TransportError as error:
                    self.failures.append(error)
                    return
                if response.status_code != 200:
                    self.failures.append(response.text)
                    return
                self.answered.append((request_id, time.monotonic()))
                self.fingerprints.add(response.json()["fingerprint"])


@contextmanager
def under_load(address: str, clients: int = 6) -> Iterator[Load]:
    load = Load(address)
    threads = [threading.Thread(target=load.send_requests, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop.set()
        for thread in threads:
            thread.join()


def flushed_records(address: str) -> int:
    match = re.search(r"offrec_decision_log_flushed_total (\d+)", httpx.get(f"{address}/metrics").text)
    assert match is not None
    return int(match[1])


@pytest.mark.parametrize("durable", [False, True])
def test_kill_9_loses_no_answered_request(run: Path, tmp_path: Path, durable: bool) -> None:
    """The last flush may be long ago: what matters is that the record is written before the response."""
    folder = tmp_path / "log"
    options = ("--durable",) if durable else ("--flush-seconds", "60")
    with ServerProcess(run, "--log", folder, *options) as server, under_load(server.address) as load:
        wait_until(lambda: len(load.answered) > 200)
        server.child.send_signal(signal.SIGKILL)
        server.child.wait()
    assert server.child.returncode == -signal.SIGKILL
    records, torn = read_records(folder)
    assert torn <= 1
    assert all(record["kind"] == "list" and len(record["items"]) == 5 for record in records)
    request_ids = [record["request_id"] for record in records]
    assert len(set(request_ids)) == len(request_ids)
    assert {request_id for request_id, _ in load.answered} <= set(request_ids)
    assert len(request_ids) <= len(load.answered) + 6, "at most one unanswered request per client"
    printed: list[str] = []
    DecisionLog(folder, DecisionLogOptions(), printed.append).close()
    assert len(printed) == 1
    assert f"{len(records):,} records" in printed[0]


def damage(run: Path, how: str) -> None:
    weights = run / "best.safetensors"
    if how == "no run.json":
        (run / "run.json").unlink()
    elif how == "truncated weights":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "flipped bit":
        data = bytearray(weights.read_bytes())
        data[-5] ^= 64
        weights.write_bytes(data)
    elif how == "NaN weights":
        tensors, facts = checkpoint.load(weights)
        tensors["module.actor.bias"][3] = float("nan")
        checkpoint.save(weights, tensors, facts)
    elif how == "ids of another catalogue":
        shutil.copyfile(write_run(run.parent / "few", [1, 2, 3]) / "item_ids.npy", run / "item_ids.npy")
    elif how == "invalid options":
        facts = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**facts, "options": None}))


DAMAGES = (
    "no run.json",
    "truncated weights",
    "flipped bit",
    "NaN weights",
    "ids of another catalogue",
    "invalid options",
)


def replace_run(source: Path, target: Path) -> None:
    """Put a run in the place of another, as `offrec train --force` or a changed link would."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def test_reloads_under_load_fail_no_request(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", list(range(100, 500)), seed=5)  # even another catalogue
    served = tmp_path / "served"
    replace_run(run, served)
    with open_client({"run": served}) as client, under_load(str(client.base_url), 4) as load:
        fingerprint = client.get("/v1/policies").json()["policies"][0]["fingerprint"]
        for turn in range(8):
            replace_run(other if turn % 2 == 0 else run, served)
            response = client.post("/v1/reload", json={"policy": "run"} if turn % 3 else {})
            assert response.status_code == 200, response.text
        assert response.json() == {"reloaded": {"run": fingerprint}}
        for how in DAMAGES:
            replace_run(run, served)
            damage(served, how)
            response = client.post("/v1/reload", json={})
            assert response.status_code == 409, how
            assert "old policy remains" in response.json()["error"]
            assert client.get("/v1/policies").json()["policies"][0]["fingerprint"] == fingerprint
        metrics = client.get("/metrics").text
        assert 'offrec_reloads_total{result="succeeded"} 8.0' in metrics
        assert f'offrec_reloads_total{{result="failed"}} {len(DAMAGES)}.0' in metrics
        assert client.post("/v1/reload", json={"policy": "other"}).status_code == 404
        answered = len(load.answered)
        wait_until(lambda: len(load.answered) > answered + 20)
    assert load.failures == []
    assert len(load.fingerprints) == 2, "both policies answered requests"


def test_the_server_goes_on_while_the_disk_is_full(run: Path, tmp_path: Path) -> None:
    """A limit on the file size acts like a full disk that is emptied later."""
    folder = tmp_path / "log"
    with ServerProcess(run, "--log", folder, "--flush-seconds", "0.05") as server:
        with httpx.Client(base_url=server.address) as client:
            assert client.post("/v1/recommend", json=REQUEST).json()["logged"]
            wait_until(lambda: flushed_records(server.address) == 1)
            os.kill(server.child.pid, signal.SIGHUP)
            server.wait_for_output("reloaded run")
            _, hard = resource.prlimit(server.child.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            for _ in range(20):
                client.post("/v1/recommend", json=REQUEST)
            wait_until(lambda: client.get("/healthz").json()["decision_log"] == "File too large")
            assert client.get("/readyz").status_code == 200
            responses = [client.post("/v1/recommend", json=REQUEST) for _ in range(3)]
            assert [response.status_code for response in responses] == [200] * 3
            assert not any(response.json()["logged"] for response in responses)
            event = client.post("/v1/events", json={"item": 3, "behaviour": "click"})
            assert event.status_code == 503
            assert "File too large" in event.json()["error"]
            assert "offrec_decision_log_failing 1.0" in client.get("/metrics").text
            resource.prlimit(server.child.pid, resource.RLIMIT_FSIZE, (hard, hard))
            wait_until(lambda: client.get("/healthz").json()["decision_log"] == "ok")
            assert client.post("/v1/recommend", json=REQUEST).json()["logged"]
        server.child.send_signal(signal.SIGTERM)
        server.child.wait(60)
    assert "cannot be written (File too large)" in "".join(server.output)
    records, torn = read_records(folder)
    assert torn == 0
    lost = sum(record["count"] for record in records if record["kind"] == "lost")
    lists = [record for record in records if record["kind"] == "list"]
    assert lost >= 4
    assert len(lists) + lost == 1 + 20 + 3 + 1 + 1, "every list and the event: written or counted"


def test_a_full_disk_stops_the_server_if_it_is_told_to(run: Path, tmp_path: Path) -> None:
    arguments = ("--log", tmp_path / "log", "--flush-seconds", "0.05", "--on-log-failure", "stop")
    with ServerProcess(run, *arguments) as server:
        resource.prlimit(server.child.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        httpx.post(f"{server.address}/v1/recommend", json=REQUEST)
        assert server.child.wait(60) == 1
        server.reader.join()
    output = "".join(server.output)
    assert "offrec: Stopped: the decision log cannot be written (File too large)." in output
    assert "lost 1 records" in output
