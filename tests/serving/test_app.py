"""The contract of every path: what it gives, and the sentence for everything it does not."""

import json
import math
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from random_runs import write_run
from small_server import client_of, records, until

from offrec.runs.loading import load
from offrec.serving import app
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.service import Limits

SKUS = [f"sku-{number:02d}" for number in range(40)]
NUMBERS = list(range(500, 540))
LIMITS = Limits(k=20, history=50, exclude=30, candidates=30, body=10_000)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        "text": write_run(folder / "text", SKUS, algorithm_name="dc"),
        "numbers": write_run(folder / "numbers", NUMBERS, seed=1),
        "scores": write_run(folder / "scores", NUMBERS, algorithm_name="dqn"),
    }


@pytest.fixture(scope="module")
def client(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("log")
    with client_of(
        runs, log=folder, log_options=DecisionLogOptions(flush_seconds=0.02), limits=LIMITS, seed=0
    ) as client:
        client.folder = folder  # type: ignore[attr-defined]
        yield client


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/recommend", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(client: httpx.Client, body: bytes | dict[str, Any], path: str = "/v1/recommend") -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=data, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    assert list(answer.json()) == ["error"]
    sentence: str = answer.json()["error"]
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return answer.status_code, sentence


def test_the_best_are_those_of_the_run(client: httpx.Client, runs: dict[str, Path]) -> None:
    found = ask(client, history=["sku-03", "sku-07", "nope"], k=5, exclude_seen=True)
    expected = load(runs["text"], "cpu").recommend(["sku-03", "sku-07"], 5, exclude_seen=True)
    assert [row["item"] for row in found["items"]] == expected.items
    assert [row["probability"] for row in found["items"]] == pytest.approx(expected.probabilities, rel=1e-4)
    assert [row["score"] for row in found["items"]] == pytest.approx(expected.scores, abs=1e-5)
    assert found["unknown_items"] == 1
    assert found["restricted"]
    assert found["log_probability"] is None
    assert "position_probability" not in found["items"][0]
    assert found["policy"] == "text"


def test_a_sampled_list_says_how_likely_it_was(client: httpx.Client) -> None:
    found = ask(client, history=["sku-03"], k=3, sample=True, temperature=2, request_id="mine", session_id="s")
    assert found["request_id"] == "mine"
    assert not found["restricted"]
    places = [row["position_probability"] for row in found["items"]]
    assert found["log_probability"] == pytest.approx(sum(map(math.log, places)))
    candidates = ask(client, history=["sku-03"], k=2, sample=True, candidates=["sku-01", "sku-02", "nope"])
    assert {row["item"] for row in candidates["items"]} == {"sku-01", "sku-02"}
    assert candidates["items"][1]["position_probability"] == pytest.approx(1.0)
    assert candidates["restricted"]


def test_other_policies_and_their_ids(client: httpx.Client) -> None:
    found = ask(client, policy="numbers", history=[505, "506", "0507"], k=2)
    assert found["unknown_items"] == 1, "0507 is another spelling, so another id"
    assert all(isinstance(row["item"], int) for row in found["items"])
    scores = ask(client, policy="scores", history=[505], k=2)
    assert scores["items"][0]["probability"] is None
    assert ask(client, history=[505], k=1)["unknown_items"] == 1
    both = ask(client, policy="text", k=2, logging_probability=True)
    assert all(0 < row["logging_probability"] < 1 for row in both["items"])


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"policy": "other"}, 404, "There is no policy 'other'; there are text, numbers, scores"),
        ({"k": 21}, 422, "k is 21; it may be at most 20"),
        ({"k": 0}, 422, "k is 0"),
        ({"k": True}, 422, "k is true"),
        ({"k": 2.0}, 422, "k is 2.0"),
        ({"k": 10**30}, 422, "k is 1000000000"),
        ({"history": ["a"] * 51}, 422, "history has 51 items"),
        ({"exclude": ["a"] * 31}, 422, "exclude has 31 items"),
        ({"candidates": ["a"] * 31}, 422, "candidates has 31 items"),
        ({"candidates": []}, 422, "None of the candidates"),
        ({"candidates": ["nope"]}, 422, "None of the candidates"),
        ({"candidates": ["sku-01"], "exclude": ["sku-01"]}, 422, "Nothing is left to recommend"),
        ({"history": "sku-01"}, 422, 'history is "sku-01"'),
        ({"history": [None]}, 422, "history[0] is null; an id is a whole number of 64 bits or a text"),
        ({"history": [1.5]}, 422, "history[0] is 1.5"),
        ({"history": [True]}, 422, "history[0] is true"),
        ({"history": [2**63]}, 422, "history[0] is 9223372036854775808"),
        ({"history": ["x" * 513]}, 422, "history[0] is"),
        ({"history": [[1]]}, 422, "history[0] is [1]"),
        ({"temperature": 1.0}, 422, "A temperature is for a sampled list"),
        ({"sample": True, "temperature": 0}, 422, "temperature is 0"),
        ({"sample": True, "policy": "scores"}, 422, "has scores, not probabilities"),
        ({"logging_probability": True, "policy": "numbers"}, 422, "holds no logging policy"),
        ({"session_id": ""}, 422, "session_id is"),
        ({"histroy": []}, 422, "There is no field 'histroy'; the fields are history, k"),
        (b"", 400, "no JSON"),
        (b"{", 400, "no JSON"),
        (b"\xff\xfe", 400, "no JSON"),
        (b'{"sample": true, "temperature": NaN}', 422, "temperature is NaN"),
        (b'{"sample": true, "temperature": 1e999}', 422, "temperature is Infinity"),
        (b'{"history": [' + b"9" * 5000 + b"]}", 400, "no JSON"),
        (b'{"session_id": "\\ud800"}', 400, "no JSON"),
        (b"[" * 9000, 400, "no JSON"),
        (b"[]", 422, "The body is []; expected one object"),
        (b"null", 422, "The body is null"),
        (b'{"session_id": "' + b"x" * 10_000 + b'"}', 413, "larger than the 10,000 bytes"),
    ],
)
def test_what_is_refused(client: httpx.Client, body: bytes | dict[str, Any], status: int, said: str) -> None:
    found = refused(client, body)
    assert found[0] == status
    assert said in found[1]


