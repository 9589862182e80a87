"""The server process: its address, its token, its signals and its shutdown."""

import asyncio
import math
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from offrec.catalogue.screening import has_fast_int8
from offrec.console import Console
from offrec.errors import InputError, RunError
from offrec.serving import served_policy
from offrec.serving.address import check_address, listen, request_checks
from offrec.serving.decision_log import DecisionLog
from offrec.serving.errors import RequestError
from offrec.serving.item_lists import ItemLists
from offrec.serving.options import ConnectionLimits, ServerOptions
from offrec.serving.recent_requests import RecentRequests
from offrec.serving.served_policy import ServedPolicy
from offrec.serving.service import Service

if TYPE_CHECKING:
    import uvicorn

SHUTDOWN_SECONDS = 10  # time to finish open requests
RESERVED_FILES = 64  # open files that are not connections


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
    if options.workers > 1:
        _serve_with_workers(options, console)
        return
    with listen(options.host, options.port) as listener:
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
        app = create_app(service, request_checks(options), lifespan(service, reload_requested))
        config = http_config(app, service, fit_open_files(options.connections, console), console)
        servers.append(uvicorn.Server(config))
        announce([slot.served for slot in service.policies.slots.values()], listener, console)
        if service.stop_reason is None:
            servers[0].run(sockets=[listener])
    if service.stop_reason is not None:
        raise RunError(f"Stopped: {service.stop_reason}.")


def _serve_with_workers(options: ServerOptions, console: Console) -> None:
    from offrec.serving.supervisor import Supervisor

    if options.device not in ("auto", "cpu"):
        raise InputError(
            f"--workers {options.workers} serves on the CPU, not on {options.device}; use one worker for a GPU."
        )
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        for _ in range(options.workers):
            port = listeners[0].getsockname()[1] if listeners else options.port
            listeners.append(stack.enter_context(listen(options.host, port, shared=True)))
        Supervisor(options, listeners, console).run()


def http_config(app: Any, service: Service, limits: ConnectionLimits, console: Console) -> "uvicorn.Config":
    """Configure uvicorn.

    Args:
        app: The ASGI application.
        service: Its service, whose metrics count connections.
        limits: The limits of the connections.
        console: Prints when connections are closed.

    Returns:
        The configuration.
    """
    import uvicorn

    from offrec.serving.connections import Connections, bounded_protocol

    registry = Connections(limits, console.line, service.metrics.count_closed_connection)
    service.metrics.report_connections(lambda: len(registry.open))
    return uvicorn.Config(
        app,
        http=bounded_protocol(registry),
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="error",  # uvicorn's warnings are about invalid requests, so that any client could fill the log
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        timeout_keep_alive=math.ceil(limits.keep_alive_seconds),
        server_header=False,
        proxy_headers=False,
    )


def fit_open_files(limits: ConnectionLimits, console: Console) -> ConnectionLimits:
    """Allow this process as many open files as it has connections, or reduce the number of connections.

    Args:
        limits: The limits of the connections.
        console: Prints the reduced number.

    Returns:
        The limits that the process can keep. Without open files left, it could not accept any connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.connections + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            limits = replace(limits, connections=max(1, soft - RESERVED_FILES))
            console.line(
                f"--max-connections is reduced to {limits.connections:,}: the system allows {hard:,} open files"
            )
    return limits


def announce(policies: list[ServedPolicy], listener: socket.socket, console: Console) -> None:
    """Print the policies with their warnings, and the address of a server.

    Args:
        policies: The policies.
        listener: The listening socket.
        console: Prints the lines.
    """
    for served in policies:
        facts = f"fingerprint {served.fingerprint}, {served.engine.products} products"
        console.line(f"{served.name}: {served.policy.name} from {served.source} ({facts})")
        for sentence in getattr(served.policy, "warnings", ()):
            console.line(f"Warning: {served.name}: {sentence}")
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
    options: ServerOptions,
    console: Console,
    on_log_failure: Callable[[str], None] | None = None,
    served: list[ServedPolicy] | None = None,
    requests: RecentRequests | None = None,
) -> Service:
    """Load the policies and open the decision log.

    Args:
        options: The options of the server.
        console: Prints reloads and failures.
        on_log_failure: Called with the reason when the decision log cannot be written.
        served: The policies, if they are already loaded.
        requests: The ids of logged lists, which workers share.

    Returns:
        The service.
    """
    has_fast_int8()  # changes the number of threads of products while it measures, so no other thread may run yet
    load = partial(_load, options)
    served = served or [load(name) for name in options.sources]
    log = None
    if options.log is not None:
        log = DecisionLog(options.log, options.log_options, console.line, on_log_failure)
    lists = ItemLists(options.lists, options.list_limits)
    return Service(
        served,
        load,
        options.limits,
        options.batching,
        log,
        console,
        options.skip_recent,
        lists,
        options.split,
        options.explore,
        requests,
    )


def _load(options: ServerOptions, name: str) -> ServedPolicy:
    return served_policy.load_policy(name, options.sources[name], options.device, options.seed, options.new_items)
