"""A load test: clients that send requests without pause, next to idle and slow ones and reloads; kill -9 at the end."""

import asyncio
import json
import os
import random
import re
import signal
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from small_server import ServerProcess

from offrec.data import decision_log_files
from offrec.data.decision_log_files import RecordCounts

RECONNECT_SECONDS = 0.3
HALF_A_HEADER = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\nx: "


@dataclass(frozen=True)
class LoadPlan:
    """What the clients do.

    Attributes:
        items: The number of items of the served catalogue, whose ids are 0, 1, …
        connections: The numbers of clients, one after the other.
        seconds: The duration of each.
        idle: The number of further connections: a half is silent, a half sends a byte of a header per second. They
            connect again when they are disconnected.
        reload_seconds: The time between reloads.
    """

    items: int
    connections: tuple[int, ...]
    seconds: float
    idle: int
    reload_seconds: float


@dataclass
class LoadCounts:
    """What happened to the clients. `lists` and `events` are the ids of answered requests."""

    lists: set[str] = field(default_factory=set)
    events: set[str] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)
    reloads: int = 0
    idle_connections: int = 0
    memory_mb: float = 0.0
    is_killed: bool = False


def run_load(server: ServerProcess, plan: LoadPlan) -> tuple[list[dict[str, float]], LoadCounts]:
    """Run the plan against a server, then kill all of its processes while the last clients wait for responses.

    Returns:
        Figures for each number of clients, and the counts.
    """
    return asyncio.run(_run_load(server, plan))


async def _run_load(server: ServerProcess, plan: LoadPlan) -> tuple[list[dict[str, float]], LoadCounts]:
    port, counts = int(server.address.rpartition(":")[2]), LoadCounts()
    side_tasks = [asyncio.create_task(_idle_client(port, number % 2 == 1, counts)) for number in range(plan.idle)]
    side_tasks.append(asyncio.create_task(_reload(port, plan.reload_seconds, counts)))
    side_tasks.append(asyncio.create_task(_measure_memory(server.child.pid, counts)))
    await asyncio.sleep(min(1.0, plan.seconds))
    rows = []
    for number in plan.connections:
        times: list[float] = []
        start, waiting = time.monotonic(), os.getloadavg()[0]
        end = start + plan.seconds
        clients = [_client(port, f"{number}-{n}", end, plan.items, times, counts) for n in range(number)]
        if number != plan.connections[-1]:
            await asyncio.gather(*clients)
        else:
            running = [asyncio.create_task(client) for client in clients]
            await asyncio.sleep(plan.seconds - 0.1)
            counts.is_killed = True
            for process in (server.child.pid, *_children(server.child.pid)):
                os.kill(process, signal.SIGKILL)
            await asyncio.gather(*running)
        p50, p99 = np.percentile(times, [50, 99]) * 1000
        figures = {"connections": number, "waiting": waiting, "lists_per_second": len(times) / plan.seconds}
        rows.append({**figures, "p50_ms": p50, "p99_ms": p99, "max_ms": 1000 * max(times)})
    for task in side_tasks:
        task.cancel()
    await asyncio.gather(*side_tasks, return_exceptions=True)
    return rows, counts


async def _client(port: int, name: str, end: float, items: int, times: list[float], counts: LoadCounts) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    generator, number = random.Random(name), 0
    try:
        while time.monotonic() < end:
            number += 1
            request_id = f"{name}-{number}"
            history = [generator.randrange(items) for _ in range(generator.randrange(12))]
            ids = {"session_id": request_id, "request_id": request_id}
            start = time.perf_counter()
            body = {"history": history, "k": 10, "sample": True, **ids}
            answer = await _post(reader, writer, "/v1/recommend", body)
            times.append(time.perf_counter() - start)
            counts.lists.add(request_id)
            if number % 3 == 0:
                event = {"item": answer["items"][0]["item"], "behaviour": "click", **ids}
                await _post(reader, writer, "/v1/events", event)
                counts.events.add(request_id)
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        if not counts.is_killed:
            counts.errors[f"{type(error).__name__}: {error}"] += 1
    finally:
        writer.close()


async def _post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: Any) -> Any:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    writer.write(head.encode() + b"\r\n\r\n" + data)
    received = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", received)
    content = await reader.readexactly(int(length[1]) if length else 0)
    if not received.startswith(b"HTTP/1.1 200 "):
        raise ValueError(f"{received[9:12].decode()} {content.decode()}")
    return json.loads(content)


async def _idle_client(port: int, sends_bytes: bool, counts: LoadCounts) -> None:
    while not counts.is_killed:
        writer = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            counts.idle_connections += 1
            writer.write(HALF_A_HEADER if sends_bytes else b"")
            while not reader.at_eof():
                try:
                    await asyncio.wait_for(reader.read(1000), 1.0)
                except TimeoutError:
                    writer.write(b"x" if sends_bytes else b"")
        except OSError:
            pass
        finally:
            if writer is not None:
                writer.close()
        await asyncio.sleep(RECONNECT_SECONDS)


async def _reload(port: int, seconds: float, counts: LoadCounts) -> None:
    while not counts.is_killed:
        await asyncio.sleep(seconds)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with closing(writer):
                await _post(reader, writer, "/v1/reload", {})
            counts.reloads += 1
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            if not counts.is_killed:
                counts.errors[f"reload: {type(error).__name__}: {error}"] += 1


async def _measure_memory(process: int, counts: LoadCounts) -> None:
    """Record the peak of the memory of all processes; memory that they share counts once."""
    while not counts.is_killed:
        total = 0
        for one in (process, *_children(process)):
            match = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{one}/smaps_rollup").read_text(), re.MULTILINE)
            total += int(match[1]) if match else 0
        counts.memory_mb = max(counts.memory_mb, total / 1024)
        await asyncio.sleep(0.5)


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def check_log(folder: Path, counts: LoadCounts) -> dict[str, int]:
    """Read the decision log with its checksums, and compare it with the answered requests.

    Returns:
        The numbers of records, of incomplete last lines, and of answered lists and events that are missing.
    """
    read, logged = RecordCounts(), {"list": set[str](), "event": set[str]()}
    for source in decision_log_files.find([folder]):
        for frame in decision_log_files.read(source, read):
            for kind, request in frame.select("kind", "request").iter_rows():
                logged[kind].add(request)
    return {
        "records": read.records,
        "incomplete_lines": read.incomplete,
        "missing_lists": len(counts.lists - logged["list"]),
        "missing_events": len(counts.events - logged["event"]),
    }
