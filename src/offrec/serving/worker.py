"""A worker process of a server: it answers requests and reloads policies together with the other workers.

The supervisor (`offrec.serving.supervisor`) forks the workers after it has loaded the policies. Both sides exchange
JSON objects over a pair of sockets:

    worker → supervisor   started · reload (policy) · prepared · failed (reason) · stopping (reason)
    supervisor → worker   prepare (policies) · swap · discard · answer (reloaded, or status and error)

A reload has two steps. Every worker prepares the new policies; if all of them can, all of them swap.
"""

import asyncio
import json
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import uvicorn

from offrec.console import Console
from offrec.data.json_files import parse_json
from offrec.errors import InputError, first_line
from offrec.models.network_policy import NetworkPolicy
from offrec.serving import served_policy
from offrec.serving.address import request_checks
from offrec.serving.app import create_app
from offrec.serving.engine import Engine
from offrec.serving.errors import RequestError
from offrec.serving.heartbeats import Heartbeats
from offrec.serving.options import ServerOptions
from offrec.serving.recent_requests import RecentRequests
from offrec.serving.served_policy import ServedPolicy
from offrec.serving.server import create_service, fit_open_files, http_config
from offrec.serving.service import Service
from offrec.serving.shared_metrics import SharedMetrics
from offrec.serving.shared_tensors import map_tensors

MESSAGE_BYTES = 1 << 20
METRICS_SECONDS = 1.0  # the age of the metrics that one worker shows of the others
HEARTBEATS = 4  # per hang_seconds, at least


class WorkerConsole(Console):
    """Prints messages with the number of the worker.

    Args:
        worker: The number.
        quiet: Print nothing.
    """

    def __init__(self, worker: int, quiet: bool = False) -> None:
        super().__init__(quiet)
        self.worker = worker

    def line(self, text: str) -> None:
        """Print one message."""
        super().line(f"worker {self.worker}: {text}")


@dataclass(frozen=True)
class WorkerPlace:
    """What a worker shares with the other processes.

    Attributes:
        index: The number of the worker.
        listener: Its listening socket.
        channel: Its end of the sockets that connect it with the supervisor.
        metrics: The metrics of all workers.
        heartbeats: The heartbeats of all workers.
        requests: The ids of the lists that all workers have logged.
    """

    index: int
    listener: socket.socket
    channel: socket.socket
    metrics: SharedMetrics
    heartbeats: Heartbeats
    requests: RecentRequests


