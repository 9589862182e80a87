"""Run steps and jobs on a Ray cluster. Ray repeats the steps of a machine that dies.

Every machine of the cluster needs offrec, the files that a step reads, and the same versions of Python and polars.
"""

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import polars as pl

from offrec.data.engine import Stored, Tables
from offrec.errors import InputError, RunError, first_line

CONNECT_SECONDS = 5.0
PARTITION_BYTES = 256 << 20  # of the log per partition
MOST_PARTITIONS = 2048
RETRIES = 10  # of a step whose machine or process dies
TASKS_PER_SLOT = 2  # tasks that wait while others run


class RayEngine:
    """Runs steps on a Ray cluster; implements `offrec.data.engine.Engine`.

    Args:
        address: "HOST:PORT" of the cluster, or "auto" for the one on this machine. None: the one in the environment
            variable RAY_ADDRESS, else a new one on this machine.
        cpus: Processors per task.
        gpus: GPUs per task.
        flag: The flag that asked for Ray, for messages.

    Raises:
        InputError: If Ray is not installed, the cluster does not answer, or no machine has these resources.

    Example:
        >>> offrec.prepare("logs", out="data", split="hash", engine=RayEngine("10.0.0.1:6379"))
    """

    def __init__(
        self, address: str | None = None, *, cpus: float = 1.0, gpus: float = 0.0, flag: str = "--engine"
    ) -> None:
        if cpus <= 0 or gpus < 0:
            raise InputError(f"--ray-cpus must be positive and --ray-gpus at least 0; got {cpus:g} and {gpus:g}.")
        self.ray = _connect(address, flag)
        self.cpus, self.gpus = cpus, gpus
        self.slots = self._count_slots()

    def _count_slots(self) -> int:
        """Return how many tasks the cluster runs concurrently."""
        slots = 0
        for node in self.ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                by_gpu = [has.get("GPU", 0.0) / self.gpus] if self.gpus else []
                slots += int(min([has.get("CPU", 0.0) / self.cpus, *by_gpu]))
        if not slots:
            raise InputError(
                f"No machine of the Ray cluster has --ray-cpus {self.cpus:g} and --ray-gpus {self.gpus:g}; "
                "choose smaller values."
            )
        return slots

    def partitions(self, size: int) -> int:
        return min(max(2 * self.slots, -(-size // PARTITION_BYTES)), MOST_PARTITIONS)

    def split(
        self, step: Callable[..., tuple[Any, list[pl.DataFrame]]], parts: Iterable[Any], n: int, *shared: Any
    ) -> tuple[Iterator[Any], Sequence[Stored]]:
        pieces: list[list[Any]] = [[] for _ in range(n)]
        references = [self.ray.put(one) for one in shared]
        call = self._remote(_split, returns=n + 1)

        def run() -> Iterator[Any]:
            reports = deque[Any]()
            for part in parts:
                report, *outputs = call.remote(step, part, n, *references)
                for number, output in enumerate(outputs):
                    pieces[number].append(output)
                reports.append(report)
                if len(reports) > self.slots * TASKS_PER_SLOT:
                    yield self._get(reports.popleft())
            while reports:
                yield self._get(reports.popleft())

        return run(), pieces

    def merge(
        self, step: Callable[..., tuple[Any, Tables]], pieces: Sequence[Stored], *shared: Any
    ) -> tuple[list[Any], list[Stored]]:
        references, call = [self.ray.put(one) for one in shared], self._remote(_merge, returns=2)
        return self._collect([call.remote(step, len(one), *one, *references) for one in pieces])

    def update(
        self, step: Callable[..., tuple[Any, Tables]], parts: Sequence[Stored], *shared: Any
    ) -> tuple[list[Any], list[Stored]]:
        references, call = [self.ray.put(one) for one in shared], self._remote(_call, returns=2)
        return self._collect([call.remote(step, part, *references) for part in parts])

    def load(self, part: Stored) -> Tables:
        tables: Tables = self._get(part)
        return tables

    def map(self, step: Callable[..., Any], parts: Iterable[Any], *shared: Any) -> Iterator[Any]:
        """Call `step(part, *shared)` for each part and yield the results in the order of the parts."""
        references, call = [self.ray.put(one) for one in shared], self._remote(_call)
        results = deque[Any]()
        for part in parts:
            results.append(call.remote(step, part, *references))
            if len(results) > self.slots * TASKS_PER_SLOT:
                yield self._get(results.popleft())
        while results:
            yield self._get(results.popleft())

    def run_jobs(
        self, function: Callable[..., None], jobs: Iterable[tuple[Any, tuple[Any, ...]]]
    ) -> Iterator[tuple[Any, str | None]]:
        """Run jobs concurrently, and yield each as it ends. A job is read when the cluster has a slot for it.

        Args:
            function: Called with the arguments of each job.
            jobs: Pairs (key, arguments).

        Yields:
            Pairs (key, reason); the reason is None unless the process or the machine of the job died.
        """
        call = self._remote(function, retries=0)
        running: dict[Any, Any] = {}
        waiting = iter(jobs)
        try:
            while True:
                while len(running) < self.slots and (job := next(waiting, None)) is not None:
                    running[call.remote(*job[1])] = job[0]
                if not running:
                    return
                (done,), _ = self.ray.wait(list(running), num_returns=1)
                key, reason = running.pop(done), None
                try:
                    self._get(done)
                except RunError as error:
                    reason = str(error)
                yield key, reason
        finally:
            for reference in running:
                self.ray.cancel(reference, force=True)

    def on_each_node(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Call a function once on each machine of the cluster; return its results by the machine's address."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        results = {}
        for node in self.ray.nodes():
            if node["Alive"]:
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                call = self.ray.remote(num_cpus=0, scheduling_strategy=strategy)(function)
                results[f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"] = call.remote(*arguments)
        return {name: self._get(result) for name, result in results.items()}

    def _remote(self, function: Callable[..., Any], *, returns: int = 1, retries: int = RETRIES) -> Any:
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "num_returns": returns, "max_retries": retries}
        return self.ray.remote(**options)(function)

    def _collect(self, results: list[Any]) -> tuple[list[Any], list[Stored]]:
        return [self._get(report) for report, _ in results], [stored for _, stored in results]

    def _get(self, reference: Any) -> Any:
        """Return a result. An exception of a task is raised here as it was raised there."""
        from ray.exceptions import RayError, RayTaskError

        try:
            return self.ray.get(reference)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            raise RunError(f"A task on the Ray cluster failed ({first_line(error)}); repeat the command.") from error


def _split(step: Callable[..., Any], part: Any, n: int, *shared: Any) -> list[Any]:
    report, pieces = step(part, n, *shared)
    return [report, *pieces]


def _merge(step: Callable[..., Any], count: int, *arguments: Any) -> Any:
    return step(list(arguments[:count]), *arguments[count:])


def _call(step: Callable[..., Any], *arguments: Any) -> Any:
    return step(*arguments)


def _connect(address: str | None, flag: str) -> Any:
    if find_spec("ray") is None:
        raise InputError(f"{flag} ray needs Ray, which is not installed; install it with `pip install offrec[ray]`.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        return ray
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address not in (None, "auto", "local"):
        _check_answers(address)
    try:
        ray.init(
            address=None if address == "local" else address,
            log_to_driver=False,
            logging_level="error",
            include_dashboard=None if address else False,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise InputError(
            f"--ray-address {address}: the Ray cluster cannot be used ({first_line(error)}); start it with "
            "`ray start --head`, or remove the option."
        ) from error
    return ray


def _check_answers(address: str) -> None:
    """Raise InputError if nothing listens at the address: Ray itself would try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"--ray-address must be HOST:PORT, such as 10.0.0.1:6379; got {address!r}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--ray-address {address} does not answer ({error}); start the cluster with `ray start --head`, or check "
            "the address."
        ) from error
