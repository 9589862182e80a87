"""The HTTP application: routes, responses and error handlers. Needs FastAPI."""

import json
import mimetypes
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from offrec.serving import schemas
from offrec.serving.errors import RequestError
from offrec.serving.middleware import JSON, RETRY_SECONDS, TEXT, RequestChecks, RequestMiddleware
from offrec.serving.openapi import build_openapi, docs_page
from offrec.serving.service import Service
from offrec.serving.validation_messages import validation_sentence

PAGE_FOLDER = Path(__file__).parent / "page"
ERRORS = {
    400: "The body is not valid JSON.",
    401: "The bearer token is missing or wrong.",
    403: "The request addresses another host, or comes from a page of another site.",
    404: "The policy or the list does not exist.",
    408: "The body did not arrive in time.",
    409: "The server cannot do this in its current state.",
    413: "The body is too large.",
    415: "The body has another Content-Type than the server reads.",
    422: "A field is invalid.",
    503: "Too many requests are waiting, or the server is stopping.",
}
BODY_ERRORS = (400, 401, 403, 408, 413, 415, 422, 503)
FIELDS = {
    "/v1/recommend": list(schemas.RecommendRequest.model_fields),
    "/v1/events": list(schemas.EventRequest.model_fields),
    "/v1/reload": list(schemas.ReloadRequest.model_fields),
    "/v1/items": list(schemas.ItemQuery.model_fields),
    "GET /v1/lists": list(schemas.ListQuery.model_fields),
    "PUT /v1/lists": list(schemas.NewListQuery.model_fields),
}
IDS_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        JSON: {"schema": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}},
        TEXT: {"schema": {"type": "string", "description": "One item id per line."}},
    },
}


def create_app(service: Service, checks: RequestChecks | None = None, lifespan: Any = None) -> RequestMiddleware:
    """Build the ASGI application of a service.

    Args:
        service: Answers the requests.
        checks: What is checked before a request is read; None for the default checks, without a token.
        lifespan: The lifespan context of FastAPI.

    Returns:
        The application, wrapped in the middleware that checks and measures requests.
    """
    checks = checks or RequestChecks()
    app = FastAPI(docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_exception)
    _add_policy_routes(app, service)
    _add_recommend_routes(app, service)
    _add_list_routes(app, service)
    _add_health_routes(app, service)
    _add_docs(app, service, needs_token=checks.token is not None)
    _add_explorer(app)
    return RequestMiddleware(app, service.metrics, checks)


def _add_recommend_routes(app: FastAPI, service: Service) -> None:
    body_model = schemas.recommend_request_model(service.limits)

    @app.post("/v1/recommend", response_model=schemas.RecommendResponse, responses=_error_responses(*BODY_ERRORS, 404))
    async def recommend(body: body_model) -> Response:  # type: ignore[valid-type]
        """Return the k best items after a history, or a list sampled from the policy with its exact probability."""
        return _json_response(await service.recommend(body))

    @app.post("/v1/events", response_model=schemas.EventResponse, responses=_error_responses(*BODY_ERRORS, 409))
    async def events(body: schemas.EventRequest) -> Response:
        """Record in the decision log what a visitor did with an item. 409: the server has no decision log."""
        return _json_response(await service.record_event(body))

    @app.post("/v1/reload", response_model=schemas.ReloadResponse, responses=_error_responses(*BODY_ERRORS, 404, 409))
    async def reload(body: schemas.ReloadRequest | None = None) -> Response:
        """Load the policies again and swap them in one step. 409: the new run is invalid and the old policy remains."""
        return _json_response(await service.reload(None if body is None else body.policy))


def _add_policy_routes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/policies", response_model=schemas.PoliciesResponse, responses=_error_responses(401, 403))
    async def policies() -> Response:
        """List the served policies and the limits of a request."""
        return _json_response(service.describe_policies())

    @app.get("/v1/items", response_model=schemas.ItemsResponse, responses=_error_responses(401, 403, 404, 422, 503))
    async def items(query: Annotated[schemas.ItemQuery, Query()]) -> Response:
        """Find items whose id starts with the query, whose id contains it, or whose title contains its words.

        Popular items come first."""
        return _json_response(await service.search_items(query.query, query.limit, query.policy))


