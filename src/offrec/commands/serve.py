"""`offrec serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from offrec.commands.printing import unset
from offrec.console import Console
from offrec.errors import InputError


@dataclass(frozen=True)
class Serve:
    """Serve policies over HTTP: recommendations, sampled lists with their exact probability, and a log to learn from.

    Examples: offrec serve runs/sl
              offrec serve old=runs/sl new=runs/dc --log decisions --token-file token --host 0.0.0.0
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN …]", help_behavior_hint="")]
    """Folders made by `offrec train`, as RUN or NAME=RUN. The first is the default policy."""
    port: int = 8000
    """The port; 0 takes a free one."""
    host: str = "127.0.0.1"
    """The address. Another than loopback needs a token."""
    token_file: Annotated[Path | None, unset("FILE")] = None
    """A file with the bearer token that requests must bring; without it, the environment's OFFREC_TOKEN if set."""
    insecure: bool = False
    """Listen on any address without a token."""
    log: Annotated[Path | None, unset("FOLDER")] = None
    """Keep the decision log there: every list and event, as JSON lines."""
    flush_seconds: float = 1.0
    """How often the log is flushed to the disk: a crash costs at most so much of it."""
    segment_mb: float = 64.0
    """The log begins a new file at this size …"""
    segment_seconds: float = 3600.0
    """… and at this age."""
    log_queue: int = 100_000
    """Records that may wait for the disk; more are lost, and counted."""
    on_log_failure: Literal["serve", "stop"] = "serve"
    """What to do when the log cannot be written, as on a full disk: go on serving without it, or stop."""
    wait_ms: float = 2.0
    """Under load, how long a batch waits to be as large as the one before. A lone request never waits."""
    max_batch: int = 64
    """Requests answered in one pass."""
    max_waiting: int = 1024
    """Requests of one policy that may wait; more are answered 503."""
    max_k: int = 1000
    """The most items a list may have."""
    max_history: int = 1000
    """The most ids a history may have."""
    max_candidates: int = 10_000
    """The most candidates, and the most exclusions."""
    max_body_kb: int = 1024
    """The largest body."""
    threads: Annotated[int | None, unset("INT")] = None
    """Threads that compute; by default as many as torch takes."""
    seed: Annotated[int | None, unset("INT")] = None
    """Seed of sampled lists, for tests; by default drawn from the system."""
    device: str = "auto"
    """auto, cpu, cuda …"""

    def run(self) -> None:
        from offrec.serving import server
        from offrec.serving.decision_log import DecisionLogOptions
        from offrec.serving.served_policy import named
        from offrec.serving.service import BatchingOptions, Limits

        self._check()
        candidates = self.max_candidates
        options = server.ServerOptions(
            runs=named(self.runs),
            host=self.host,
            port=self.port,
            token=server.read_token(self.token_file),
            insecure=self.insecure,
            log=self.log,
            log_options=DecisionLogOptions(
                self.flush_seconds, int(self.segment_mb * 2**20), self.segment_seconds, self.log_queue
            ),
            on_log_failure=self.on_log_failure,
            limits=Limits(self.max_k, self.max_history, candidates, candidates, self.max_body_kb << 10),
            batching=BatchingOptions(self.wait_ms, self.max_batch, self.max_waiting),
            device=self.device,
            threads=self.threads,
            seed=self.seed,
        )
        server.serve(options, Console())

    def _check(self) -> None:
        if not self.runs:
            raise InputError("No run was given; name at least one folder made by `offrec train`.")
        positive = ("flush_seconds", "segment_mb", "segment_seconds", "log_queue", "max_batch", "max_waiting", "max_k")
        for name in (*positive, "max_history", "max_candidates", "max_body_kb", "threads"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"--{name.replace('_', '-')} is {value:g}; it must be above 0.")
        if not 0 <= self.port < 1 << 16:
            raise InputError(f"--port is {self.port}; it must lie between 0 and 65535.")
        if not 0 <= self.wait_ms <= 1000:
            raise InputError(f"--wait-ms is {self.wait_ms:g}; it must lie between 0 and 1000.")
