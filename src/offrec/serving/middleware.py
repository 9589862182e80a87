"""What every request passes first: the token and the clock."""

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from offrec.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COUNTED = {"/v1/recommend", "/v1/events", "/v1/reload", "/v1/policies", "/v1/items", "/healthz", "/readyz", "/metrics"}
SAFE = [
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class RequestMiddleware:
    """An ASGI application around another. /v1/* and /metrics need the token, if there is one."""

    def __init__(self, app: App, metrics: Metrics, token: str | None) -> None:
        self.app, self.metrics = app, metrics
        self.expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, path = time.perf_counter(), 0, scope["path"]

        async def watched(message: Scope) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *SAFE]
            await send(message)

        try:
            if self._admits(scope):
                await self.app(scope, receive, watched)
            else:
                said = "This server needs a token; send the header Authorization: Bearer TOKEN."
                await _answer(watched, 401, said, [(b"www-authenticate", b"Bearer")])
        finally:
            self.metrics.request(path if path in COUNTED else "other", status, time.perf_counter() - began)

    def _admits(self, scope: Scope) -> bool:
        if self.expected is None or not (scope["path"].startswith("/v1/") or scope["path"] == "/metrics"):
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self.expected)


async def _answer(send: Send, status: int, sentence: str, headers: list[tuple[bytes, bytes]]) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