def _add_list_routes(app: FastAPI, service: Service) -> None:
    errors = (401, 403, 404, 422, 503)

    @app.get("/v1/lists", response_model=schemas.ListsResponse, responses=_error_responses(401, 403, 503))
    async def lists() -> Response:
        """Describe the lists of items that the server holds."""
        return _json_response(await service.lists.describe_all())

    @app.get("/v1/lists/{name}", response_model=schemas.ListItemsResponse, responses=_error_responses(*errors))
    async def get_list(name: str, query: Annotated[schemas.ListQuery, Query()]) -> Response:
        """Return a list, with a part of its ids."""
        return _json_response(await service.lists.read(name, query.offset, query.limit))

    @app.put(
        "/v1/lists/{name}",
        response_model=schemas.ChangedListResponse,
        responses=_error_responses(*BODY_ERRORS, 409),
        openapi_extra={"requestBody": IDS_BODY},
    )
    async def put_list(name: str, request: Request, query: Annotated[schemas.NewListQuery, Query()]) -> Response:
        """Create or replace a list of item ids, in all workers, from a JSON array or text with one id per line."""
        is_json = request.headers["content-type"].partition(";")[0].strip().lower() == JSON
        service.slot(None)
        return _json_response(await service.lists.put(name, await request.body(), is_json, query.empty))

    @app.delete("/v1/lists/{name}", response_model=schemas.DeletedResponse, responses=_error_responses(*errors))
    async def delete_list(name: str) -> Response:
        """Delete a list. Requests that name it are then answered with 404."""
        return _json_response(await service.lists.delete(name))


def _add_health_routes(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=schemas.HealthResponse, responses=_error_responses(403))
    async def healthz() -> Response:
        """Return 200 while the process runs."""
        return _json_response({"status": "ok", "decision_log": service.log_status()})

    @app.get("/readyz", response_model=schemas.HealthResponse, responses=_error_responses(403, 503))
    async def readyz() -> Response:
        """Return 200 while the server accepts requests."""
        service.slot(None)
        return _json_response({"status": "ready", "decision_log": service.log_status()})

    @app.get("/metrics", responses=_error_responses(401, 403), response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the metrics for Prometheus."""
        return PlainTextResponse(service.read_metrics(), media_type="text/plain; version=0.0.4")


def _add_docs(app: FastAPI, service: Service, needs_token: bool) -> None:
    # Cached: the document is public, and its examples change only with the default policy.
    @lru_cache(maxsize=1)
    def build(fingerprint: str) -> tuple[dict[str, Any], str]:
        document = build_openapi(app, service, needs_token)
        return document, docs_page(document)

    def current() -> tuple[dict[str, Any], str]:
        return build(service.policies.slots[service.policies.default].served.fingerprint)

    app.openapi = lambda: current()[0]  # type: ignore[method-assign]

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(current()[1])


def _add_explorer(app: FastAPI) -> None:
    # The files are listed once, so that the path of a request is never used to access the disk.
    files = {str(file.relative_to(PAGE_FOLDER)): file for file in PAGE_FOLDER.rglob("*") if file.is_file()}

    @app.get("/{path:path}", include_in_schema=False)
    async def explorer(path: str) -> Response:
        file = files.get(path or "index.html")
        if file is None:
            raise HTTPException(404)
        media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return Response(file.read_bytes(), media_type=media_type, headers={"cache-control": "no-cache"})


def _error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe error statuses for the OpenAPI document."""
    return {status: {"model": schemas.ErrorResponse, "description": ERRORS[status]} for status in sorted(statuses)}


def _json_response(content: Any, status: int = 200) -> Response:
    """Encode a response directly, because validating it against its model would slow down every request."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Response(text.encode(), status, media_type="application/json")


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    response = _json_response({"error": error.sentence}, error.status)
    if error.status == 503:
        response.headers["retry-after"] = str(RETRY_SECONDS)
    return response


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    status = 400 if first["type"] == "json_invalid" else 422
    path = request.url.path
    path = f"{request.method} /v1/lists" if path.startswith("/v1/lists/") else path
    fields = FIELDS.get(path, [])
    return _json_response({"error": validation_sentence(first, fields)}, status)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:80]
    sentences = {
        400: "The body is not valid JSON; send one JSON object.",
        404: f"{path!r} does not exist; see /docs.",
        405: f"{path!r} does not support {request.method}; see /docs.",
    }
    response = _json_response({"error": sentences.get(error.status_code, str(error.detail))}, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _on_exception(request: Request, error: Exception) -> Response:
    return _json_response({"error": "The server failed; its standard error has the details."}, 500)