def test_bodies_are_json_and_end_somewhere(client: httpx.Client) -> None:
    for headers in ({}, {"content-type": "text/plain"}):
        answer = client.post("/v1/recommend", content=b"{}", headers=headers)
        assert answer.status_code == 415
        assert "send Content-Type: application/json" in answer.json()["error"]

    pieces = (b" " * 1000 for _ in range(20))  # whose length nobody states
    answer = client.post("/v1/recommend", content=pieces, headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_a_client_that_goes_away_is_no_failure(client: httpx.Client) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port)) as gone:
        gone.sendall(
            b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        time.sleep(0.1)
    until(lambda: 'path="/v1/recommend",status="400"' in client.get("/metrics").text)
    assert 'status="500"' not in client.get("/metrics").text


def test_events_and_lists_are_logged(client: httpx.Client) -> None:
    shown = ask(client, history=["sku-03"], k=2, sample=True, session_id="visit", request_id="list-7")
    assert shown["logged"]
    sent = {"item": shown["items"][0]["item"], "behaviour": "click", "request_id": "list-7", "session_id": "visit"}
    assert client.post("/v1/events", json=sent).json() == {"recorded": True}
    assert client.post("/v1/events", json={"item": "505", "behaviour": "buy"}).json() == {"recorded": True}
    assert not ask(client, history=["sku-03"], session_id="hidden", log=False)["logged"]
    folder: Path = client.folder  # type: ignore[attr-defined]
    until(lambda: any(record.get("behaviour") == "buy" for record in records(folder)[0]))
    found = records(folder)[0]
    mine = next(record for record in found if record.get("request_id") == "list-7" and record["kind"] == "list")
    assert mine.pop("time") > 1.7e12
    assert mine == {
        "kind": "list",
        "request_id": "list-7",
        "session_id": "visit",
        "policy": "text",
        "fingerprint": shown["fingerprint"],
        "history": ["sku-03"],
        "items": [row["item"] for row in shown["items"]],
        "position_probabilities": [row["position_probability"] for row in shown["items"]],
        "log_probability": shown["log_probability"],
        "sampled": True,
        "temperature": 1.0,
        "restricted": False,
    }
    click, buy = (record for record in found if record["kind"] == "event")
    assert {key: click[key] for key in sent} == sent
    assert buy["item"] == 505, "as the catalogue that knows it spells it"
    assert buy["request_id"] is None
    assert not any(record.get("session_id") == "hidden" for record in found)
    for body, said in (({}, "'item' is missing"), ({"item": None, "behaviour": "x"}, "item is null")):
        assert said in refused(client, body, "/v1/events")[1]


def test_without_a_log_events_are_refused(runs: dict[str, Path]) -> None:
    with client_of({"numbers": runs["numbers"]}) as client:
        assert refused(client, {"item": 1, "behaviour": "click"}, "/v1/events")[0] == 409
        assert not ask(client)["logged"]
        assert client.get("/healthz").json() == {"status": "ok", "decision_log": None}


def test_what_is_served_and_how_it_fares(client: httpx.Client) -> None:
    found = client.get("/v1/policies").json()
    assert [policy["policy"] for policy in found["policies"]] == ["text", "numbers", "scores"]
    assert found["default_policy"] == "text"
    assert found["limits"]["k"] == 20
    assert [policy["has_logging_policy"] for policy in found["policies"]] == [True, False, False]
    assert client.get("/healthz").json() == {"status": "ok", "decision_log": "ok"}
    assert client.get("/readyz").json()["status"] == "ready"
    ask(client)
    metrics = client.get("/metrics").text
    assert 'offrec_requests_total{path="/v1/recommend",status="200"}' in metrics
    assert 'offrec_batch_size_bucket{policy="text",le="+Inf"}' in metrics
    assert "offrec_log_lost_total 0" in metrics
    for line in metrics.splitlines():
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0


def test_items_are_found_by_pieces_of_their_id(client: httpx.Client) -> None:
    def find(**query: Any) -> list[Any]:
        found: list[Any] = client.get("/v1/items", params=query).json()["items"]
        return found

    assert set(find(query="SKU-1")) == {f"sku-1{digit}" for digit in range(10)}
    assert set(find(query="-3", limit=1000)) == {f"sku-3{digit}" for digit in range(10)}
    assert find(query="nothing") == []
    assert len(find(limit=7)) == 7
    likeliest = [row["item"] for row in ask(client, k=7)["items"]]
    assert find(limit=7) == likeliest
    assert find(query="51", policy="numbers", limit=1000)[0] in range(510, 520)
    for query in ({"limit": 0}, {"limit": "x"}, {"query": "x" * 201}):
        answer = client.get("/v1/items", params=query)  # type: ignore[arg-type]
        assert answer.status_code == 422
        assert list(answer.json()) == ["error"]
    assert client.get("/v1/items", params={"policy": "other"}).status_code == 404


def test_examples_of_the_description_work(client: httpx.Client) -> None:
    tree = client.get("/openapi.json").json()
    tried = 0
    for path, operations in tree["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], path
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for example in content.get("examples", {}).values():
                answer = client.post(path, json=example["value"])
                assert answer.status_code == 200, (path, example, answer.text)
                tried += 1
            if method == "get":
                query = {one["name"]: one["example"] for one in operation.get("parameters", []) if "example" in one}
                assert client.get(path, params=query).status_code == 200
    assert tried >= 8
    assert tree["components"]["schemas"]["Recommend"]["properties"]["k"]["maximum"] == 20
    page = client.get("/docs")
    assert "POST /v1/recommend" in page.text
    assert "http" not in page.text.replace("http://127.0.0.1:8000", ""), "it needs nobody else"
    assert "default-src 'self'" in page.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/nope", "/../etc/passwd", "/%00", "/v1/nope", "/%2e%2e/http.py", "/index.html/x"])
def test_there_is_nothing_elsewhere(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert list(answer.json()) == ["error"]


def test_other_methods_are_refused(client: httpx.Client) -> None:
    for method, path in (("DELETE", "/healthz"), ("GET", "/v1/recommend"), ("PUT", "/v1/events")):
        answer = client.request(method, path)
        assert answer.status_code in (404, 405)
        assert list(answer.json()) == ["error"]


def test_a_token_is_asked_for(runs: dict[str, Path]) -> None:
    with client_of({"numbers": runs["numbers"]}, token="0123456789abcdef") as client:
        for path in ("/v1/policies", "/metrics"):
            assert client.get(path).status_code == 401
            for wrong in ("Bearer 0123456789abcdeg", "0123456789abcdef", "bearer", "Bearer \xff"):
                answer = client.get(path, headers={"authorization": wrong.encode("latin-1")})
                assert answer.status_code == 401
                assert "needs a token" in answer.json()["error"]
            assert client.get(path, headers={"authorization": "Bearer 0123456789abcdef"}).status_code == 200
        assert client.post("/v1/recommend", json={}).status_code == 401
        assert client.get("/healthz").status_code == 200
        assert client.get("/openapi.json").json()["components"]["securitySchemes"]


def test_who_has_no_token_learns_no_ids_and_no_names(runs: dict[str, Path]) -> None:
    served = {"secret-name": runs["text"]}
    with client_of(served) as client:
        for path in ("/openapi.json", "/docs"):
            assert "sku-0" in client.get(path).text
            assert "secret-name" in client.get(path).text
    with client_of(served, token="0123456789abcdef") as client:
        for path in ("/", "/openapi.json", "/docs", "/healthz", "/readyz", "/v1/recommend", "/nope"):
            found = client.get(path)
            assert "sku-0" not in found.text
            assert "secret-name" not in found.text
        for operation in ("/v1/recommend", "/v1/events", "/v1/reload"):
            body = client.get("/openapi.json").json()["paths"][operation]["post"]["requestBody"]
            assert body["content"]["application/json"]["examples"]


def test_the_description_is_made_once_for_each_default_policy(
    tmp_path: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = [], app.described
    monkeypatch.setattr(app, "described", lambda *words: made.append(words) or real(*words))
    place = tmp_path / "run"
    place.symlink_to(runs["text"])
    with client_of({"run": place}) as client:
        for _ in range(3):
            assert "sku-0" in client.get("/openapi.json").text
            assert "sku-0" in client.get("/docs").text
        assert len(made) == 1
        place.unlink()
        place.symlink_to(runs["numbers"])
        assert client.post("/v1/reload", json={}).status_code == 200
        assert "sku-0" not in client.get("/openapi.json").text
        assert len(made) == 2
