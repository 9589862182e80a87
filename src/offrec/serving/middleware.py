"""ASGI middleware around the application: authentication, limits on request bodies, security headers and metrics."""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from offrec.serving.errors import RequestError
from offrec.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

BODY_SECONDS = 30.0  # a body that takes longer to arrive is rejected
RETRY_SECONDS = 1  # after a 503 response, a client may retry after this time
# Other paths count as "other": one label per requested path would grow without limit.
MEASURED_PATHS = {
    "/v1/recommend",
    "/v1/events",
    "/v1/reload",
    "/v1/policies",
    "/v1/items",
    "/healthz",
    "/readyz",
    "/metrics",
}
SECURITY_HEADERS: Headers = [
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class RequestMiddleware:
    """Check and measure every request before the application sees it.

    The token and the size of the body are checked here instead of in FastAPI's dependencies, because FastAPI reads the
    whole body first.

    Args:
        app: The ASGI application to wrap.
        metrics: Counts requests and measures their duration.
        token: The bearer token that /v1/* and /metrics require; None to require none.
        max_body_bytes: Larger bodies are answered with 413.
    """

    def __init__(self, app: App, metrics: Metrics, token: str | None, max_body_bytes: int) -> None:
        self.app, self.metrics, self.max_body_bytes = app, metrics, max_body_bytes
        self.authorization = None if token is None else f"Bearer {token}".encode()

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
            measured = path if path in MEASURED_PATHS else "other"
            self.metrics.observe_request(measured, status, time.perf_counter() - start)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if not self._is_authorized(scope["path"], headers):
            error = "This server requires a token; send the header Authorization: Bearer TOKEN."
            await send_error(send, 401, error, [(b"www-authenticate", b"Bearer")])
            return
        if scope["method"] == "POST" and scope["path"].startswith("/v1/"):
            try:
                receive = _replay(await self._read_body(headers, receive), receive)
            except RequestError as error:
                await send_error(send, error.status, error.sentence)
                return
        await self.app(scope, receive, send)

    def _is_authorized(self, path: str, headers: dict[bytes, bytes]) -> bool:
        if self.authorization is None or not (path.startswith("/v1/") or path == "/metrics"):
            return True
        return hmac.compare_digest(headers.get(b"authorization", b""), self.authorization)

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        too_large = RequestError(413, f"The body is larger than the limit of {self.max_body_bytes:,} bytes.")
        length = headers.get(b"content-length", b"").decode("latin-1")
        if length.isdecimal() and int(length[:20]) > self.max_body_bytes:
            raise too_large
        content_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        # Browsers send JSON to another site only if that site allows it, so no foreign page can post here.
        if content_type != "application/json":
            raise RequestError(
                415, f"Content-Type is {content_type[:80] or 'missing'!r}; send Content-Type: application/json."
            )
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(400, "The connection was closed before the body was complete.")
                    body += message.get("body", b"")
                    if len(body) > self.max_body_bytes:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError as error:
            raise RequestError(408, f"The body did not arrive within {BODY_SECONDS:g} seconds.") from error


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
