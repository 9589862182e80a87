"""The server process: its address, its token, its signals and its shutdown."""

import asyncio
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from offrec.console import Console
from offrec.errors import InputError, RunError
from offrec.serving import served_policy
from offrec.serving.decision_log import DecisionLog, DecisionLogOptions
from offrec.serving.errors import RequestError
from offrec.serving.schemas import RequestLimits
from offrec.serving.served_policy import ServedPolicy, Source
from offrec.serving.service import BatchingOptions, Service

OnLogFailure = Literal["serve", "stop"]
MIN_TOKEN_CHARACTERS = 16
SHUTDOWN_SECONDS = 10  # time to finish open requests
KEEP_ALIVE_SECONDS = 75  # longer than nginx keeps idle connections, so that nginx never uses one that was just closed


@dataclass(frozen=True)
class ServerOptions:
    """Options of `offrec serve`.

    Attributes:
        sources: Policy name → run folder or baseline. The first policy is the default.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        token: The bearer token that requests must send; None to require none.
        insecure: Whether any address may be used without a token.
        log: The folder of the decision log; None to write none.
        log_options: How the decision log is written.
        on_log_failure: Whether the server continues or stops when the decision log cannot be written.
        limits: Limits of a request.
        batching: How requests are grouped into batches.
        skip_recent: How many of the last items of a history rank last, unless a request sets it.
        device: The torch device, or "auto".
        threads: The number of computing threads; None keeps torch's default.
        seed: The seed of sampled lists; None takes one from the operating system.
    """

    sources: Mapping[str, Source]
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    insecure: bool = False
    log: Path | None = None
    log_options: DecisionLogOptions = field(default_factory=DecisionLogOptions)
    on_log_failure: OnLogFailure = "serve"
    limits: RequestLimits = field(default_factory=RequestLimits)
    batching: BatchingOptions = field(default_factory=BatchingOptions)
    skip_recent: int = 0
    device: str = "auto"
    threads: int | None = None
    seed: int | None = None


def serve(options: ServerOptions, console: Console) -> None:
    """Serve until a signal stops the process.

    Args:
        options: The options of the server.
        console: Prints the address, reloads and failures.

    Raises:
        InputError: If the options are invalid or a policy cannot be loaded.
        RunError: If the decision log failed and `on_log_failure` is "stop".
    """
    reload_requested = threading.Event()  # SIGHUP arrived while the policies were loading
    previous = signal.signal(signal.SIGHUP, lambda *_: reload_requested.set())
    try:
        _serve(options, console, reload_requested)
    finally:
        signal.signal(signal.SIGHUP, previous)


def _serve(options: ServerOptions, console: Console, reload_requested: threading.Event) -> None:
    try:
        import uvicorn

        from offrec.serving.app import create_app
    except ImportError as error:
        raise InputError(f"offrec serve needs {error.name}; run pip install 'offrec[serve]'.") from error
    check_address(options)
    with _listen(options.host, options.port) as listener:
        if options.threads is not None:
            import torch

            torch.set_num_threads(options.threads)
        servers: list[uvicorn.Server] = []

        def on_log_failure(reason: str) -> None:
            if options.on_log_failure == "stop":
                service.stop(f"the decision log cannot be written ({reason})")
                for server in servers:
                    server.should_exit = True

        service = create_service(options, console, on_log_failure)
        config = uvicorn.Config(
            create_app(service, options.token, lifespan(service, reload_requested)),
            lifespan="on",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            server_header=False,
            proxy_headers=False,
        )
        servers.append(uvicorn.Server(config))
        _announce(service, listener, console)
        if service.stop_reason is None:
            servers[0].run(sockets=[listener])
    if service.stop_reason is not None:
        raise RunError(f"Stopped: {service.stop_reason}.")


def _announce(service: Service, listener: socket.socket, console: Console) -> None:
    for slot in service.slots.values():
        served = slot.served
        console.line(f"{served.name}: {served.policy.name} from {served.source} (fingerprint {served.fingerprint})")
    host, port = listener.getsockname()[:2]
    console.line(f"Serving on http://{f'[{host}]' if ':' in host else host}:{port}; Ctrl-C stops, SIGHUP reloads.")


def lifespan(
    service: Service, reload_requested: threading.Event
) -> Callable[[object], AbstractAsyncContextManager[None]]:
    """Build the lifespan context of the application: reload on SIGHUP, close the service at the end.

    Args:
        service: The service.
        reload_requested: Set if SIGHUP arrived before the event loop ran; then the policies are reloaded at once.

    Returns:
        The context manager that FastAPI expects.
    """
    tasks: set[asyncio.Task[None]] = set()  # the event loop keeps no strong reference to its tasks

    async def reload() -> None:
        with suppress(RequestError):  # the service prints the reason; the old policies remain
            await service.reload(None)

    def on_hangup() -> None:
        task = asyncio.ensure_future(reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    @asynccontextmanager
    async def run(_: object) -> AsyncIterator[None]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
        if reload_requested.is_set():
            on_hangup()
        yield
        await asyncio.to_thread(service.close)

    return run


def create_service(
    options: ServerOptions, console: Console, on_log_failure: Callable[[str], None] | None = None
) -> Service:
    """Load the policies and open the decision log.

    Args:
        options: The options of the server.
        console: Prints reloads and failures.
        on_log_failure: Called with the reason when the decision log cannot be written.

    Returns:
        The service.
    """
    load = partial(_load, options)
    served = [load(name) for name in options.sources]
    log = None
    if options.log is not None:
        log = DecisionLog(options.log, options.log_options, console.line, on_log_failure)
    return Service(served, load, options.limits, options.batching, log, console, options.skip_recent)


def _load(options: ServerOptions, name: str) -> ServedPolicy:
    return served_policy.load_policy(name, options.sources[name], options.device, options.seed)


def check_address(options: ServerOptions) -> None:
    """Raise an error if other machines can reach the address and the server requires no token.

    Args:
        options: The options of the server.

    Raises:
        InputError: If the address is not a loopback address and neither a token nor `insecure` is set.
    """
    if options.token is not None or options.insecure or _is_loopback(options.host):
        return
    raise InputError(
        f"--host {options.host} can be reached from other machines, so it needs a token; set --token-file or "
        "OFFREC_TOKEN, or --insecure if a proxy or firewall protects the server."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """Open the socket before the policies are loaded, so that early clients wait instead of being refused."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise InputError(
            f"--port {port} on host {host} cannot be used ({error.strerror}); choose another --port or --host."
        ) from error
    return listener


def read_token(file: Path | None) -> str | None:
    """Read the bearer token from a file or, without one, from the environment variable OFFREC_TOKEN.

    Args:
        file: The file; None to read the environment variable.

    Returns:
        The token, or None if neither is set.

    Raises:
        InputError: If the file cannot be read or the token is too short or not plain ASCII.
    """
    if file is None:
        token, source = os.environ.get("OFFREC_TOKEN"), "OFFREC_TOKEN"
    else:
        source = f"--token-file {file}"
        try:
            token = file.read_text().strip()
        except (OSError, ValueError) as error:
            raise InputError(f"{source} cannot be read ({error}); expected a file that contains the token.") from error
    if token is None:
        return None
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"{source} contains an invalid token; expected at least {MIN_TOKEN_CHARACTERS} ASCII characters without "
            "spaces, for example from `openssl rand -hex 32`."
        )
    return token
