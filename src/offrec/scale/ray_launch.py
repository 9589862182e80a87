"""Start the ranks of a run on a Ray cluster: one actor per rank, which starts a process with torchrun's environment.

The processes communicate directly, as those of torchrun do. The actors only start them, pass on what they print, and
end them.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from offrec.console import Console
from offrec.errors import InputError, Interrupted, RunError
from offrec.scale.ray_engine import RayEngine

MODULE = "offrec.runs.rank_process"
POLL_SECONDS = 0.3
START_SECONDS = 60.0  # until the cluster has reserved the resources of all ranks
STOP_SECONDS = 60.0  # for the ranks to save the run, or to notice that another one has died
WRONG_INPUT, INTERRUPTED = 2, 130  # exit codes after which a restart does not help


class RankActor:
    """Runs the process of one rank on a machine of the cluster."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []

    def machine(self) -> tuple[str, int]:
        """Return the address of this machine and a free port."""
        from ray.util import get_node_ip_address

        with socket.socket() as one:
            one.bind(("", 0))
            return get_node_ip_address(), int(one.getsockname()[1])

    def start(self, environment: Mapping[str, str], arguments: str) -> None:
        """Start the process with further environment variables; its input are the arguments."""
        command = [sys.executable, "-m", MODULE, str(os.getpid())]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(arguments)
        self.process.stdin.close()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def poll(self) -> tuple[list[str], int | None]:
        """Return the lines printed since the last call, and the exit code if the process has ended."""
        assert self.process is not None
        code = self.process.poll()
        if code is not None:
            self.reader.join(5.0)
        count = len(self.lines)
        lines, self.lines[:count] = self.lines[:count], []
        return lines, code

    def stop(self, number: int) -> None:
        """Send a signal to the process."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class RayLauncher:
    """Starts the ranks of a run on a Ray cluster.

    Args:
        ranks: The number of processes.
        address: As in `RayEngine`.
        cpus: Processors per rank.
        gpus: GPUs per rank.

    Raises:
        InputError: If Ray is not installed, the cluster does not answer, or it cannot run that many ranks.
    """

    def __init__(self, ranks: int, address: str | None = None, *, cpus: float = 1.0, gpus: float = 0.0) -> None:
        if ranks < 1:
            raise InputError(f"--ranks must be at least 1; got {ranks}.")
        self._is_interrupted = False
        self.engine, self.ranks = RayEngine(address, cpus=cpus, gpus=gpus, flag="--launch"), ranks
        if self.engine.slots < ranks:
            raise InputError(
                f"--ranks is {ranks}, but the Ray cluster can run {self.engine.slots} processes with --ray-cpus "
                f"{cpus:g} and --ray-gpus {gpus:g}; start fewer ranks or add machines."
            )

    def train(self, arguments: Mapping[str, Any], console: Console, max_restarts: int = 0) -> None:
        """Train a run.

        Args:
            arguments: The arguments of `offrec.runs.launch.train_ranked`, as JSON values.
            console: Prints what the ranks print.
            max_restarts: How often to start the ranks again after one of them has failed or died.

        Raises:
            InputError: The ranks refused the arguments.
            RunError: A rank failed or died more often than `max_restarts` allows.
            Interrupted: Ctrl-C; the run is saved.
        """
        run, text = secrets.token_hex(4), json.dumps(dict(arguments))
        for attempt in range(max_restarts + 1):
            with self._actors() as actors:
                self._start(actors, run, attempt, text)
                codes = self._follow(actors, console)
            if not any(codes):
                return
            if self._is_interrupted or INTERRUPTED in codes:
                raise Interrupted("Stopped; continue the run with --resume.")
            if WRONG_INPUT in codes:
                raise InputError("The ranks could not train the run; the sentence above says why.")
            if attempt < max_restarts:
                console.line(f"A rank ended; restart {attempt + 1} of {max_restarts}.")
        raise RunError("A rank failed or its machine was lost; continue the run with --resume.")

    @contextmanager
    def _actors(self) -> Iterator[list[Any]]:
        """Reserve the resources of all ranks and start their actors; end both at the end of the block."""
        ray, engine = self.engine.ray, self.engine
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"CPU": engine.cpus} | ({"GPU": engine.gpus} if engine.gpus else {})
        group, actors = placement_group([bundle] * self.ranks, strategy="PACK"), []
        try:
            if not group.wait(START_SECONDS):
                raise InputError(
                    f"The Ray cluster had no free resources for {self.ranks} ranks within {START_SECONDS:g} seconds; "
                    "wait for other jobs to end, or start fewer ranks."
                )
            for rank in range(self.ranks):
                strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
                options = {"num_cpus": engine.cpus, "num_gpus": engine.gpus, "scheduling_strategy": strategy}
                actors.append(ray.remote(**options)(RankActor).remote())
            yield actors
        finally:
            for actor in actors:
                ray.kill(actor)
            remove_placement_group(group)

    def _start(self, actors: list[Any], run: str, attempt: int, arguments: str) -> None:
        engine = self.engine
        machines = [engine._get(actor.machine.remote()) for actor in actors]
        local, seen = Counter(address for address, _ in machines), Counter[str]()
        for rank, (actor, (address, _)) in enumerate(zip(actors, machines, strict=True)):
            # Ray shows each rank only its own GPUs, so such a rank is the only one that it knows of.
            count = 1 if engine.gpus else local[address]
            environment = {
                "TORCHELASTIC_RUN_ID": run,
                "TORCHELASTIC_RESTART_COUNT": str(attempt),
                "MASTER_ADDR": machines[0][0],
                "MASTER_PORT": str(machines[0][1]),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(actors)),
                "LOCAL_RANK": "0" if engine.gpus else str(seen[address]),
                "LOCAL_WORLD_SIZE": str(count),
                "OMP_NUM_THREADS": str(max(1, int(engine.cpus)) * count),  # the ranks of a machine divide them
            }
            seen[address] += 1
            engine._get(actor.start.remote(environment, arguments))

    def _follow(self, actors: list[Any], console: Console) -> list[int]:
        """Print what the ranks print until all have ended; return their exit codes."""
        codes: dict[int, int] = {}
        until: float | None = None
        while len(codes) < len(actors):
            try:
                for rank in [one for one in range(len(actors)) if one not in codes]:
                    lines, code = self._poll(actors[rank])
                    for line in lines:
                        console.line(line)
                    codes |= {} if code is None else {rank: code}
                time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:
                self._is_interrupted = True
                self._stop(actors, codes, signal.SIGTERM)  # saves the run, too; Ray blocks SIGINT in its processes
                until = time.monotonic() + STOP_SECONDS
            if any(codes.values()) and until is None:
                until = time.monotonic() + STOP_SECONDS
            if until is not None and time.monotonic() > until:
                self._stop(actors, codes, signal.SIGKILL)
        return [codes[rank] for rank in range(len(actors))]

    def _poll(self, actor: Any) -> tuple[list[str], int | None]:
        try:
            lines, code = self.engine._get(actor.poll.remote())
        except RunError:  # the actor or its machine died
            return [], 1
        return lines, code

    def _stop(self, actors: list[Any], codes: Mapping[int, int], number: int) -> None:
        for rank, actor in enumerate(actors):
            if rank not in codes:
                actor.stop.remote(number)
