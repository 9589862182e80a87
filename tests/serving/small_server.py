"""Servers for tests: in a thread of this process, or in a process of their own on a free port."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from offrec.console import Console
from offrec.data.line_checksums import is_sealed
from offrec.serving.address import request_checks
from offrec.serving.app import create_app
from offrec.serving.decision_log import DecisionLog, DecisionLogOptions
from offrec.serving.options import ServerOptions
from offrec.serving.served_policy import Source
from offrec.serving.server import create_service, http_config
from offrec.serving.service import Service


@contextmanager
def open_service(sources: Mapping[str, Source], **options: Any) -> Iterator[Service]:
    """A service without HTTP."""
    service = create_service(ServerOptions(sources, device="cpu", **options), Console(quiet=True))
    try:
        yield service
    finally:
        service.close()


@contextmanager
def open_client(sources: Mapping[str, Source], **options: Any) -> Iterator[httpx.Client]:
    """A client of a server that runs in a thread of this process."""
    server_options = ServerOptions(sources, device="cpu", **options)
    with open_service(sources, **options) as service:
        app = create_app(service, request_checks(server_options))
        config = http_config(app, service, server_options.connections, Console(quiet=True))
        config.timeout_graceful_shutdown = 1
        with serve_in_thread(config) as address, httpx.Client(base_url=address, timeout=30) as client:
            yield client


@contextmanager
def serve_in_thread(config: uvicorn.Config) -> Iterator[str]:
    """Run a server and yield its address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class ServerProcess:
    """`offrec serve` in a process of its own; `output` has the lines of its standard error."""

    def __init__(self, *arguments: str | Path, **options: Any) -> None:
        command = [sys.executable, "-m", "offrec", "serve", *map(str, arguments), "--port", "0", "--threads", "1"]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
        self.output: list[str] = []
        self.address = ""
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.output.append(line)
            if match := re.search(r"Serving on (\S+);", line):
                self.address = match[1]
                break
        assert self.address, "".join(self.output)
        self.reader = threading.Thread(target=lambda: self.output.extend(self.child.stderr or []), daemon=True)
        self.reader.start()
        wait_until(lambda: httpx.get(f"{self.address}/readyz").status_code == 200)

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.reader.join()
        if self.child.stderr is not None:
            self.child.stderr.close()

    def wait_for_output(self, text: str) -> None:
        wait_until(lambda: any(text in line for line in self.output))


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < end, f"the condition was not met within {seconds:g} seconds"
        time.sleep(0.02)


def read_records(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """All complete records of a decision log, and the number of files whose last line is incomplete.

    End records are checked and left out.
    """
    records, torn = [], 0
    for file in sorted(folder.iterdir()):
        *lines, rest = file.read_bytes().split(b"\n")
        assert all(map(is_sealed, lines))
        parsed = [{name: value for name, value in json.loads(line).items() if name != "crc"} for line in lines]
        if parsed and parsed[-1]["kind"] == "end":
            assert parsed.pop()["count"] == len(parsed)
        records += parsed
        torn += bool(rest)
    return records, torn


def open_log(folder: Path, **options: Any) -> DecisionLog:
    """A decision log that is flushed every 10 ms."""
    return DecisionLog(folder, DecisionLogOptions(**{"flush_seconds": 0.01, **options}), lambda line: None)
