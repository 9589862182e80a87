"""Servers to ask: in this process, or in one of their own on a free port."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from offrec.console import Console
from offrec.serving.app import application
from offrec.serving.decision_log import DecisionLog, DecisionLogOptions
from offrec.serving.server import ServerOptions, make_service
from offrec.serving.service import Service


@contextmanager
def service_of(runs: dict[str, Path], **options: Any) -> Iterator[Service]:
    service = make_service(ServerOptions(runs, device="cpu", **options), Console(quiet=True))
    try:
        yield service
    finally:
        service.close()


@contextmanager
def client_of(runs: dict[str, Path], token: str | None = None, **options: Any) -> Iterator[httpx.Client]:
    """A server in a thread of this process, and who asks it."""
    with (
        service_of(runs, **options) as service,
        served(application(service, token)) as address,
        httpx.Client(base_url=address, timeout=30) as client,
    ):
        yield client


@contextmanager
def served(app: Any) -> Iterator[str]:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


class Process:
    """`offrec serve` in a process of its own."""

    def __init__(self, *words: str | Path, **options: Any) -> None:
        command = [sys.executable, "-m", "offrec", "serve", *map(str, words), "--port", "0", "--threads", "1"]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
        self.said: list[str] = []
        self.address = ""
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.said.append(line)
            if found := re.search(r"Serving on (\S+);", line):
                self.address = found[1]
                break
        assert self.address, "".join(self.said)
        self.reader = threading.Thread(target=lambda: self.said.extend(self.child.stderr or []), daemon=True)
        self.reader.start()
        until(lambda: httpx.get(f"{self.address}/readyz").status_code == 200)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.reader.join()
        if self.child.stderr is not None:
            self.child.stderr.close()

    def wait_for(self, text: str) -> None:
        until(lambda: any(text in line for line in self.said))


def until(holds: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def records(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """All whole records of a log, and how many lines were torn: only a file's last may be."""
    found, torn = [], 0
    for file in sorted(folder.iterdir()):
        *lines, rest = file.read_bytes().split(b"\n")
        found += [json.loads(line) for line in lines]
        torn += bool(rest)
    return found, torn


def quick_log(folder: Path, **options: Any) -> DecisionLog:
    return DecisionLog(folder, DecisionLogOptions(**{"flush_seconds": 0.01, **options}), lambda line: None)


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
