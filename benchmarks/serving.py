"""Compare the server under load with a plain server that makes a forward pass for each request.

    python benchmarks/serving.py [--items 100000 1000000] [--seconds 8] [--out FILE]
    python benchmarks/serving.py --servers offrec before durable --before ../old/src --items 1000 --out …

A GRU with random weights, width 64, histories of 10, lists of 20. Both servers run on uvicorn with the same run; the
plain one calls `policy.recommend` in a FastAPI route. Each connection sends its next request as soon as it is answered;
the clients share the machine's cores with the server. All servers run at the same time, but only one has clients; they
are measured in turns, `--rounds` times, and the median round is reported. `cpu_ms` is the server's CPU time per
request, and `least_cpu_ms` that of the best round, which depends least on other load; `waiting` is the load average
when the round began. Memory is the server's peak, and its use before the first request.

`lists` requests need no probabilities (`"probability": false`), `sampled` requests sample their lists.

Further servers: `before` is offrec from another source folder, with a run that its own version writes, `unlogged` has
no decision log, `durable` answers after an fsync, and `workers` has two processes. `network` serves a run without
counted neighbours, like version 0.1, whose lists without probabilities need no sum over the catalogue. `of_offrec`
compares a server with `offrec`: the median over the rounds of the ratio of requests per second, and of the ratio of CPU
time per request, each within one round.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from evidence import script_arguments, write_results

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "serving"))
from random_runs import write_run

HISTORY, K, WIDTH = 10, 20, 64
SETTINGS: dict[str, Any] = {"network_width": WIDTH, "network_history": 50}
CONNECTIONS = (1, 16, 64)
WARM_UP = 0.5  # seconds
REQUESTS = {"best": {}, "lists": {"probability": False}, "sampled": {"sample": True}}
WRITE_RUN = """
import sys
sys.path.insert(0, sys.argv[1])
from random_runs import write_run
from pathlib import Path
write_run(Path(sys.argv[2]), list(range(int(sys.argv[3]))), network_width=int(sys.argv[4]), network_history=50)
"""
OPTIONS = {
    "offrec": [],
    "network": [],
    "before": [],
    "unlogged": [],
    "durable": ["--durable"],
    "workers": ["--workers", "2"],
}
PLAIN = """
import sys, torch, uvicorn, offrec
from fastapi import FastAPI
from pydantic import BaseModel
torch.set_num_threads(int(sys.argv[3]))
policy = offrec.load(sys.argv[1], "cpu")
policy.recommend([1, 2], 5)
class Query(BaseModel):
    history: list[int] = []
    k: int = 10
    sample: bool = False
app = FastAPI()
@app.post("/v1/recommend")
def recommend(query: Query):
    return policy.recommend(query.history, query.k).as_json()
@app.get("/readyz")
def ready():
    return {}
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""


