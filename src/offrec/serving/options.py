"""Options of a server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.exploration import Blend
from offrec.serving.item_lists import ListLimits
from offrec.serving.schemas import RequestLimits
from offrec.serving.served_policy import Source
from offrec.serving.traffic_split import TrafficSplit

OnLogFailure = Literal["serve", "stop"]


@dataclass(frozen=True)
class BatchingOptions:
    """Options for grouping requests into batches; see `MicroBatcher`."""

    wait_ms: float = 2.0
    max_batch: int = 64
    max_waiting: int = 1024


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of the connections of a server.

    Attributes:
        connections: The largest number of open connections.
        header_bytes: The largest size of a request line and its headers.
        transfer_seconds: The longest time to receive headers, to receive a body, or to send a response.
        keep_alive_seconds: The longest time without a request on an open connection.
    """

    connections: int = 1024
    header_bytes: int = 16 << 10
    transfer_seconds: float = 20.0
    # Longer than nginx keeps idle connections, so that nginx never uses one that was just closed.
    keep_alive_seconds: float = 75.0


@dataclass(frozen=True)
class ServerOptions:
    """Options of `offrec serve`.

    Attributes:
        sources: Policy name → run folder or baseline. The first policy is the default.
        new_items: Files with items that the runs have never seen; they are scored by their features.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        token: The bearer token that requests must send; None to require none.
        insecure: Whether any address may be used without a token.
        allow_hosts: Host names that requests may use in addition to the address.
        log: The folder of the decision log; None to write none.
        log_options: How the decision log is written.
        on_log_failure: Whether the server continues or stops when the decision log cannot be written.
        limits: Limits of a request.
        lists: The folder of the lists that requests can name; None for a temporary one.
        list_limits: Limits of these lists.
        connections: Limits of the connections.
        batching: How requests are grouped into batches.
        skip_recent: How many of the last items of a history rank last, unless a request sets it.
        split: Assigns policies to the sessions of requests that name none; None to use the default policy.
        explore: How sampled lists are made; None to sample them from the policy.
        workers: The number of processes.
        hang_seconds: A worker that does not respond for this long is killed and started again.
        device: The torch device, or "auto".
        threads: The number of computing threads; None keeps torch's default.
        seed: The seed of sampled lists; None takes one from the operating system.
    """

    sources: Mapping[str, Source]
    new_items: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    insecure: bool = False
    allow_hosts: tuple[str, ...] = ()
    log: Path | None = None
    log_options: DecisionLogOptions = field(default_factory=DecisionLogOptions)
    on_log_failure: OnLogFailure = "serve"
    limits: RequestLimits = field(default_factory=RequestLimits)
    lists: Path | None = None
    list_limits: ListLimits = field(default_factory=ListLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    batching: BatchingOptions = field(default_factory=BatchingOptions)
    skip_recent: int = 0
    split: TrafficSplit | None = None
    explore: Blend | None = None
    workers: int = 1
    hang_seconds: float = 30.0
    device: str = "auto"
    threads: int | None = None
    seed: int | None = None
