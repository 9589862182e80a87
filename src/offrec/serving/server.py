"""The process that serves: its address, its signals, its end."""

import asyncio
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
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
from offrec.serving.service import BatchingOptions, Limits, Service

OnLogFailure = Literal["serve", "stop"]
SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class ServerOptions:
    runs: dict[str, Path]
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    insecure: bool = False
    log: Path | None = None
    log_options: DecisionLogOptions = field(default_factory=DecisionLogOptions)
    on_log_failure: OnLogFailure = "serve"
    limits: Limits = field(default_factory=Limits)
    batching: BatchingOptions = field(default_factory=BatchingOptions)
    device: str = "auto"
    threads: int | None = None
    seed: int | None = None


def serve(options: ServerOptions, console: Console) -> None:
    """Until a signal says to stop, or the decision log fails and was to stop it."""
    early = threading.Event()  # a reload was asked for while the policies were loaded
    before = signal.signal(signal.SIGHUP, lambda *_: early.set())
    try:
        _serve(options, console, early)
    finally:
        signal.signal(signal.SIGHUP, before)


def _serve(options: ServerOptions, console: Console, early: threading.Event) -> None:
    try:
        import uvicorn

        from offrec.serving.app import application
    except ImportError as error:
        raise InputError(f"Serving needs {error.name}; pip install 'offrec[serve]'.") from error
    check_address(options)
    with _bind(options.host, options.port) as bound:
        if options.threads is not None:
            import torch

            torch.set_num_threads(options.threads)
        running: list[uvicorn.Server] = []

        def failed(reason: str) -> None:
            if options.on_log_failure == "stop":
                service.stop(f"the decision log cannot be written ({reason})")
                for server in running:
                    server.should_exit = True

        service = make_service(options, console, failed)
        config = uvicorn.Config(
            application(service, options.token, lifespan(service, early)),
            lifespan="on",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=10,
            timeout_keep_alive=75,  # longer than nginx keeps an idle connection: it is never closed under a request
            server_header=False,
            proxy_headers=False,
        )
        running.append(uvicorn.Server(config))
        _announce(service, bound, console)
        if service.stopping is None:
            running[0].run(sockets=[bound])
    if service.stopping is not None:
        raise RunError(f"Stopped: {service.stopping}.")


def _announce(service: Service, bound: socket.socket, console: Console) -> None:
    for slot in service.slots.values():
        console.line(f"{slot.served.name}: {slot.served.policy.name} of {slot.served.run} ({slot.served.fingerprint})")
    host, port = bound.getsockname()[:2]
    console.line(f"Serving on http://{f'[{host}]' if ':' in host else host}:{port}; Ctrl-C stops, SIGHUP reloads.")


def lifespan(service: Service, early: threading.Event) -> Callable[[object], AbstractAsyncContextManager[None]]:
    """SIGHUP reloads as long as the server runs, at once if it came `early`; then what waits is answered and the log
    closed.
    """

    async def reload() -> None:
        with suppress(RequestError):  # said on the console; the old one stays
            await service.reload(None)

    tasks: set[asyncio.Task[None]] = set()

    def hang_up() -> None:
        task = asyncio.ensure_future(reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    @asynccontextmanager
    async def living(_: object) -> AsyncIterator[None]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)
        if early.is_set():
            hang_up()
        yield
        await asyncio.to_thread(service.close)

    return living


def make_service(options: ServerOptions, console: Console, failed: Callable[[str], None] | None = None) -> Service:
    load = partial(_load, options)
    served = [load(name) for name in options.runs]
    log = None
    if options.log is not None:
        log = DecisionLog(options.log, options.log_options, console.line, failed)
    return Service(served, load, options.limits, options.batching, log, console)


def _load(options: ServerOptions, name: str) -> served_policy.ServedPolicy:
    return served_policy.load(name, options.runs[name], options.device, options.seed)


def check_address(options: ServerOptions) -> None:
    if options.token is not None or options.insecure or _is_loopback(options.host):
        return
    raise InputError(
        f"{options.host} can be reached from other machines; set a token (--token-file or OFFREC_TOKEN), "
        "or say --insecure if something else keeps strangers out."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bind(host: str, port: int) -> socket.socket:
    """Listened to at once: who comes while the policies are loaded waits rather than being turned away."""
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise InputError(
            f"Port {port} on {host} cannot be listened to ({error.strerror}); choose another --port."
        ) from error
    return bound


def read_token(file: Path | None) -> str | None:
    """From the file or, without one, from OFFREC_TOKEN."""
    if file is None:
        token = os.environ.get("OFFREC_TOKEN")
        where = "OFFREC_TOKEN"
    else:
        where = str(file)
        try:
            token = file.read_text().strip()
        except (OSError, ValueError) as error:
            raise InputError(f"{file} cannot be read ({error}); it should hold the token.") from error
    if token is None:
        return None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"The token in {where} cannot be used; it must have at least {SHORTEST_TOKEN} characters, "
            "plain ASCII without spaces, as `openssl rand -hex 32` makes it."
        )
    return token
