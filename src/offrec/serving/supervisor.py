"""The supervisor of several worker processes: it loads policies, starts and restarts workers, and reloads them."""

import gc
import math
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from offrec.console import Console
from offrec.errors import InputError, RunError, first_line
from offrec.models.network_policy import NetworkPolicy
from offrec.serving import served_policy
from offrec.serving.decision_log import DecisionLog
from offrec.serving.heartbeats import Heartbeats
from offrec.serving.memory import release_memory
from offrec.serving.options import ServerOptions
from offrec.serving.recent_requests import RecentRequests
from offrec.serving.served_policy import ServedPolicy
from offrec.serving.server import SHUTDOWN_SECONDS, announce
from offrec.serving.shared_metrics import SharedMetrics
from offrec.serving.shared_tensors import map_tensors, write_tensors
from offrec.serving.supervised_worker import Message, SupervisedWorker
from offrec.serving.worker import WorkerConsole, WorkerPlace, run_worker

RELOAD_SECONDS = 300.0  # a worker that needs longer to load a policy is killed and started again
CONTINUE_SECONDS = 2.0  # from the first sign that a worker hangs until it is killed
RESTART_SECONDS = 1.0  # between two starts of a worker
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass
class Reload:
    """A request to reload policies: of a worker, or of SIGHUP if `worker` is None."""

    policy: str | None = None
    worker: SupervisedWorker | None = field(default=None, repr=False)


