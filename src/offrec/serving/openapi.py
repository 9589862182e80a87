"""Build the OpenAPI document with examples that work on this server, and a page that shows it without other servers.

The document is public. If the server requires a token, its examples contain no real item ids or policy names.
"""

import json
import shlex
from html import escape
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from offrec.policy import Id
from offrec.serving.service import Service

DESCRIPTION = "Recommendations from policies learned offline, and the exact probability of every sampled list."
ADDRESS = "http://127.0.0.1:8000"
JSON = "application/json"
LIST = "in-stock"  # the name of a list in examples


def build_openapi(app: FastAPI, service: Service, needs_token: bool) -> dict[str, Any]:
    """Let FastAPI generate the OpenAPI document, then add examples and the security scheme.

    Args:
        app: The application with its routes.
        service: The served policies; the examples use their item ids.
        needs_token: Whether the server requires a token. The examples then use invented ids and names.

    Returns:
        The document.
    """
    document = get_openapi(title="offrec", version="1", description=DESCRIPTION, routes=app.routes)
    for (path, method), examples in (_invented_examples() if needs_token else _real_examples(service)).items():
        operation = document["paths"][path][method]
        if "requestBody" in operation:
            operation["requestBody"]["content"][JSON]["examples"] = {
                summary: {"summary": summary, "value": value} for summary, value in examples.items()
            }
        for parameter in operation.get("parameters", []):
            if parameter["name"] == "name" or "requestBody" not in operation:
                parameter["example"] = LIST if parameter["name"] == "name" else examples[parameter["name"]]
    if needs_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            if path.startswith("/v1/") or path == "/metrics":
                for operation in operations.values():
                    operation["security"] = [{"token": []}]
    return document


Examples = dict[tuple[str, str], dict[str, Any]]  # (path, method) → name → value


def _real_examples(service: Service) -> Examples:
    """Return examples with item ids of the default policy; a client can send them as they are."""
    policy = service.policies.slots[service.policies.default].served.policy
    items = [policy.vocabulary.id(index) for index in range(min(3, policy.n_items))]
    return _examples(items, min(5, policy.n_items, service.limits.k), policy.stochastic, service.policies.default)


def _invented_examples() -> Examples:
    return _examples(["item-1", "item-2", "item-3"], 5, True, "POLICY")


def _examples(items: list[Id], k: int, stochastic: bool, policy: str) -> Examples:
    sampled = {"history": items, "k": k, "sample": True, "session_id": "visit-1", "request_id": "list-1"}
    recommend: dict[str, Any] = {
        "best items after a history": {"history": items, "k": k},
        "new visitor": {"k": k},
        "with excluded items": {"history": items[:1], "k": 1, "exclude": items[1:]},
        "among candidates": {"history": items[:1], "k": min(2, k), "candidates": items},
    }
    if stochastic:
        recommend["sampled list"] = sampled
        recommend["sampled list, flatter distribution"] = {**sampled, "temperature": 2.0}
    click = {"item": items[0], "behaviour": "click", "request_id": "list-1", "session_id": "visit-1"}
    return {
        ("/v1/recommend", "post"): recommend,
        ("/v1/events", "post"): {
            "click on an item of a list": click,
            "purchase with its price": {**click, "behaviour": "buy", "reward": 9.99},
        },
        ("/v1/reload", "post"): {"all policies": {}, "one policy": {"policy": policy}},
        ("/v1/lists/{name}", "put"): {"items in stock": items},
        ("/v1/lists/{name}", "get"): {"offset": 0, "limit": 5},
        ("/v1/lists/{name}", "delete"): {},
        ("/v1/items", "get"): {"query": str(items[0])[:1], "limit": 5, "policy": policy},
    }


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark }
pre { background: #8882; padding: .7rem; overflow-x: auto; border-radius: .3rem }
h2 { margin-top: 2.5rem }
td { border-bottom: 1px solid #8884; padding: .2rem .8rem .2rem 0; vertical-align: top }
"""


def docs_page(document: dict[str, Any]) -> str:
    """Render the OpenAPI document as one HTML page that loads nothing from other servers.

    Args:
        document: The OpenAPI document.

    Returns:
        The HTML text.
    """
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>offrec API</title><style>{STYLE}</style>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<h1>offrec API</h1><p>{escape(document['info']['description'])} <a href=openapi.json>openapi.json</a></p>",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation['description'])}</p>")
            parts += _field_table(document, operation)
            parts += _curl_commands(path, method, operation)
            for status, response in operation["responses"].items():
                parts.append(f"<div><code>{status}</code> {escape(response['description'])}</div>")
    return "".join(parts)


def _field_table(document: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    rows = [(field["name"], field.get("description", "")) for field in operation.get("parameters", [])]
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"][JSON]["schema"]
        schema = schema.get("anyOf", [schema])[0]  # anyOf: the body is optional
        name = schema.get("$ref", "").rpartition("/")[2]
        fields = document["components"]["schemas"][name]["properties"] if name else {}
        rows += [(name, field.get("description", "")) for name, field in fields.items()]
    cells = [f"<tr><td><code>{escape(name)}</code><td>{escape(text)}" for name, text in rows]
    return ["<table>", *cells, "</table>"] if rows else []


def _curl_commands(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    parameters = operation.get("parameters", [])
    shown = [field for field in parameters if field["in"] == "query" and "example" in field]
    query = urlencode({field["name"]: field["example"] for field in shown})
    address = ADDRESS + path.replace("{name}", LIST) + ("?" + query if query else "")
    verb = f"-X {method.upper()} " if method in ("put", "delete") else ""
    if "requestBody" not in operation:
        return [f"<pre>curl {verb}{escape(shlex.quote(address))}</pre>"]
    examples = operation["requestBody"]["content"][JSON]["examples"].values()
    lines = [
        f"# {one['summary']}\ncurl {verb}{address} --json {shlex.quote(json.dumps(one['value']))}" for one in examples
    ]
    return [f"<pre>{escape(chr(10).join(lines))}</pre>"]
