"""`--workers`: all of them answer, log and reload; one that dies is started again; all end with the supervisor."""

import asyncio
import os
import re
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from random_runs import write_run
from small_server import ServerProcess, read_records, wait_until
from test_failures import REQUEST, replace_run, under_load

from offrec.commands.serve import Serve
from offrec.errors import InputError
from offrec.runs.loading import load
from offrec.serving.engine import Query, QueryResult
from offrec.serving.micro_batching import MicroBatcher
from offrec.serving.policy_slots import PolicySlots
from offrec.serving.shared_metrics import HEADER, SharedMetrics, add_label, merge_metrics
from offrec.serving.shared_tensors import map_tensors, write_tensors
from offrec.serving.worker import SupervisorLink


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        "first": write_run(folder / "first", list(range(300))),
        "second": write_run(folder / "second", list(range(100, 500)), seed=5),
    }


@pytest.fixture(scope="module")
def server(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two workers; `log`, `served` and `tmp` are in its working directory. SIGTERM ends it."""
    folder = tmp_path_factory.mktemp("server")
    replace_run(runs["first"], folder / "served")
    (folder / "tmp").mkdir()
    options = {"cwd": folder, "env": {**os.environ, "TMPDIR": str(folder / "tmp")}}
    with ServerProcess(
        "run=served", "--workers", 2, "--log", "log", "--seed", 3, "--hang-seconds", 2, **options
    ) as process:
        process.folder = folder  # type: ignore[attr-defined]
        yield process
        workers = children(process.child.pid)
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(60) == -signal.SIGTERM
        assert len(workers) == 2
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert not list((folder / "log").glob("*.open"))
    assert not list((folder / "tmp").glob("offrec-*")), "no copies of the weights remain"
    assert "Traceback" not in "".join(process.output)


def children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in text.split()]


def fingerprints(server: ServerProcess) -> dict[str, str]:
    """Worker → fingerprint of its policy, by the metrics, which are at most a second old."""
    text = httpx.get(f"{server.address}/metrics").text
    return dict(re.findall(r'offrec_policy_info\{worker="(\d)",fingerprint="(\w+)",policy="run"\} 1.0', text))


def test_every_worker_answers_samples_and_logs_on_its_own(server: ServerProcess) -> None:
    folder = server.folder / "log"  # type: ignore[attr-defined]
    before = len(read_records(folder)[0])
    lists: list[str] = []
    for _ in range(60):  # each on a new connection
        response = httpx.post(f"{server.address}/v1/recommend", json=REQUEST)
        lists.append(str([item["item"] for item in response.json()["items"]]))
    assert len(set(lists)) == 60, "the workers have different generators"
    processes = {file.name.split("-")[2] for file in folder.iterdir() if file.stat().st_size}
    assert {str(child) for child in children(server.child.pid)} <= processes, "one file per worker"
    assert len(read_records(folder)[0]) == before + 60
    pattern = r'offrec_requests_total\{worker="(\d)",path="/v1/recommend",status="200"\} (\d+)'

    def counts() -> dict[str, str]:
        return dict(re.findall(pattern, httpx.get(f"{server.address}/metrics").text))

    wait_until(lambda: set(counts()) == {"0", "1"} and sum(map(int, counts().values())) >= 60)


def test_temporary_weights_are_removed_when_the_workers_have_mapped_them(server: ServerProcess) -> None:
    mapped = Path(f"/proc/{children(server.child.pid)[0]}/maps").read_text()
    (folder,) = set(re.findall(r"(/\S*/offrec-serve-\w+)/", mapped))
    assert not Path(folder).exists()


def test_a_killed_worker_is_started_again_and_loses_no_answered_request(server: ServerProcess) -> None:
    folder = server.folder / "log"  # type: ignore[attr-defined]
    victim = children(server.child.pid)[0]
    with under_load(server.address, 6) as load:
        wait_until(lambda: len(load.answered) > 100)
        os.kill(victim, signal.SIGKILL)
        server.wait_for_output(f"(process {victim}) ended by signal 9; it is started again")
        answered = len(load.answered)
        wait_until(lambda: len(children(server.child.pid)) == 2)
        wait_until(lambda: len(load.answered) > answered + 100)
    assert all(isinstance(failure, httpx.TransportError) for failure in load.failures)
    assert len(load.failures) < 6, "only clients of the killed worker"
    records, torn = read_records(folder)
    assert {request_id for request_id, _ in load.answered} <= {record["request_id"] for record in records}
    assert torn <= 1
    wait_until(lambda: sum(f"-{victim}-0.jsonl.open was left by a server" in line for line in server.output) == 1)
    assert sum(f"(process {victim})" in line for line in server.output) == 1


def test_a_hung_worker_is_killed_and_started_again(server: ServerProcess) -> None:
    victim, other = children(server.child.pid)
    os.kill(victim, signal.SIGSTOP)
    server.wait_for_output(f"(process {victim}) has not responded for")
    server.wait_for_output(f"(process {victim}) ended by signal 9; it is started again")
    wait_until(lambda: len(children(server.child.pid)) == 2)
    assert other in children(server.child.pid), "a worker that responds is not killed"
    for _ in range(20):
        assert httpx.post(f"{server.address}/v1/recommend", json=REQUEST).status_code == 200


def test_workers_that_were_stopped_with_the_supervisor_continue(server: ServerProcess) -> None:
    """As by Ctrl-Z: heartbeats are then older than --hang-seconds, although nothing hangs."""
    workers = children(server.child.pid)
    for process in (server.child.pid, *workers):
        os.kill(process, signal.SIGSTOP)
    time.sleep(2.5)
    for process in (server.child.pid, *workers):
        os.kill(process, signal.SIGCONT)
    time.sleep(2.5)
    assert children(server.child.pid) == workers


def test_all_workers_use_a_new_list_at_once(server: ServerProcess) -> None:
    for item in (101, 102, 103):
        assert httpx.put(f"{server.address}/v1/lists/one", json=[item]).status_code == 200
        for _ in range(8):  # each on a new connection, so that both workers answer
            response = httpx.post(f"{server.address}/v1/recommend", json={"allow": "one"})
            assert [row["item"] for row in response.json()["items"]] == [item]


def test_a_batch_that_never_ends_counts_as_hung() -> None:
    """The event loop still runs, so it must withhold the heartbeats until the batch ends."""
    beats: list[int] = []

    class Stuck:
        release = threading.Event()

        def rank(self, queries: Sequence[Query]) -> list[QueryResult]:
            self.release.wait()
            return [QueryResult([0], [0.0], None) for _ in queries]

    async def wait_for_beats(count: int) -> None:
        while len(beats) < count:
            await asyncio.sleep(0.005)

    async def ask() -> None:
        batcher = MicroBatcher(
            Stuck(), max_batch=1, max_waiting=9, wait_seconds=0.0, observe=lambda size, seconds: None
        )
        policies: Any = SimpleNamespace(slots={"a": SimpleNamespace(batcher=batcher)})
        policies.longest_batch = partial(PolicySlots.longest_batch, policies)
        service: Any = SimpleNamespace(policies=policies)
        place: Any = SimpleNamespace(index=3, heartbeats=SimpleNamespace(beat=beats.append))
        options: Any = SimpleNamespace(hang_seconds=0.04)
        heartbeats = asyncio.ensure_future(SupervisorLink(place, service, options)._send_heartbeats())
        await asyncio.wait_for(wait_for_beats(3), 10)
        task = asyncio.ensure_future(batcher.rank(Query([], 1)))
        while batcher.seconds_computing() < options.hang_seconds:
            await asyncio.sleep(0.005)
        before = len(beats)
        await asyncio.sleep(0.1)  # ten heartbeats
        after = len(beats)
        Stuck.release.set()
        await task
        assert after == before
        await asyncio.wait_for(wait_for_beats(before + 3), 10)
        heartbeats.cancel()
        batcher.close()

    asyncio.run(ask())
    assert set(beats) == {3}


def test_reloads_reach_all_workers_or_none(server: ServerProcess, runs: dict[str, Path]) -> None:
    served = server.folder / "served"  # type: ignore[attr-defined]
    client = httpx.Client(base_url=server.address, timeout=30)
    with client, under_load(server.address, 4) as load:
        old = set(fingerprints(server).values())
        assert len(old) == 1
        replace_run(runs["second"], served)
        (new,) = client.post("/v1/reload", json={"policy": "run"}).json()["reloaded"].values()
        assert new not in old
        wait_until(lambda: fingerprints(server) == {"0": new, "1": new})
        (served / "best.safetensors").write_bytes(b"damaged")
        response = client.post("/v1/reload", json={})
        assert response.status_code == 409
        assert "served/best.safetensors" in response.json()["error"]
        assert str(served.parent) not in response.text
        assert fingerprints(server) == {"0": new, "1": new}
        replace_run(runs["first"], served)
        server.child.send_signal(signal.SIGHUP)
        wait_until(lambda: set(fingerprints(server).values()) == old)
        answered = len(load.answered)
        wait_until(lambda: len(load.answered) > answered + 50)
    assert load.failures == []
    assert load.fingerprints == {new, *old}
    assert not list((server.folder / "tmp").glob("offrec-serve-*")), "no copies of the weights remain"  # type: ignore[attr-defined]


def test_a_worker_that_restarts_after_a_reload_has_the_new_policy(server: ServerProcess, runs: dict[str, Path]) -> None:
    served = server.folder / "served"  # type: ignore[attr-defined]
    replace_run(runs["second"], served)
    (new,) = httpx.post(f"{server.address}/v1/reload", json={}).json()["reloaded"].values()
    shutil.rmtree(served)  # the supervisor needs no files for a restart
    before = children(server.child.pid)
    os.kill(before[1], signal.SIGKILL)
    wait_until(lambda: len(children(server.child.pid)) == 2 and before[1] not in children(server.child.pid))
    wait_until(lambda: fingerprints(server) == {"0": new, "1": new})
    answers = [httpx.post(f"{server.address}/v1/recommend", json=REQUEST).json()["fingerprint"] for _ in range(20)]
    assert set(answers) == {new}
    replace_run(runs["first"], served)
    assert httpx.post(f"{server.address}/v1/reload", json={}).status_code == 200


def test_workers_end_with_the_supervisor(runs: dict[str, Path], tmp_path: Path) -> None:
    with ServerProcess(runs["first"], "--workers", 2, "--log", tmp_path) as server:
        assert httpx.post(f"{server.address}/v1/recommend", json=REQUEST).status_code == 200
        workers = children(server.child.pid)
        assert len(workers) == 2
        server.child.kill()
        server.child.wait()
        wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 30)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1, "the log of the only request is complete"
    assert not list(tmp_path.glob("*.open"))


def test_a_full_disk_of_one_worker_stops_the_server_if_it_is_told_to(runs: dict[str, Path], tmp_path: Path) -> None:
    with ServerProcess(runs["first"], "--workers", 2, "--log", tmp_path, "--on-log-failure", "stop") as server:
        for worker in children(server.child.pid):
            resource.prlimit(worker, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        httpx.post(f"{server.address}/v1/recommend", json=REQUEST)
        assert server.child.wait(60) == 1
        server.reader.join()
    assert "offrec: Stopped: the decision log cannot be written (File too large)." in "".join(server.output)


def test_workers_need_a_cpu(runs: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="--workers 2 serves on the CPU, not on cuda; use one worker for a GPU"):
        Serve((str(runs["first"]),), workers=2, port=0, device="cuda").run()


def test_mapped_weights_give_the_same_scores_and_need_no_memory(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", list(range(2000)), network_width=64, algorithm_name="dc")
    policy = load(run, "cpu")
    expected = policy.recommend([3, 4], 20)
    file = tmp_path / "weights"
    write_tensors(policy.agent, file)
    map_tensors(policy.agent, file)
    assert policy.recommend([3, 4], 20) == expected
    largest = max(policy.agent.parameters(), key=torch.numel)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(file))]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in mapped]
    assert any(start <= largest.data_ptr() < end for start, end in ranges)
    file.unlink()
    assert policy.recommend([3, 4], 20) == expected


def test_metrics_of_workers_are_merged() -> None:
    text = '# HELP a_total A.\n# TYPE a_total counter\na_total{x="{1}"} 2.0\n# HELP b B.\n# TYPE b gauge\nb 1.5\n'
    shared = SharedMetrics(3)
    shared.write(0, text.encode())
    shared.write(1, text.replace("1.5", "7.0").encode())
    assert shared.read().decode().splitlines() == [
        "# HELP a_total A.",
        "# TYPE a_total counter",
        'a_total{worker="0",x="{1}"} 2.0',
        'a_total{worker="1",x="{1}"} 2.0',
        "# HELP b B.",
        "# TYPE b gauge",
        'b{worker="0"} 1.5',
        'b{worker="1"} 7.0',
    ]
    HEADER.pack_into(shared.memory, 0, 10, 12345)  # killed while writing
    assert b'worker="0"' not in shared.read()
    assert add_label("", "worker", "1") == merge_metrics([]) == ""
