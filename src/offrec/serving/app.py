"""The service over HTTP: paths, bodies, answers. Needs fastapi; `http_door` is what stands before every path."""

import asyncio
import json
import mimetypes
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from offrec.serving import schemas
from offrec.serving.errors import RequestError
from offrec.serving.middleware import RequestMiddleware
from offrec.serving.openapi import described, page
from offrec.serving.service import Service

PAGE = Path(__file__).parent / "page"
BODY_SECONDS = 30.0  # in which a body must have come
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": schemas.Problem, "description": "The body is no JSON."},
    401: {"model": schemas.Problem, "description": "The bearer token is missing or another."},
    404: {"model": schemas.Problem, "description": "There is no such policy."},
    408: {"model": schemas.Problem, "description": "The body did not come in time."},
    413: {"model": schemas.Problem, "description": "The body is too large."},
    415: {"model": schemas.Problem, "description": "The body is not application/json."},
    422: {"model": schemas.Problem, "description": "A field is not as expected."},
    503: {"model": schemas.Problem, "description": "Too many requests are waiting, or the server is stopping."},
}


def problems(*statuses: int, ok: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": ok}, **{status: PROBLEMS[status] for status in statuses}}


def application(service: Service, token: str | None = None, lifespan: Any = None) -> RequestMiddleware:
    app = FastAPI(docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(RequestValidationError, _bad_query)
    app.add_exception_handler(Exception, _failed)
    _policies(app, service)
    _recommend(app, service)
    _health(app, service)
    _description(app, service, token is not None)
    _page(app)
    return RequestMiddleware(app, service.metrics, token)


def _description(app: FastAPI, service: Service, secured: bool) -> None:
    """Made once for each default policy: everybody may ask for it, as often as they like."""

    @lru_cache(maxsize=1)
    def made(fingerprint: str) -> tuple[dict[str, Any], str]:
        tree = described(app, service, secured)
        return tree, page(tree)

    def now() -> tuple[dict[str, Any], str]:
        return made(service.slots[service.default].served.fingerprint)

    app.openapi = lambda: now()[0]  # type: ignore[method-assign]

    @app.get("/docs", include_in_schema=False)
    async def documentation() -> HTMLResponse:
        return HTMLResponse(now()[1])


def _recommend(app: FastAPI, service: Service) -> None:
    posts = (400, 401, 404, 408, 413, 415, 422, 503)

    @app.post("/v1/recommend", responses=problems(*posts, ok=schemas.Recommended), **_takes(schemas.Recommend))
    async def recommend(request: Request) -> Response:
        """The best items after a history, or a list drawn from the policy, with how likely it was."""
        body = await _body(request, service.limits.body)
        return _json(await service.recommend(schemas.read(schemas.Recommend, body)))

    recorded = problems(400, 401, 408, 413, 415, 422, 503, ok=schemas.Recorded)
    recorded[409] = {"model": schemas.Problem, "description": "The server keeps no decision log."}

    @app.post("/v1/events", responses=recorded, **_takes(schemas.Event))
    async def events(request: Request) -> Response:
        """Record what a visitor did, in the decision log."""
        body = await _body(request, service.limits.body)
        return _json(service.event(schemas.read(schemas.Event, body)))

    reloaded = problems(*posts, ok=schemas.Reloaded)
    reloaded[409] = {"model": schemas.Problem, "description": "The new run was refused; the old one stays."}

    @app.post("/v1/reload", responses=reloaded, **_takes(schemas.Reload))
    async def reload(request: Request) -> Response:
        """Read the runs again: loaded and checked first, then swapped at once; running requests end on the old."""
        body = await _body(request, service.limits.body)
        return _json(await service.reload(schemas.read(schemas.Reload, body or b"{}").policy))


def _policies(app: FastAPI, service: Service) -> None:
    @app.get("/v1/policies", responses=problems(401, ok=schemas.Policies))
    async def policies() -> Response:
        """What is served, and the limits."""
        return _json(service.policies())

    text = Query(max_length=200, description="A piece of an id; letters' case does not count.")
    name = Query(max_length=200, description="Of which policy's catalogue; by default the default one's.")

    @app.get("/v1/items", responses=problems(401, 404, 422, 503, ok=schemas.Items))
    async def items(
        query: Annotated[str, text] = "",
        limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 20,
        policy: Annotated[str | None, name] = None,
    ) -> Response:
        """Items whose id begins with the query, then those that hold it elsewhere; the popular ones first."""
        return _json(await service.items(query, limit, policy))


def _health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", responses={200: {"model": schemas.Status}})
    async def healthz() -> Response:
        """The process lives."""
        return _json({"status": "ok", "decision_log": service.log_status()})

    @app.get("/readyz", responses=problems(503, ok=schemas.Status))
    async def readyz() -> Response:
        """It takes requests."""
        service.slot(None)
        return _json({"status": "ready", "decision_log": service.log_status()})

    @app.get("/metrics", responses={401: PROBLEMS[401]}, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return PlainTextResponse(service.metrics_text(), media_type="text/plain; version=0.0.4")


def _page(app: FastAPI) -> None:
    """The explorer's files, known by name from the start: no path of a request is ever looked up on the disk."""
    files = {str(file.relative_to(PAGE)): file for file in PAGE.rglob("*") if file.is_file()}

    @app.get("/{path:path}", include_in_schema=False)
    async def explorer(path: str) -> Response:
        file = files.get(path or "index.html")
        if file is None:
            raise HTTPException(404)
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return Response(file.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


def _takes(kind: type[schemas.Asked]) -> dict[str, Any]:
    """The body by hand: read once, as fast as it can be, and refused in one sentence."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    content = {"application/json": {"schema": schema}}
    return {"openapi_extra": {"requestBody": {"required": kind is not schemas.Reload, "content": content}}}


async def _body(request: Request, most: int) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    declared = request.headers.get("content-length", "")
    too_large = RequestError(413, f"The body is larger than the {most:,} bytes that are read here.")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise too_large
    # A browser sends JSON to another site only if that site agrees: no page can post here behind one's back.
    if kind != "application/json":
        raise RequestError(415, f"The body is {kind[:80] or 'of no stated type'}; send Content-Type: application/json.")
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except ClientDisconnect as error:
        raise RequestError(400, "The body ended before it was whole.") from error
    except TimeoutError as error:
        raise RequestError(408, f"The body did not come within {BODY_SECONDS:g} seconds.") from error
    return b"".join(parts)


def _json(tree: Any, status: int = 200) -> Response:
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Response(text.encode(), status, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    answer = _json({"error": error.sentence}, error.status)
    if error.status == 503:
        answer.headers["retry-after"] = "1"
    return answer


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:80]
    said = {
        404: f"There is nothing at {path}; see /docs.",
        405: f"{request.method} is not what {path} takes; see /docs.",
    }
    return JSONResponse({"error": said.get(error.status_code, str(error.detail))}, error.status_code, error.headers)


async def _bad_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _json({"error": f"{first['loc'][-1]}: {str(first['msg']).lower()}."}, 422)


async def _failed(request: Request, error: Exception) -> Response:
    return _json({"error": "The server failed to answer; what it wrote to standard error says why."}, 500)