class Supervisor:
    """Runs the workers of a server.

    Args:
        options: The options of the server.
        listeners: One listening socket per worker, all on the same port.
        console: Prints the address, reloads, restarts and failures.
    """

    def __init__(self, options: ServerOptions, listeners: list[socket.socket], console: Console) -> None:
        self.options, self.console = options, console
        self.workers = [SupervisedWorker(index, listener) for index, listener in enumerate(listeners)]
        self.metrics, self.heartbeats = SharedMetrics(len(listeners)), Heartbeats(len(listeners))
        self.requests = RecentRequests()
        self.served: dict[str, ServedPolicy] = {}
        self.selector = selectors.DefaultSelector()
        self.reloads: deque[Reload] = deque()
        self.replies: dict[int, Message] = {}  # of workers, to "prepare"
        self.stop_signal: int | None = None
        self.stop_reason: str | None = None

    def run(self) -> None:
        """Load the policies, start the workers and run them until a signal arrives.

        Raises:
            InputError: If a policy cannot be loaded or the decision log cannot be written.
            RunError: If a worker cannot start, or its decision log failed and `on_log_failure` is "stop".
        """
        # With one thread, torch starts no thread pool, which a forked process could not use.
        torch.set_num_threads(1)
        for name in self.options.sources:
            self.served[name] = self._load(name)
        if self.options.log is not None:  # workers open their own files; here only the folder is checked
            DecisionLog(self.options.log, self.options.log_options, self.console.line).close()
        with tempfile.TemporaryDirectory(prefix="offrec-serve-") as folder:
            self._share(list(self.served.values()), Path(folder))
        gc.freeze()  # so that garbage collections do not copy the pages that workers share
        with ExitStack() as stack:
            self._catch_signals(stack)
            if self.options.lists is None:  # all workers must use the same folder
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="offrec-lists-"))
                self.options = replace(self.options, lists=Path(folder))
            try:
                self._run_workers()
            finally:
                self._stop_workers()
        if self.stop_reason is not None:
            raise RunError(f"Stopped: {self.stop_reason}.")
        if self.stop_signal is not None:
            signal.raise_signal(self.stop_signal)

    def _run_workers(self) -> None:
        for worker in self.workers:
            self._start_worker(worker)
        while not all(worker.is_ready for worker in self.workers) and not self._is_stopping():
            self._wait(1.0)
            if any(worker.process is None for worker in self.workers):
                self.stop_reason = self.stop_reason or "a worker process ended during its start"
        if not self._is_stopping():
            announce(list(self.served.values()), self.workers[0].listener, self.console)
        while not self._is_stopping():
            while self.reloads and not self._is_stopping():
                self._reload(self.reloads.popleft())
            self._restart_workers()
            self._wait(RESTART_SECONDS)

    def _is_stopping(self) -> bool:
        return self.stop_signal is not None or self.stop_reason is not None

    # Signals

    def _catch_signals(self, stack: ExitStack) -> None:
        """Let signals wake up the selector, until the stack is closed."""
        receiving, sending = socket.socketpair()
        for end in (receiving, sending):
            end.setblocking(False)
            stack.callback(end.close)
        previous_file = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, previous_file)
        for number in (*STOP_SIGNALS, signal.SIGHUP, signal.SIGCHLD):
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        self.selector.register(receiving, selectors.EVENT_READ, None)
        stack.callback(self.selector.close)

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in STOP_SIGNALS:
                self.stop_signal = number
            elif number == signal.SIGHUP:
                self.reloads.append(Reload())

    # Processes

    def _start_worker(self, worker: SupervisedWorker) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stderr.flush()
        worker.begin()
        self.heartbeats.beat(worker.index)
        process = os.fork()
        if process == 0:
            self._become_worker(worker, ours, theirs)
        theirs.close()
        worker.process, worker.channel = process, ours
        self.selector.register(ours, selectors.EVENT_READ, worker)

    def _become_worker(self, worker: SupervisedWorker, ours: socket.socket, theirs: socket.socket) -> None:
        """Run as the worker; never return, because the stack above belongs to the supervisor."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.selector.close()
            ours.close()
            for other in self.workers:
                if other is not worker:
                    other.listener.close()
                if other.channel is not None:
                    other.channel.close()
            place = WorkerPlace(worker.index, worker.listener, theirs, self.metrics, self.heartbeats, self.requests)
            console = WorkerConsole(worker.index, self.console.quiet)
            run_worker(self._worker_options(worker), list(self.served.values()), place, console)
            code = 0
        except BaseException as error:
            if isinstance(error, InputError):
                self.console.line(f"worker {worker.index} cannot start: {error}")
            elif isinstance(error, (SystemExit, KeyboardInterrupt)):
                code = 0
            else:
                traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stderr.flush()
            os._exit(code)

    def _worker_options(self, worker: SupervisedWorker) -> ServerOptions:
        options, count = self.options, len(self.workers)
        return replace(
            options,
            device="cpu",
            seed=None if options.seed is None else options.seed + worker.index,
            threads=options.threads or max(1, (os.cpu_count() or 1) // count),
            connections=replace(options.connections, connections=math.ceil(options.connections.connections / count)),
        )

    def _restart_workers(self) -> None:
        for worker in self.workers:
            if worker.process is None and time.monotonic() >= worker.started_at + RESTART_SECONDS:
                self._start_worker(worker)

    def _kill_hung(self) -> None:
        """Kill the workers that have not responded for too long; `_remove_dead` then starts them again."""
        for worker in self.workers:
            if worker.process is None or worker.is_hung:
                continue
            age = self.heartbeats.age(worker.index)
            if worker.has_hung(age - self.options.hang_seconds, CONTINUE_SECONDS):
                worker.is_hung = True
                self.console.line(
                    f"worker {worker.index} (process {worker.process}) has not responded for {age:.0f} seconds "
                    "and is killed"
                )
                worker.signal(signal.SIGKILL)

    def _remove_dead(self) -> None:
        for worker in self.workers:
            code = worker.exit_code()
            if code is None:
                continue
            if worker.channel is not None:
                self._read_messages(worker)  # its last ones
                self.selector.unregister(worker.channel)
                worker.channel.close()
            end = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            process, worker.process, worker.channel = worker.process, None, None
            if not self._is_stopping():
                action = "it is started again" if worker.is_ready else "it had not started"
                self.console.line(f"worker {worker.index} (process {process}) ended {end}; {action}")

    def _stop_workers(self) -> None:
        if self.stop_signal is None and self.stop_reason is None:
            self.stop_reason = "the supervisor failed"
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + SHUTDOWN_SECONDS + 5
        while any(worker.process is not None for worker in self.workers):
            if time.monotonic() > deadline:
                self._signal_all(signal.SIGKILL)
            self._wait(0.2)

    def _signal_all(self, number: int) -> None:
        for worker in self.workers:
            worker.signal(number)

    # Messages

    def _wait(self, seconds: float) -> None:
        """Wait for messages, signals and ends of workers, and handle them."""
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                assert isinstance(key.fileobj, socket.socket)
                self._on_signals(key.fileobj.recv(4096))
            else:
                self._read_messages(key.data)
        if not self._is_stopping():
            self._kill_hung()
        self._remove_dead()

    def _read_messages(self, worker: SupervisedWorker) -> None:
        for message in worker.receive_all():
            event = message["event"]
            if event == "started":
                worker.is_ready = True
            elif event == "reload":
                self.reloads.append(Reload(message["policy"], worker))
            elif event == "stopping":
                self.stop_reason = message["reason"]
            else:
                self.replies[worker.index] = message

    def _broadcast(self, message: Message) -> None:
        for worker in self.workers:
            worker.send(message)

    # Reloads

    def _load(self, name: str) -> ServedPolicy:
        return served_policy.load_policy(
            name, self.options.sources[name], "cpu", self.options.seed, self.options.new_items
        )

    def _share(self, loaded: list[ServedPolicy], folder: Path) -> dict[str, dict[str, str | None]]:
        """Write the weights of policies to files that all processes map; return what workers need to load them."""
        facts: dict[str, dict[str, str | None]] = {}
        for number, served in enumerate(loaded):
            facts[served.name] = {"fingerprint": served.fingerprint, "tensors": None}
            if isinstance(served.policy, NetworkPolicy):
                path = folder / f"{number}.safetensors"
                write_tensors(served.policy.agent, path)
                map_tensors(served.policy.agent, path)
                facts[served.name]["tensors"] = str(path)
        return facts

    def _reload(self, reload: Reload) -> None:
        names = list(self.served) if reload.policy is None else [reload.policy]
        name = names[0]
        try:
            with tempfile.TemporaryDirectory(prefix="offrec-serve-") as folder:
                loaded = []
                for name in names:
                    loaded.append(self._load(name))
                self._prepare_workers(self._share(loaded, Path(folder)))
        except Exception as error:  # the old policies must remain
            self._broadcast({"do": "discard"})
            reason = first_line(error).rstrip(".")
            self.console.line(f"reload of {name} failed, the old policy remains: {reason}")
            shown = self.served[name].public_reason(reason)
            self._answer(reload, {"status": 409, "error": f"The reload failed and the old policy remains: {shown}."})
            return
        self._broadcast({"do": "swap"})
        for served in loaded:
            old, self.served[served.name] = self.served[served.name], served
            self.console.line(f"reloaded {served.name}: {old.fingerprint} → {served.fingerprint}")
        gc.collect()
        gc.freeze()
        release_memory()
        self._answer(reload, {"reloaded": {served.name: served.fingerprint for served in loaded}})

    def _prepare_workers(self, facts: dict[str, dict[str, str | None]]) -> None:
        """Let all workers load the policies.

        Workers that end meanwhile do not count: they are started again with the supervisor's policies.
        """
        self.replies = {}
        asked = [worker for worker in self.workers if worker.process is not None]
        processes = {worker.index: worker.process for worker in asked}
        for worker in asked:
            worker.send({"do": "prepare", "policies": facts})
        deadline = time.monotonic() + RELOAD_SECONDS
        while missing := [
            worker for worker in asked if worker.index not in self.replies and worker.process == processes[worker.index]
        ]:
            if self._is_stopping():
                raise RunError("the server is stopping")
            if time.monotonic() > deadline:
                for worker in missing:
                    worker.signal(signal.SIGKILL)
            self._wait(0.2)
        failed = [message for message in self.replies.values() if message["event"] == "failed"]
        if failed:
            raise RunError(failed[0]["reason"])

    def _answer(self, reload: Reload, answer: Message) -> None:
        if reload.worker is not None:
            reload.worker.send({"do": "answer", **answer})