def run_worker(options: ServerOptions, served: list[ServedPolicy], place: WorkerPlace, console: Console) -> None:
    """Answer requests until the supervisor ends or a signal arrives.

    Args:
        options: The options of the server, with the limits of one worker.
        served: The policies, which the supervisor has loaded.
        place: What the worker shares with the other processes.
        console: Prints failures.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor reloads
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again after its own handler
        signal.signal(number, lambda *_: None)
    torch.set_num_threads(options.threads or 1)
    # The generators are copies of the supervisor's, so that all workers would sample the same lists.
    served = [replace(one, engine=Engine(one.policy, options.seed, one.engine.screening)) for one in served]
    servers: list[uvicorn.Server] = []

    def on_log_failure(reason: str) -> None:
        if options.on_log_failure == "stop":
            service.stop(f"the decision log cannot be written ({reason})")
            link.send({"event": "stopping", "reason": service.stop_reason})
            for server in servers:
                server.should_exit = True

    service = create_service(options, console, on_log_failure, served, place.requests)
    link = SupervisorLink(place, service, options)
    app = create_app(service, request_checks(options), link.lifespan)
    config = http_config(app, service, fit_open_files(options.connections, console), console)
    servers.append(uvicorn.Server(config))
    link.server = servers[0]
    if service.stop_reason is None:
        servers[0].run(sockets=[place.listener])


class SupervisorLink:
    """Connects the service of a worker with the supervisor.

    Args:
        place: What the worker shares with the other processes.
        service: The service of the worker.
        options: The options of the server.
    """

    def __init__(self, place: WorkerPlace, service: Service, options: ServerOptions) -> None:
        self.place, self.service, self.options = place, service, options
        self.server: uvicorn.Server | None = None
        self.prepared: list[ServedPolicy] = []
        self.reloads: deque[asyncio.Future[dict[str, Any]]] = deque()  # requests that wait for the supervisor's answer
        self.tasks: set[asyncio.Task[None]] = set()  # the event loop keeps no strong reference to its tasks
        service.request_reload = self.request_reload
        service.read_metrics = self.read_metrics

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Listen to the supervisor while the application runs."""
        loop = asyncio.get_running_loop()
        self.place.channel.setblocking(False)
        loop.add_reader(self.place.channel, self._receive)
        self._start(self._publish_metrics())
        self._start(self._send_heartbeats())
        self.send({"event": "started"})
        yield
        loop.remove_reader(self.place.channel)
        await asyncio.to_thread(self.service.close)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the supervisor; without one, this process ends anyway."""
        try:
            self.place.channel.send(json.dumps(message).encode())
        except OSError:
            self._stop()

    async def request_reload(self, policy: str | None) -> dict[str, Any]:
        """Ask the supervisor to reload policies in all workers, and wait for its answer."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.reloads.append(future)
        self.send({"event": "reload", "policy": policy})
        answer = await future
        if "error" in answer:
            self.service.metrics.count_reload(succeeded=False)
            raise RequestError(answer["status"], answer["error"])
        return {"reloaded": answer["reloaded"]}

    def read_metrics(self) -> bytes:
        """Return the metrics of all workers: those of this one as they are now, the others of the last second."""
        self.place.metrics.write(self.place.index, self.service.metrics.text())
        return self.place.metrics.read()

    async def _publish_metrics(self) -> None:
        while True:
            self.place.metrics.write(self.place.index, self.service.metrics.text())
            await asyncio.sleep(METRICS_SECONDS)

    async def _send_heartbeats(self) -> None:
        """Send heartbeats from the event loop, unless a batch has been computed for too long."""
        limit = self.options.hang_seconds
        while True:
            if self.service.policies.longest_batch() < limit:
                self.place.heartbeats.beat(self.place.index)
            await asyncio.sleep(min(1.0, limit / HEARTBEATS))

    def _receive(self) -> None:
        try:
            data = self.place.channel.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the supervisor ended
            self._stop()
            return
        message = parse_json(data)
        if message["do"] == "prepare":
            self._start(self._prepare(message["policies"]))
        elif message["do"] == "swap":
            self.service.policies.swap(self.prepared)
            self.prepared = []
        elif message["do"] == "discard":
            self.prepared = []
        elif self.reloads and not (future := self.reloads.popleft()).done():
            future.set_result(message)

    async def _prepare(self, policies: dict[str, dict[str, Any]]) -> None:
        try:
            self.prepared = [
                await asyncio.to_thread(load_shared, self.options, name, **facts) for name, facts in policies.items()
            ]
        except Exception as error:  # the old policies must remain
            self.send({"event": "failed", "reason": first_line(error)})
        else:
            self.send({"event": "prepared"})

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _stop(self) -> None:
        if self.server is not None:
            self.server.should_exit = True
            asyncio.get_running_loop().remove_reader(self.place.channel)


def load_shared(options: ServerOptions, name: str, fingerprint: str, tensors: str | None) -> ServedPolicy:
    """Load a policy that the supervisor has loaded, and share its weights.

    Args:
        options: The options of the server.
        name: The name of the policy.
        fingerprint: The fingerprint that the supervisor computed.
        tensors: The file with the weights; None for a policy without a network.

    Returns:
        The policy.

    Raises:
        InputError: If the policy cannot be loaded, or has changed since the supervisor loaded it.
    """
    served = served_policy.load_policy(name, options.sources[name], "cpu", options.seed, options.new_items)
    if served.fingerprint != fingerprint:
        raise InputError(f"{served.source} changed during the reload; reload again.")
    if tensors is not None:
        assert isinstance(served.policy, NetworkPolicy)
        map_tensors(served.policy.agent, Path(tensors))
    return served
