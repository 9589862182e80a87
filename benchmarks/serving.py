"""Compare the server under load with a plain server that makes a forward pass for each request.

    python benchmarks/serving.py [--items 100000 1000000] [--seconds 8] [--out results/serving.json]

A GRU with random weights, width 64, histories of 10, lists of 20. Both servers run on uvicorn with the same run; the
plain one calls `policy.recommend` in a FastAPI route. Each connection sends its next request as soon as it is answered;
the clients share the machine's cores with the server. The two are measured in turns, `--rounds` times, and the median
round is reported. `cpu_ms` is the server's CPU time per request, which depends least on other load; `waiting` is the
load average when the round began. Memory is the server's peak, and its use before the first request.
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
CONNECTIONS = (1, 16, 64)
WARM_UP = 1.5  # seconds
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


def bodies(items: int, sample: bool) -> list[list[bytes]]:
    random = np.random.default_rng(0)
    histories = random.integers(items, size=(max(CONNECTIONS), 50, HISTORY)).tolist()
    more = {"sample": True} if sample else {}
    return [[json.dumps({"history": one, "k": K, **more}).encode() for one in mine] for mine in histories]


class Server:
    def __init__(self, kind: str, run: Path, port: int, threads: int, log: Path) -> None:
        command = [sys.executable, "-c", PLAIN, str(run), str(port), str(threads)]
        if kind == "offrec":
            words = ["serve", str(run), "--port", str(port), "--threads", str(threads), "--log", str(log)]
            command = [sys.executable, "-m", "offrec", *words]
        self.port = port
        self.child = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
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
        total, count = (re.search(rf"offrec_batch_size_{end}{{[^}}]*}} ([\d.]+)", text) for end in ("sum", "count"))
        return (float(total[1]), float(count[1])) if total and count else (0.0, 0.0)

    def cpu(self) -> float:
        """Return the CPU time of the server so far, in seconds."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> dict[str, float]:
        peak = self._memory("VmHWM")
        self.child.terminate()
        self.child.wait()
        return {"resting_mb": self.resting, "peak_mb": peak}


def measure(run: Path, items: int, args: argparse.Namespace, log: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    kinds = {"plain": args.plain_threads, "offrec": args.threads}
    for round_ in range(args.rounds):
        for index, (kind, threads) in enumerate(kinds.items()):
            server = Server(kind, run, 18200 + index, threads, log)
            for sample in (False, True) if kind == "offrec" else (False,):
                for connections in CONNECTIONS:
                    before = server.batch_sum_and_count() if kind == "offrec" else None
                    figures: dict[str, Any] = {"waiting": os.getloadavg()[0]}
                    figures |= asyncio.run(load(server, connections, args.seconds, bodies(items, sample)))
                    if before is not None:
                        after = server.batch_sum_and_count()
                        figures["mean_batch"] = (after[0] - before[0]) / (after[1] - before[1])
                    row = {
                        "items": items,
                        "server": kind,
                        "sample": sample,
                        "connections": connections,
                        "round": round_,
                    }
                    rows.append({**row, **figures})
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            memory = server.stop()
            for row in rows:
                if row["server"] == kind and row["round"] == round_:
                    row |= memory
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    medians: list[dict[str, Any]] = []
    keys = ("items", "server", "sample", "connections")
    for key in dict.fromkeys(tuple(row[name] for name in keys) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in keys) == key]
        names = [name for name in mine[0] if name not in (*keys, "round")]
        medians.append(dict(zip(keys, key, strict=True)) | {n: round(median(r[n] for r in mine), 3) for n in names})
    plain = {(row["items"], row["connections"]): row for row in medians if row["server"] == "plain"}
    for row in medians:
        if row["server"] == "offrec" and not row["sample"]:
            other = plain[row["items"], row["connections"]]
            row["times_plain"] = round(row["requests_per_second"] / other["requests_per_second"], 2)
            row["cpu_of_plain"] = round(row["cpu_ms"] / other["cpu_ms"], 3)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plain-threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for items in args.items:
            settings = {"network_width": WIDTH, "network_history": 50}
            run = write_run(Path(folder) / str(items), list(range(items)), **settings)
            rows += measure(run, items, args, Path(folder) / "log")
    results = {"cores": os.cpu_count(), "rounds": args.rounds, "rows": summary(rows)}
    print(json.dumps(results, indent=1))
    if args.out is not None:
        write_results(args.out, results, {"script": script_arguments(args)})


if __name__ == "__main__":
    main()