async def client(port: int, bodies: list[bytes], end: float, times: list[tuple[float, float]]) -> None:
    """Send requests until `end`, and record when each was sent and when it was answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while time.perf_counter() < end:
        body = bodies[number % len(bodies)]
        number += 1
        start = time.perf_counter()
        writer.write(
            b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        assert head.startswith(b"HTTP/1.1 200"), head
        assert length is not None
        await reader.readexactly(int(length[1]))
        times.append((start, time.perf_counter()))
    writer.close()


async def load(server: "Server", connections: int, seconds: float, bodies: list[list[bytes]]) -> dict[str, float]:
    times: list[tuple[float, float]] = []
    start = time.perf_counter() + WARM_UP
    end = start + seconds

    async def processor_time() -> float:
        await asyncio.sleep(start - time.perf_counter())
        before = server.cpu()
        await asyncio.sleep(end - time.perf_counter())
        return server.cpu() - before

    clients = (client(server.port, bodies[n], end, times) for n in range(connections))
    cpu, *_ = await asyncio.gather(processor_time(), *clients)
    count = sum(start <= answered < end for _, answered in times)
    p50, p99 = np.percentile([answered - sent for sent, answered in times if answered >= start], [50, 99]) * 1000
    per_request = {"requests_per_second": count / seconds, "cpu_ms": 1000 * cpu / count}
    return {**per_request, "p50_ms": float(p50), "p99_ms": float(p99)}


def bodies(items: int, kind: str) -> list[list[bytes]]:
    random = np.random.default_rng(0)
    histories = random.integers(items, size=(max(CONNECTIONS), 50, HISTORY)).tolist()
    more = REQUESTS[kind]
    return [[json.dumps({"history": one, "k": K, **more}).encode() for one in mine] for mine in histories]


class Server:
    def __init__(self, kind: str, run: Path, port: int, args: argparse.Namespace, log: Path) -> None:
        command = [sys.executable, "-c", PLAIN, str(run), str(port), str(args.plain_threads)]
        if kind != "plain":
            words = ["serve", str(run), "--port", str(port), "--threads", str(args.threads), *OPTIONS[kind]]
            words += [] if kind == "unlogged" else ["--log", str(log)]
            command = [sys.executable, "-c", "from offrec.cli import main; main()", *words]  # 0.1 has no `-m offrec`
        environment = {**os.environ, "PYTHONPATH": str(args.before)} if kind == "before" else None
        self.port = port
        self.child = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz").read()
                break
            except OSError:
                assert self.child.poll() is None, "the server ended"
                time.sleep(0.2)
        self.resting = self._memory("VmRSS")

    def _memory(self, name: str) -> float:
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        match = re.search(rf"{name}:\s+(\d+) kB", status)
        assert match is not None
        return int(match[1]) / 1024

    def batch_sum_and_count(self) -> tuple[float, float]:
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics").read().decode()
        values = [re.findall(rf"offrec_batch_size_{end}{{[^}}]*}} ([\d.]+)", text) for end in ("sum", "count")]
        total, count = (sum(map(float, one)) for one in values)  # of all workers
        return total, count

    def cpu(self) -> float:
        """Return the CPU time of the server and its workers so far, in seconds."""
        total = 0
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()
        for process in (self.child.pid, *children):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def stop(self) -> dict[str, float]:
        peak = self._memory("VmHWM")
        self.child.terminate()
        self.child.wait()
        return {"resting_mb": self.resting, "peak_mb": peak}


def measure(run: Path, items: int, args: argparse.Namespace, log: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    servers = {}
    for n, kind in enumerate(args.servers):
        own = run
        if kind == "before":
            own = run_of_before(run.with_name(f"{run.name}-before"), items, args.before)
        elif kind == "network":
            own = write_run(
                run.with_name(f"{run.name}-network"), list(range(items)), **SETTINGS, algorithm_neighbours=0
            )
        servers[kind] = Server(kind, own, 18200 + n, args, log / kind)
    cases = [(kind, "best") for kind in args.servers]
    if "lists" in args.requests and "network" in servers:
        cases.append(("network", "lists"))
    if "sampled" in args.requests and "offrec" in servers:
        cases.append(("offrec", "sampled"))
    for round_ in range(args.rounds):
        for connections in CONNECTIONS:
            for kind, requests in cases if round_ % 2 == 0 else cases[::-1]:
                server = servers[kind]
                before = server.batch_sum_and_count() if kind != "plain" else (0.0, 0.0)
                figures: dict[str, Any] = {"waiting": os.getloadavg()[0]}
                figures |= asyncio.run(load(server, connections, args.seconds, bodies(items, requests)))
                if kind != "plain":
                    after = server.batch_sum_and_count()
                    figures["mean_batch"] = (after[0] - before[0]) / max(1.0, after[1] - before[1])
                row = {"items": items, "server": kind, "requests": requests, "connections": connections}
                rows.append({**row, "round": round_, **figures})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    for kind, server in servers.items():
        memory = server.stop()
        for row in rows:
            if row["server"] == kind:
                row |= memory
    return rows


def run_of_before(run: Path, items: int, source: Path) -> Path:
    """Write the run of the server `before` with its own version, whose tests are next to its source folder."""
    tests = source.parent / "tests" / "serving"
    command = [sys.executable, "-c", WRITE_RUN, str(tests), str(run), str(items), str(WIDTH)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(source)})
    return run


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    medians: list[dict[str, Any]] = []
    keys = ("items", "server", "requests", "connections")
    for key in dict.fromkeys(tuple(row[name] for name in keys) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in keys) == key]
        names = [name for name in mine[0] if name not in (*keys, "round")]
        medians.append(dict(zip(keys, key, strict=True)) | {n: round(median(r[n] for r in mine), 3) for n in names})
        medians[-1]["least_cpu_ms"] = round(min(row["cpu_ms"] for row in mine), 3)
    for row in medians:
        if row["server"] not in ("plain", "offrec") or row["requests"] == "lists":
            row["of_offrec"] = {name: _ratio(rows, row, name) for name in ("requests_per_second", "cpu_ms")}
    plain = {(row["items"], row["connections"]): row for row in medians if row["server"] == "plain"}
    for row in medians:
        if row["server"] == "offrec" and row["requests"] == "best" and plain:
            other = plain[row["items"], row["connections"]]
            row["times_plain"] = round(row["requests_per_second"] / other["requests_per_second"], 2)
            row["cpu_of_plain"] = round(row["cpu_ms"] / other["cpu_ms"], 3)
    return medians


def _ratio(rows: list[dict[str, Any]], row: dict[str, Any], name: str) -> float:
    """Return the median over rounds of the ratio of a server, or a kind of requests, to offrec's best lists."""
    keys = ("items", "connections")
    same = [one for one in rows if all(one[key] == row[key] for key in keys)]
    values = {(one["server"], one["requests"], one["round"]): one[name] for one in same}
    rounds = [round_ for server, requests, round_ in values if (server, requests) == ("offrec", "best")]
    own = row["server"], row["requests"]
    ratio = median(values[*own, round_] / values["offrec", "best", round_] for round_ in rounds)
    return round(ratio, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plain-threads", type=int, default=1)
    parser.add_argument("--servers", nargs="+", choices=["plain", *OPTIONS], default=["plain", "offrec", "network"])
    parser.add_argument("--before", type=Path, help="source folder of the server `before`")
    parser.add_argument("--requests", nargs="*", choices=["lists", "sampled"], default=["lists", "sampled"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for items in args.items:
            run = write_run(Path(folder) / str(items), list(range(items)), **SETTINGS)
            rows += measure(run, items, args, Path(folder) / "log")
    results = {"cores": os.cpu_count(), "rounds": args.rounds, "rows": summary(rows)}
    print(json.dumps(results, indent=1))
    if args.out is not None:
        write_results(args.out, results, {"script": script_arguments(args)})


if __name__ == "__main__":
    main()
