"""`offrec serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from offrec.commands.printing import split_ids, unset
from offrec.console import Console
from offrec.errors import InputError


@dataclass(frozen=True)
class Serve:
    """Serve policies over HTTP: recommendations, sampled lists with their exact probability, and a decision log.

    Examples: offrec serve runs/sl
              offrec serve old=runs/sl new=runs/dc --log decisions --token-file token --host 0.0.0.0
              offrec serve runs/sl --baselines recent --dataset data/shop
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, unset("RUN [RUN …]")] = ()
    """Run folders from `offrec train`, each as RUN or NAME=RUN. The first policy is the default."""
    baselines: Annotated[str, unset("NAMES")] = ""
    """Additional baselines to serve, separated by commas. Requires --dataset."""
    dataset: Annotated[Path | None, unset("DATASET")] = None
    """Dataset folder from `offrec prepare`, from which baselines are computed."""
    explore: Annotated[str, unset("blend:SHARE[:NAME]")] = ""
    """How lists are made for requests with `sample`: blend:0.1 shows the best list or, with probability 0.1, a random
    one; blend:0.1:NAME samples it from another served policy. Default: lists are sampled from the policy itself."""
    split: Annotated[str, unset("NAME=SHARE,…")] = ""
    """Assign policies to sessions at random, for example old=0.9,new=0.1. `offrec ab` compares them."""
    split_key: Annotated[str, unset("TEXT")] = ""
    """Key of the hash that assigns sessions; another key assigns them anew. Default: the names in --split."""
    new_items: Annotated[tuple[str, ...], unset("FILE [FILE …]")] = ()
    """Tables of items that the runs have never seen, with the columns of `offrec prepare --items`. They are scored by
    their features. A reload reads them again."""
    port: int = 8000
    """Port to listen on; 0 chooses a free port."""
    host: str = "127.0.0.1"
    """Address to listen on. Addresses other than loopback need a token."""
    token_file: Annotated[Path | None, unset("FILE")] = None
    """File with the bearer token that requests must send. Default: the environment variable OFFREC_TOKEN, if set."""
    insecure: bool = False
    """Allow any address without a token."""
    allow_host: Annotated[str, unset("NAMES")] = ""
    """Host names that requests may use in addition to the address, separated by commas, for example of a proxy."""
    log: Annotated[Path | None, unset("FOLDER")] = None
    """Write every list and every event as JSON lines to this folder: the decision log."""
    flush_seconds: float = 1.0
    """Seconds between flushes of the log to the disk. A power cut loses at most the records of this period."""
    durable: bool = False
    """Answer only after a request's record is on the disk, so that even a power cut loses no answered request."""
    segment_mb: float = 64.0
    """Size at which the log begins a new file, in MiB."""
    segment_seconds: float = 3600.0
    """Age at which the log begins a new file, in seconds."""
    keep_days: Annotated[float | None, unset("DAYS")] = None
    """Remove files of the log whose last record is older than this many days. Default: keep all files."""
    on_log_failure: Literal["serve", "stop"] = "serve"
    """What to do if the log cannot be written, for example on a full disk: serve without it, or stop."""
    wait_ms: float = 2.0
    """Under load, the longest time that a batch waits for more requests. A single request never waits."""
    max_batch: int = 64
    """Largest number of requests in one batch."""
    max_waiting: int = 1024
    """Largest number of requests per policy that may wait. More are answered with 503."""
    max_k: int = 1000
    """Largest k of a request."""
    max_history: int = 1000
    """Largest number of ids in a history."""
    max_shown: int = 100
    """Largest number of earlier lists in a request."""
    max_candidates: int = 10_000
    """Largest number of candidates, and of excluded items."""
    max_body_kb: int = 1024
    """Largest size of a request body, in KiB."""
    lists: Annotated[Path | None, unset("FOLDER")] = None
    """Folder of the lists that `PUT /v1/lists/NAME` sets, such as items in stock. Default: a temporary folder."""
    max_list_mb: int = 64
    """Largest size of a list in a request, in MiB."""
    max_list_items: int = 2_000_000
    """Largest number of item ids in a list."""
    skip_recent: int = 0
    """Rank this many of the last items of a history below all other items, unless a request sets skip_recent."""
    max_header_kb: int = 16
    """Largest size of the headers of a request, in KiB."""
    max_connections: int = 1024
    """Largest number of open connections. More close the oldest idle ones."""
    transfer_seconds: float = 20.0
    """Longest time to receive the headers or the body of a request, or to send a response."""
    keep_alive_seconds: float = 75.0
    """Longest time that an idle connection stays open."""
    workers: int = 1
    """Number of processes that answer requests on the CPU. They share the memory of the weights."""
    hang_seconds: float = 30.0
    """With --workers: a process that does not respond for this many seconds is killed and started again."""
    threads: Annotated[int | None, unset("INT")] = None
    """Number of computing threads per process. Default: chosen by torch."""
    seed: Annotated[int | None, unset("INT")] = None
    """Seed of sampled lists, for tests. Default: from the operating system."""
    device: str = "auto"
    """Torch device: auto, cpu, cuda, …"""

    def run(self) -> None:
        """Run the server until a signal stops it."""
        from offrec.serving import server
        from offrec.serving.address import parse_hosts, read_token
        from offrec.serving.decision_log import DecisionLogOptions
        from offrec.serving.exploration import parse_explore
        from offrec.serving.item_lists import ListLimits
        from offrec.serving.options import BatchingOptions, ConnectionLimits, ServerOptions
        from offrec.serving.schemas import RequestLimits
        from offrec.serving.served_policy import parse_sources
        from offrec.serving.traffic_split import parse_split

        self._check()
        sources = parse_sources(self.runs, tuple(split_ids(self.baselines)), self.dataset)
        options = ServerOptions(
            sources=sources,
            explore=parse_explore(self.explore, sources),
            split=parse_split(self.split, sources, self.split_key),
            new_items=self.new_items,
            host=self.host,
            port=self.port,
            token=read_token(self.token_file),
            insecure=self.insecure,
            allow_hosts=parse_hosts(self.allow_host),
            log=self.log,
            log_options=DecisionLogOptions(
                self.flush_seconds, int(self.segment_mb * 2**20), self.segment_seconds, self.durable, self.keep_days
            ),
            on_log_failure=self.on_log_failure,
            limits=RequestLimits(
                k=self.max_k,
                history=self.max_history,
                exclude=self.max_candidates,
                candidates=self.max_candidates,
                shown=self.max_shown,
                body_bytes=self.max_body_kb << 10,
            ),
            lists=self.lists,
            list_limits=ListLimits(self.max_list_mb << 20, self.max_list_items),
            connections=ConnectionLimits(
                self.max_connections, self.max_header_kb << 10, self.transfer_seconds, self.keep_alive_seconds
            ),
            batching=BatchingOptions(self.wait_ms, self.max_batch, self.max_waiting),
            skip_recent=self.skip_recent,
            workers=self.workers,
            hang_seconds=self.hang_seconds,
            device=self.device,
            threads=self.threads,
            seed=self.seed,
        )
        server.serve(options, Console())

    def _check(self) -> None:
        if not self.runs and not self.baselines:
            raise InputError("No policy to serve; name at least one run folder from `offrec train`, or --baselines.")
        positive = (
            *(
                "flush_seconds",
                "segment_mb",
                "segment_seconds",
                "max_batch",
                "max_waiting",
                "max_k",
                "max_history",
                "max_shown",
            ),
            *(
                "max_candidates",
                "max_body_kb",
                "max_list_mb",
                "max_list_items",
                "max_header_kb",
                "max_connections",
                "transfer_seconds",
            ),
            *("keep_alive_seconds", "workers", "hang_seconds", "threads", "keep_days"),
        )
        if self.keep_days is not None and self.log is None:
            raise InputError("--keep-days removes files of the decision log; add --log FOLDER or remove it.")
        for name in positive:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"--{name.replace('_', '-')} must be positive; got {value:g}.")
        if self.skip_recent < 0:
            raise InputError(f"--skip-recent must be at least 0; got {self.skip_recent}.")
        if not 0 <= self.port < 1 << 16:
            raise InputError(f"--port must be between 0 and 65535; got {self.port}.")
        if not 0 <= self.wait_ms <= 1000:
            raise InputError(f"--wait-ms must be between 0 and 1000; got {self.wait_ms:g}.")
