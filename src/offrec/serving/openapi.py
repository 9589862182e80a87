"""The OpenAPI description, with this server's limits and with examples that work on it, and a page that shows it.

Both are open to everybody: where a token is asked for, the examples' ids and names are made up.
"""

import json
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from offrec.policy import Id
from offrec.serving import schemas
from offrec.serving.service import Service

ABOUT = "Recommendations from policies learned offline, with the exact probability of every list that is drawn."
BODIES = (schemas.Recommend, schemas.Event, schemas.Reload)


def described(app: FastAPI, service: Service, secured: bool) -> dict[str, Any]:
    tree = get_openapi(title="offrec", version="1", description=ABOUT, routes=app.routes)
    schemas = tree["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for kind in BODIES:
        schemas[kind.__name__] = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    _limit(schemas["Recommend"]["properties"], service)
    for (path, method), examples in (_made_up() if secured else _real(service)).items():
        operation = tree["paths"][path][method]
        if method == "post":
            operation["requestBody"]["content"]["application/json"]["examples"] = {
                name: {"summary": name, "value": value} for name, value in examples.items()
            }
        else:
            for parameter in operation.get("parameters", []):
                if parameter["name"] in examples:
                    parameter["example"] = examples[parameter["name"]]
    if secured:
        tree["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in tree["paths"].items():
            if path.startswith("/v1/") or path == "/metrics":
                for operation in operations.values():
                    operation["security"] = [{"token": []}]
    return tree


def _limit(fields: dict[str, Any], service: Service) -> None:
    limits = service.limits
    fields["k"]["maximum"] = limits.k
    del fields["k"]["exclusiveMaximum"]
    fields["history"]["maxItems"], fields["exclude"]["maxItems"] = limits.history, limits.exclude
    fields["candidates"]["anyOf"][0]["maxItems"] = limits.candidates


Examples = dict[tuple[str, str], dict[str, Any]]


def _real(service: Service) -> Examples:
    """With ids of the default policy's catalogue, so that they can be sent as they are."""
    policy = service.slots[service.default].served.policy
    few = [policy.vocabulary.id(index) for index in range(min(3, policy.n_items))]
    return _examples(few, min(5, policy.n_items), policy.stochastic, service.default)


def _made_up() -> Examples:
    return _examples(["item-1", "item-2", "item-3"], 5, True, "POLICY")


def _examples(few: list[Id], k: int, stochastic: bool, policy: str) -> Examples:
    drawn = {"history": few, "k": k, "sample": True, "session_id": "visit-1", "request_id": "list-1"}
    recommend: dict[str, Any] = {
        "the best after a history": {"history": few, "k": k},
        "a new visitor": {"k": k},
        "some items are not to be shown": {"history": few[:1], "k": 1, "exclude": few[1:]},
        "among candidates": {"history": few[:1], "k": 2 if k > 1 else 1, "candidates": few},
    }
    if stochastic:
        recommend["a drawn list"] = drawn
        recommend["a drawn list, chances evened out"] = {**drawn, "temperature": 2.0}
    picked = {"item": few[0], "behaviour": "click", "request_id": "list-1", "session_id": "visit-1"}
    return {
        ("/v1/recommend", "post"): recommend,
        ("/v1/events", "post"): {"a click on an item of a list": picked},
        ("/v1/reload", "post"): {"all": {}, "one": {"policy": policy}},
        ("/v1/items", "get"): {"query": str(few[0])[:1], "limit": 5, "policy": policy},
    }


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark }
pre { background: #8882; padding: .7rem; overflow-x: auto; border-radius: .3rem }
h2 { margin-top: 2.5rem }
td { border-bottom: 1px solid #8884; padding: .2rem .8rem .2rem 0; vertical-align: top }
"""


def page(tree: dict[str, Any]) -> str:
    """The description as one plain page that asks nothing of any other server."""
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>offrec API</title><style>{STYLE}</style>"]
    parts.append(
        f"<h1>offrec API</h1><p>{escape(tree['info']['description'])} <a href=openapi.json>openapi.json</a></p>"
    )
    for path, operations in tree["paths"].items():
        for method, operation in operations.items():
            parts.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['description'])}</p>"
            )
            parts += _fields(tree, operation)
            parts += _curls(path, method, operation)
            for status, answer in operation["responses"].items():
                parts.append(f"<div><code>{status}</code> {escape(answer['description'])}</div>")
    return "".join(parts)


def _fields(tree: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    rows = [(field["name"], field.get("description", "")) for field in operation.get("parameters", [])]
    if "requestBody" in operation:
        name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        fields = tree["components"]["schemas"][name]["properties"].items()
        rows += [(field, facts.get("description", "")) for field, facts in fields]
    cells = (f"<tr><td><code>{escape(name)}</code><td>{escape(text)}" for name, text in rows)
    return ["<table>", *cells, "</table>"] if rows else []


def _curls(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    if method == "get":
        query = "&".join(f"{p['name']}={p['example']}" for p in operation.get("parameters", []) if "example" in p)
        return [f"<pre>curl '{escape('http://127.0.0.1:8000' + path + ('?' + query if query else ''))}'</pre>"]
    examples = operation["requestBody"]["content"]["application/json"]["examples"].values()
    lines = [
        f"# {one['summary']}\ncurl http://127.0.0.1:8000{path} --json '{json.dumps(one['value'])}'" for one in examples
    ]
    return [f"<pre>{escape(chr(10).join(lines))}</pre>"]
