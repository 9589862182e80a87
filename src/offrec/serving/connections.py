"""Limits on HTTP connections. Needs uvicorn with httptools.

uvicorn closes a connection that is idle after a response. It does not limit the number of connections, the size of the
headers, or the time until a request has arrived, so that a few hundred silent clients could use up all files of the
process. The protocol below adds these limits and leaves everything else to uvicorn.
"""

import asyncio
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from offrec.serving.options import ConnectionLimits

SWEEP_SECONDS = 0.5  # the time between two searches for connections whose time is over
GRACE_SECONDS = 2.0  # uvicorn and the application answer or close first, if they can
PRINT_SECONDS = 60.0  # the shortest time between two lines about closed connections


class Connections:
    """The open connections of a server.

    If there are too many, the oldest connection that never sent a whole request is closed; if all have sent one, the
    connection that has been idle longest. A connection whose request is being answered is never closed.

    Args:
        limits: The limits.
        print_line: Prints a sentence for the operator.
        count_closed: Called with the reason, "limit" or "time", for every connection that is closed.
    """

    def __init__(
        self, limits: ConnectionLimits, print_line: Callable[[str], None], count_closed: Callable[[str], None]
    ) -> None:
        self.limits, self.print_line, self.count_closed = limits, print_line, count_closed
        self.open: set[BoundedProtocol] = set()
        self.silent: OrderedDict[BoundedProtocol, None] = OrderedDict()  # have not yet sent a whole request
        self.idle: OrderedDict[BoundedProtocol, None] = OrderedDict()  # have been answered
        self.closed_by_limit = 0  # since the last line about them
        self.printed_at = -math.inf
        self.sweep: asyncio.TimerHandle | None = None

    def add(self, connection: "BoundedProtocol") -> None:
        """Add a new connection, and close others if there are too many."""
        self.open.add(connection)
        self.silent[connection] = None
        while len(self.open) > self.limits.connections and (self.silent or self.idle):
            oldest = next(iter(self.silent or self.idle))
            self.remove(oldest)
            oldest.transport.abort()
            self.count_closed("limit")
            self.closed_by_limit += 1
        if self.sweep is None:
            self.sweep = connection.loop.call_later(SWEEP_SECONDS, self._sweep, connection.loop)
        self._print_closed()

    def remove(self, connection: "BoundedProtocol") -> None:
        """Remove a connection that is closed."""
        self.open.discard(connection)
        self.mark_busy(connection)

    def mark_busy(self, connection: "BoundedProtocol") -> None:
        """Protect a connection whose request is being answered."""
        self.silent.pop(connection, None)
        self.idle.pop(connection, None)

    def mark_idle(self, connection: "BoundedProtocol") -> None:
        """Add a connection, whose request has been answered, to those that may be closed."""
        if connection in self.open:
            self.mark_busy(connection)
            self.idle[connection] = None

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections whose time is over."""
        now = loop.time()
        for connection in [one for one in self.open if one.deadline < now]:
            self.remove(connection)
            connection.transport.abort()
            self.count_closed("time")
        self.sweep = loop.call_later(SWEEP_SECONDS, self._sweep, loop) if self.open else None
        self._print_closed()

    def _print_closed(self) -> None:
        if self.closed_by_limit and time.monotonic() - self.printed_at >= PRINT_SECONDS:
            self.print_line(
                f"--max-connections {self.limits.connections} is reached; closed {self.closed_by_limit:,} idle "
                "connections, the oldest first"
            )
            self.closed_by_limit, self.printed_at = 0, time.monotonic()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the limits of `Connections`, which a subclass sets; see `bounded_protocol`."""

    registry: Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.deadline = math.inf  # when the connection is closed if its state does not change
        self.is_waiting = True  # for the first byte of a request
        self.is_in_headers = True
        self.header_bytes = 0  # received so far, while the headers are incomplete
        self.chunk_bytes = 0
        self._expire_after(self.registry.limits.transfer_seconds)
        self.registry.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.is_waiting:
            self.is_waiting = False
            self._expire_after(self.registry.limits.transfer_seconds)
        self.chunk_bytes = len(data)
        self.has_completed = False
        super().data_received(data)
        if self.is_in_headers and not self.has_completed:
            self.header_bytes += len(data)
            if self.header_bytes > self.registry.limits.header_bytes and not self.transport.is_closing():
                self.send_400_response("")

    def on_headers_complete(self) -> None:
        if self.header_bytes + self.chunk_bytes > self.registry.limits.header_bytes:
            self.header_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if self.header_bytes > self.registry.limits.header_bytes:
                raise ValueError("the headers are too large")  # httptools stops and uvicorn calls send_400_response
        self.is_in_headers, self.header_bytes = False, 0
        self._expire_after(self.registry.limits.transfer_seconds + GRACE_SECONDS)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.is_in_headers, self.header_bytes, self.has_completed = True, 0, True
        if self.cycle.response_complete:
            self._become_idle()
        else:
            self._wait_for_response()
            self.registry.mark_busy(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.is_in_headers and self.cycle.response_complete:  # else its body, or another request, is not complete
            self._become_idle()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expire_after(self.registry.limits.transfer_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.is_waiting:
            self._become_idle()
        elif self.is_in_headers:
            self._wait_for_response()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not valid HTTP, or whose headers are too large, and close the connection."""
        too_large = self.header_bytes > self.registry.limits.header_bytes
        status, sentence = 400, "The request is not valid HTTP."
        if too_large:
            limit = self.registry.limits.header_bytes
            status, sentence = 431, f"The headers are larger than the limit of {limit:,} bytes."
        body = json.dumps({"error": sentence}).encode()
        lines = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + lines + body)
        self.transport.close()
        self._expire_after(GRACE_SECONDS)

    def _wait_for_response(self) -> None:
        """Let the application take its time, unless the client does not read earlier responses."""
        if self.flow.write_paused:
            self._expire_after(self.registry.limits.transfer_seconds)
        else:
            self.deadline = math.inf

    def _become_idle(self) -> None:
        self.is_waiting = True
        self._expire_after(self.registry.limits.keep_alive_seconds + GRACE_SECONDS)
        self.registry.mark_idle(self)

    def _expire_after(self, seconds: float) -> None:
        self.deadline = self.loop.time() + seconds


def bounded_protocol(registry: Connections) -> type[BoundedProtocol]:
    """Return the protocol class for `uvicorn.Config(http=…)`.

    Args:
        registry: The connections of the server.

    Returns:
        A subclass of `BoundedProtocol`.
    """
    fields: dict[str, Any] = {"registry": registry}
    return type("ServerProtocol", (BoundedProtocol,), fields)
