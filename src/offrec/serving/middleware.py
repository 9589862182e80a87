"""ASGI middleware around the application: allowed hosts, authentication, limits on bodies, headers and metrics."""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from offrec.serving.errors import RequestError
from offrec.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON, TEXT = "application/json", "text/plain"
LISTS = "/v1/lists"
RETRY_SECONDS = 1  # after a 503 response, a client may retry after this time
# Other paths count as "other": one label per requested path would grow without limit.
MEASURED_PATHS = {
    "/v1/recommend",
    "/v1/events",
    "/v1/reload",
    "/v1/policies",
    "/v1/items",
    LISTS,
    "/healthz",
    "/readyz",
    "/metrics",
}
SECURITY_HEADERS: Headers = [
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
        b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


@dataclass(frozen=True)
class RequestChecks:
    """What the middleware checks.

    Attributes:
        token: The bearer token that /v1/* and /metrics require; None to require none.
        hosts: The host names that a request may address; None for any.
        origins: Host names of pages that may send requests although the proxy in front changes the Host header.
        body_bytes: Larger bodies are answered with 413.
        list_bytes: The same for bodies that set a list. One such body is read at a time; others are answered with 503.
        body_seconds: Bodies that take longer to arrive are answered with 408.
    """

    token: str | None = None
    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()
    body_bytes: int = 1 << 20
    list_bytes: int = 64 << 20
    body_seconds: float = 20.0


class RequestMiddleware:
    """Check and measure every request before the application sees it.

    The token and the size of the body are checked here instead of in FastAPI's dependencies, because FastAPI reads the
    whole body first.

    Args:
        app: The ASGI application to wrap.
        metrics: Counts requests and measures their duration.
        options: What is checked.
    """

    def __init__(self, app: App, metrics: Metrics, options: RequestChecks) -> None:
        self.app, self.metrics, self.options = app, metrics, options
        self.is_receiving_list = False
        self.authorization = None if options.token is None else f"Bearer {options.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, path = time.perf_counter(), 0, scope["path"]

        async def send_with_headers(message: Scope) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            await send(message)

        try:
            await self._handle(scope, receive, send_with_headers)
        finally:
            path = LISTS if path.startswith(f"{LISTS}/") else path
            measured = path if path in MEASURED_PATHS else "other"
            self.metrics.observe_request(measured, status, time.perf_counter() - start)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        refusal = self._wrong_host(headers) or self._other_site(scope["method"], headers)
        if refusal is not None:
            await send_error(send, 403, refusal)
            return
        if not self._is_authorized(scope["path"], headers):
            error = "This server requires a token; send the header Authorization: Bearer TOKEN."
            await send_error(send, 401, error, [(b"www-authenticate", b"Bearer")])
            return
        if scope["method"] == "PUT" and scope["path"].startswith(f"{LISTS}/"):
            await self._handle_list(scope, headers, receive, send)
            return
        if scope["method"] == "POST" and scope["path"].startswith("/v1/"):
            try:
                body = await self._read_body(headers, receive, self.options.body_bytes, (JSON,))
            except RequestError as error:
                await send_error(send, error.status, error.sentence)
                return
            receive = _replay(body, receive)
        await self.app(scope, receive, send)

    async def _handle_list(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        """Handle a request that sets a list. Its body can be large, so there is only one at a time."""
        if self.is_receiving_list:
            await send_error(send, 503, "Another list is being set; repeat the request in a moment.")
            return
        self.is_receiving_list = True
        try:
            body = await self._read_body(headers, receive, self.options.list_bytes, (JSON, TEXT))
            await self.app(scope, _replay(body, receive), send)
        except RequestError as error:
            await send_error(send, error.status, error.sentence)
        finally:
            self.is_receiving_list = False

    def _wrong_host(self, headers: dict[bytes, bytes]) -> str | None:
        """Return an error if the request addresses another host.

        A page of another site can let its own name resolve to this server's address (DNS rebinding). The browser then
        treats both as one site, but still sends the page's name. Starlette's TrustedHostMiddleware knows no IPv6.
        """
        host = headers.get(b"host")
        if self.options.hosts is None or host is None or _host_name(host) in self.options.hosts:
            return None  # every browser sends Host
        return f"Host is {_quote(host)}, which this server does not answer for; allow it with --allow-host."

    def _other_site(self, method: str, headers: dict[bytes, bytes]) -> str | None:
        """Return an error if a browser sends the request for a page of another origin."""
        origin = headers.get(b"origin")
        if origin is not None:
            address = origin.partition(b"://")[2]
            if address != headers.get(b"host") and _host_name(address) not in self.options.origins:
                return f"Origin is {_quote(origin)}; pages of other origins may not use this server."
        if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            follows_link = headers.get(b"sec-fetch-dest") == b"document" and method == "GET"
            if not follows_link and _host_name((origin or b"").partition(b"://")[2]) not in self.options.origins:
                return "Sec-Fetch-Site names another site; pages of other origins may not use this server."
        return None

    def _is_authorized(self, path: str, headers: dict[bytes, bytes]) -> bool:
        if self.authorization is None or not (path.startswith("/v1/") or path == "/metrics"):
            return True
        return hmac.compare_digest(headers.get(b"authorization", b""), self.authorization)

    async def _read_body(
        self, headers: dict[bytes, bytes], receive: Receive, limit: int, types: tuple[str, ...]
    ) -> bytes:
        too_large = RequestError(413, f"The body is larger than the limit of {limit:,} bytes.")
        length = headers.get(b"content-length", b"").decode("latin-1")
        if length.isdecimal() and int(length[:20]) > limit:
            raise too_large
        content_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        # Browsers send JSON to another site only if that site allows it, so no foreign page can post here.
        if content_type not in types:
            expected = " or ".join(types)
            raise RequestError(
                415, f"Content-Type is {content_type[:80] or 'missing'!r}; send Content-Type: {expected}."
            )
        body = bytearray()
        try:
            async with asyncio.timeout(self.options.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(400, "The connection was closed before the body was complete.")
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError as error:
            seconds = self.options.body_seconds
            raise RequestError(408, f"The body did not arrive within {seconds:g} seconds.") from error


def _host_name(address: bytes) -> str:
    """Return the host name of an address like `localhost:8000` or `[::1]:8000`."""
    text = address.decode("latin-1").lower()
    return text.partition("]")[0].removeprefix("[") if text.startswith("[") else text.partition(":")[0]


def _quote(value: bytes) -> str:
    return repr(value[:80].decode("latin-1"))


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body once, then the further messages of the connection."""
    is_sent = False

    async def receive_again() -> Scope:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def send_error(send: Send, status: int, sentence: str, headers: Headers | None = None) -> None:
    """Send a JSON response with one error sentence.

    Args:
        send: The ASGI `send` of the connection.
        status: The HTTP status code.
        sentence: The error.
        headers: More headers.
    """
    body = json.dumps({"error": sentence}, ensure_ascii=False).encode()
    length = (b"content-length", str(len(body)).encode())
    more: Headers = [*(headers or [])]
    if status == 503:
        more.append((b"retry-after", str(RETRY_SECONDS).encode()))
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(b"content-type", b"application/json"), length, *more]})
    await send({"type": "http.response.body", "body": body})
