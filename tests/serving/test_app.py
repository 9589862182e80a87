"""Every HTTP path: what it returns, and one sentence for every request that it rejects."""

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
from small_server import open_client, read_records, wait_until

from offrec.runs.loading import load
from offrec.serving import app
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.schemas import RequestLimits

SKUS = [f"sku-{number:02d}" for number in range(40)]
NUMBERS = list(range(500, 540))
LIMITS = RequestLimits(k=20, history=50, exclude=30, candidates=30, body_bytes=10_000)
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        "text": write_run(folder / "text", SKUS, algorithm_name="dc"),
        "numbers": write_run(folder / "numbers", NUMBERS, seed=1),
        "scores": write_run(folder / "scores", NUMBERS, algorithm_name="dqn"),
    }


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def client(runs: dict[str, Path], log_folder: Path) -> Iterator[httpx.Client]:
    log_options = DecisionLogOptions(flush_seconds=0.02)
    with open_client(runs, log=log_folder, log_options=log_options, limits=LIMITS, seed=0) as client:
        yield client


def recommend(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/recommend", json=body)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


def error_of(response: httpx.Response) -> str:
    """The sentence of an error response, which contains nothing else."""
    assert 400 <= response.status_code < 500, response.text
    assert list(response.json()) == ["error"]
    sentence: str = response.json()["error"]
    assert sentence.endswith(".")
    assert sentence.isprintable()
    return sentence


def post(client: httpx.Client, body: bytes | dict[str, Any], path: str = "/v1/recommend") -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=data, headers={"content-type": "application/json"})


def test_best_items_are_those_of_the_run(client: httpx.Client, runs: dict[str, Path]) -> None:
    response = recommend(client, history=["sku-03", "sku-07", "nope"], k=5, exclude_seen=True)
    expected = load(runs["text"], "cpu").recommend(["sku-03", "sku-07"], 5, exclude_seen=True)
    assert [row["item"] for row in response["items"]] == expected.items
    assert [row["probability"] for row in response["items"]] == pytest.approx(expected.probabilities, rel=1e-4)
    assert [row["score"] for row in response["items"]] == pytest.approx(expected.scores, abs=1e-5)
    assert response["unknown_items"] == 1
    assert response["restricted"]
    assert response["log_probability"] is None
    assert "position_probability" not in response["items"][0]
    assert response["policy"] == "text"


def test_recent_items_are_ranked_last_if_requested(client: httpx.Client, runs: dict[str, Path]) -> None:
    policy, history = load(runs["text"], "cpu"), ["sku-03", "sku-07", "sku-07"]
    best = policy.recommend(history, 2).items
    response = recommend(client, history=[*history, *best], k=5, skip_recent=2)
    assert [row["item"] for row in response["items"]] == policy.recommend([*history, *best], 5, skip_recent=2).items
    assert not {*best} & {row["item"] for row in response["items"]}
    assert response["restricted"]
    assert not recommend(client, history=history, skip_recent=0)["restricted"]


def test_a_sampled_list_has_its_probability(client: httpx.Client) -> None:
    response = recommend(client, history=["sku-03"], k=3, sample=True, temperature=2, request_id="mine", session_id="s")
    assert response["request_id"] == "mine"
    assert not response["restricted"]
    positions = [row["position_probability"] for row in response["items"]]
    assert response["log_probability"] == pytest.approx(sum(map(math.log, positions)))
    among = recommend(client, history=["sku-03"], k=2, sample=True, candidates=["sku-01", "sku-02", "nope"])
    assert {row["item"] for row in among["items"]} == {"sku-01", "sku-02"}
    assert among["items"][1]["position_probability"] == pytest.approx(1.0)
    assert among["restricted"]


def test_each_policy_has_its_own_item_ids(client: httpx.Client) -> None:
    response = recommend(client, policy="numbers", history=[505, "506", "0507"], k=2)
    assert response["unknown_items"] == 1, "0507 is another id than 507"
    assert all(isinstance(row["item"], int) for row in response["items"])
    scores = recommend(client, policy="scores", history=[505], k=2)
    assert scores["items"][0]["probability"] is None
    assert recommend(client, history=[505], k=1)["unknown_items"] == 1
    with_logging = recommend(client, policy="text", k=2, logging_probability=True)
    assert all(0 < row["logging_probability"] < 1 for row in with_logging["items"])


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ({"policy": "other"}, 404, ("policy", "'other'", "text, numbers, scores")),
        ({"k": 21}, 422, ("k is 21", "20")),
        ({"k": 0}, 422, ("k is 0", "1")),
        ({"k": True}, 422, ("k is true", "integer")),
        ({"k": 2.0}, 422, ("k is 2.0", "integer")),
        ({"k": 10**30}, 422, ("k is 1000000000", "20")),
        ({"history": ["a"] * 51}, 422, ("history", "50")),
        ({"exclude": ["a"] * 31}, 422, ("exclude", "30")),
        ({"candidates": ["a"] * 31}, 422, ("candidates", "30")),
        ({"candidates": []}, 422, ("candidates", "at least one")),
        ({"candidates": ["nope"]}, 422, ("candidates", "at least one")),
        ({"candidates": ["sku-01"], "exclude": ["sku-01"]}, 422, ("excluded",)),
        ({"history": "sku-01"}, 422, ('history is "sku-01"', "list")),
        ({"history": [None]}, 422, ("history[0] is null", "64-bit integer", "512")),
        ({"history": [1.5]}, 422, ("history[0] is 1.5", "integer")),
        ({"history": [True]}, 422, ("history[0] is true", "integer")),
        ({"history": [2**63]}, 422, ("history[0] is 9223372036854775808", "64-bit")),
        ({"history": ["x" * 513]}, 422, ("history[0] is", "512")),
        ({"history": [[1]]}, 422, ("history[0] is [1]", "integer")),
        ({"history": [{"a": "\x1b[31m\u202e"}]}, 422, ("history[0] is", "\\u001b", "\\u202e")),
        ({"temperature": 1.0}, 422, ("temperature", "sample")),
        ({"sample": True, "temperature": 0}, 422, ("temperature is 0", "0.01")),
        ({"sample": True, "policy": "scores"}, 422, ("sample", "probabilities")),
        ({"logging_probability": True, "policy": "numbers"}, 422, ("logging_probability",)),
        ({"session_id": ""}, 422, ("session_id is", "1 character")),
        ({"histroy": []}, 422, ('"histroy"', "history, shown, k")),
        (b"", 422, ("body", "JSON object")),
        (b"{", 400, ("JSON",)),
        (b"\xff\xfe", 400, ("JSON",)),
        (b'{"sample": true, "temperature": NaN}', 422, ("temperature is NaN", "finite")),
        (b'{"sample": true, "temperature": 1e999}', 422, ("temperature is Infinity", "finite")),
        (b'{"history": [' + b"9" * 5000 + b"]}", 400, ("JSON",)),
        (b'{"session_id": "\\ud800"}', 422, ("session_id",)),
        (b'{"history": ["\\ud800"]}', 422, ("history[0]",)),
        (b"[" * 9000, 400, ("JSON",)),
        (b"[]", 422, ("body is []", "JSON object")),
        (b"null", 422, ("body", "JSON object")),
        (b'{"session_id": "' + b"x" * 10_000 + b'"}', 413, ("10,000 bytes",)),
    ],
)
def test_an_invalid_request_gets_a_sentence_that_names_the_field(
    client: httpx.Client, body: bytes | dict[str, Any], status: int, expected: tuple[str, ...]
) -> None:
    response = post(client, body)
    sentence = error_of(response)
    assert response.status_code == status, sentence
    for part in expected:
        assert part in sentence


def test_bodies_must_be_json_of_limited_length(client: httpx.Client) -> None:
    for headers in ({}, {"content-type": "text/plain"}):
        response = client.post("/v1/recommend", content=b"{}", headers=headers)
        assert response.status_code == 415
        assert "Content-Type: application/json" in error_of(response)

    chunks = (b" " * 1000 for _ in range(20))  # without a Content-Length
    response = client.post("/v1/recommend", content=chunks, headers={"content-type": "application/json"})
    assert response.status_code == 413


def test_a_client_that_disconnects_is_not_a_server_error(client: httpx.Client) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.sendall(
            b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        time.sleep(0.1)
    wait_until(lambda: 'path="/v1/recommend",status="400"' in client.get("/metrics").text)
    assert 'status="500"' not in client.get("/metrics").text


def test_lists_and_events_are_logged(client: httpx.Client, log_folder: Path) -> None:
    response = recommend(client, history=["sku-03"], k=2, sample=True, session_id="visit", request_id="list-7")
    assert response["logged"]
    sent = {"item": response["items"][0]["item"], "behaviour": "click", "request_id": "list-7", "session_id": "visit"}
    recorded = {"recorded": True, "known_item": True}
    assert client.post("/v1/events", json=sent).json() == {**recorded, "known_request": True, "in_list": True}
    priced = {"item": "505", "behaviour": "buy", "reward": 12}
    assert client.post("/v1/events", json=priced).json() == {**recorded, "known_request": None, "in_list": None}
    assert not recommend(client, history=["sku-03"], session_id="hidden", log=False)["logged"]
    wait_until(lambda: any(record.get("behaviour") == "buy" for record in read_records(log_folder)[0]))
    records = read_records(log_folder)[0]
    mine = next(record for record in records if record.get("request_id") == "list-7" and record["kind"] == "list")
    assert mine.pop("time") > 1.7e12
    assert mine == {
        "kind": "list",
        "request_id": "list-7",
        "session_id": "visit",
        "policy": "text",
        "fingerprint": response["fingerprint"],
        "history": ["sku-03"],
        "items": [row["item"] for row in response["items"]],
        "position_probabilities": [row["position_probability"] for row in response["items"]],
        "log_probability": response["log_probability"],
        "sampled": True,
        "temperature": 1.0,
        "restricted": False,
    }
    click, buy = (record for record in records if record["kind"] == "event")
    assert {key: click[key] for key in sent} == sent
    assert buy["item"] == 505, "spelled as in the catalogue that contains it"
    assert (buy["request_id"], buy["reward"]) == (None, 12.0)
    assert "reward" not in click
    assert not any(record.get("session_id") == "hidden" for record in records)
    for body, field in (({}, "item"), ({"item": None, "behaviour": "x"}, "item"), ({"item": 5}, "behaviour")):
        response_ = post(client, body, "/v1/events")
        assert response_.status_code == 422
        assert error_of(response_).startswith(field)


def test_unknown_items_and_requests_are_named_and_counted(runs: dict[str, Path], tmp_path: Path) -> None:
    with open_client(runs, log=tmp_path / "log") as client:
        listed = [row["item"] for row in recommend(client, request_id="logged", session_id="s", k=1)["items"]]
        recommend(client, request_id="hidden", session_id="s", log=False)
        for request, item, known in (
            ("logged", listed[0], (True, True, True)),
            ("logged", 505, (True, True, listed[0] in (505, "505"))),
            ("logged", "sku-3", (False, True, False)),
            ("hidden", 505, (True, False, None)),
            ("lgged", "sku-3", (False, False, None)),
        ):
            done = post(client, {"item": item, "behaviour": "click", "request_id": request}, "/v1/events").json()
            assert (done["known_item"], done["known_request"], done["in_list"]) == known, done
        shown = [{"items": ["sku-01", "sku-1", "x"], "picked": "sku-01"}, {"items": ["y"]}]
        answer = recommend(client, history=["z", "sku-01"], shown=shown)
        assert (answer["unknown_items"], answer["unknown_shown"]) == (1, 3)
        metrics = client.get("/metrics").text
        for place, count in (("history", 1.0), ("shown", 3.0), ("event", 2.0)):
            assert f'offrec_unknown_items_total{{place="{place}"}} {count}' in metrics
        assert "offrec_unknown_requests_total 2.0" in metrics
        assert "offrec_unlisted_items_total " in metrics
        assert "offrec_unlisted_items_total 0.0" not in metrics


@pytest.mark.parametrize("reward", ["12", True, 1e10, [1]])
def test_rewards_must_be_numbers_in_range(client: httpx.Client, reward: Any) -> None:
    response = post(client, {"item": 505, "behaviour": "buy", "reward": reward}, "/v1/events")
    assert response.status_code == 422
    assert error_of(response).startswith("reward is ")


def test_ids_with_markup_and_control_characters_pass_through_unchanged(tmp_path: Path) -> None:
    ids = ["[sku1]", "[/sku1]", "<b>bold</b>", "tab\there", "bell\x07", "line\nbreak", "quote'\"", "\u202eright", "z"]
    run = write_run(tmp_path / "run", ids)
    with open_client({"odd": run}, log=tmp_path / "log", log_options=DecisionLogOptions(0.02)) as client:
        response = recommend(client, history=ids[:3], k=len(ids), session_id="\x1b[31m", request_id="[/x]")
        assert sorted(row["item"] for row in response["items"]) == sorted(ids)
        assert client.get("/v1/items", params={"query": "[/SKU"}).json() == {"items": ["[/sku1]"]}
        assert post(client, {"item": "bell\x07", "behaviour": "[b]"}, "/v1/events").status_code == 200
        page = client.get("/docs").text
        assert "<b>" not in page
        assert "\x07" not in page
        wait_until(lambda: len(read_records(tmp_path / "log")[0]) == 2)
        records, torn = read_records(tmp_path / "log")
        assert torn == 0
        assert records[0]["history"] == ids[:3]
        assert sorted(records[0]["items"]) == sorted(ids)
        assert records[1]["item"] == "bell\x07"
        missing = client.get("/v1/items", params={"policy": "\x1b[31m<b>"})
        assert missing.status_code == 404
        assert "\\x1b" in error_of(missing)


def test_without_a_decision_log_events_are_rejected(runs: dict[str, Path]) -> None:
    with open_client({"numbers": runs["numbers"]}) as client:
        response = post(client, {"item": 1, "behaviour": "click"}, "/v1/events")
        assert response.status_code == 409
        assert "--log" in error_of(response)
        assert not recommend(client)["logged"]
        assert client.get("/healthz").json() == {"status": "ok", "decision_log": None}


def test_probabilities_can_be_left_out(client: httpx.Client) -> None:
    with_probability, without = recommend(client), recommend(client, probability=False)
    assert [item["item"] for item in without["items"]] == [item["item"] for item in with_probability["items"]]
    assert all(item["probability"] is None for item in without["items"])
    assert all(0 < item["probability"] < 1 for item in with_probability["items"])
    sampled = recommend(client, probability=False, sample=True)
    assert sampled["log_probability"] < 0


def test_policies_health_and_metrics(client: httpx.Client) -> None:
    content = client.get("/v1/policies").json()
    assert [policy["policy"] for policy in content["policies"]] == ["text", "numbers", "scores"]
    assert content["default_policy"] == "text"
    assert content["limits"]["k"] == 20
    assert [policy["has_logging_policy"] for policy in content["policies"]] == [True, False, False]
    assert {policy["products"] for policy in content["policies"]} == {"float32"}, "the catalogues are small"
    assert client.get("/healthz").json() == {"status": "ok", "decision_log": "ok"}
    assert client.get("/readyz").json()["status"] == "ready"
    recommend(client)
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    metrics = response.text
    assert 'offrec_requests_total{path="/v1/recommend",status="200"}' in metrics
    assert 'offrec_request_seconds_count{path="/v1/recommend"}' in metrics
    assert 'offrec_batch_size_bucket{le="+Inf",policy="text"}' in metrics
    assert 'policy="numbers"} 1.0' in metrics
    assert "offrec_decision_log_lost_total 0.0" in metrics
    assert "process_cpu_seconds_total" in metrics
    for line in metrics.splitlines():
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0


def test_several_servers_in_one_process_count_separately(client: httpx.Client, runs: dict[str, Path]) -> None:
    with open_client({"second": runs["numbers"]}) as second:
        recommend(second)
        metrics = second.get("/metrics").text
        assert 'offrec_requests_total{path="/v1/recommend",status="200"} 1.0' in metrics
        assert 'policy="text"' not in metrics


def test_items_are_found_by_a_part_of_their_id(client: httpx.Client) -> None:
    def find(**query: Any) -> list[Any]:
        items: list[Any] = client.get("/v1/items", params=query).json()["items"]
        return items

    assert set(find(query="SKU-1")) == {f"sku-1{digit}" for digit in range(10)}
    assert set(find(query="-3", limit=1000)) == {f"sku-3{digit}" for digit in range(10)}
    assert find(query="nothing") == []
    assert len(find(limit=7)) == 7
    assert find(limit=7) == [row["item"] for row in recommend(client, k=7)["items"]]
    assert find(query="51", policy="numbers", limit=1000)[0] in range(510, 520)
    for name, value in (("limit", 0), ("limit", "x"), ("query", "x" * 201), ("color", "red")):
        response = client.get("/v1/items", params={name: value})  # type: ignore[dict-item]
        assert response.status_code == 422
        assert name in error_of(response)
    assert client.get("/v1/items", params={"policy": "other"}).status_code == 404


def test_the_examples_of_the_openapi_document_work(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    examples_sent = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], path
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            path = path.replace("{name}", "in-stock")
            for example in content.get("examples", {}).values():
                response = client.request(method, path, json=example["value"])
                assert response.status_code == 200, (path, example, response.text)
                examples_sent += 1
            if method == "get":
                parameters = operation.get("parameters", [])
                query = {one["name"]: one["example"] for one in parameters if one["in"] == "query"}
                client.put("/v1/lists/in-stock", json=[500])
                assert client.get(path, params=query).status_code == 200
    assert examples_sent >= 8


def test_the_openapi_document_has_the_limits_of_the_server(client: httpx.Client) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    fields = schemas["RecommendRequest"]["properties"]
    assert (fields["k"]["minimum"], fields["k"]["maximum"]) == (1, 20)
    assert (fields["history"]["maxItems"], fields["exclude"]["maxItems"]) == (50, 30)
    assert fields["candidates"]["anyOf"][0]["maxItems"] == 30
    assert "HTTPValidationError" not in schemas


def test_the_docs_page_needs_no_other_server(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert "POST /v1/recommend" in page.text
    assert "http" not in page.text.replace("http://127.0.0.1:8000", "")
    assert "default-src 'self'" in page.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/nope", "/../etc/passwd", "/%00", "/v1/nope", "/%2e%2e/app.py", "/index.html/x"])
def test_other_paths_do_not_exist(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    error_of(response)


def test_other_methods_are_rejected(client: httpx.Client) -> None:
    for method, path in (("DELETE", "/healthz"), ("GET", "/v1/recommend"), ("PUT", "/v1/events")):
        response = client.request(method, path)
        assert response.status_code in (404, 405)
        error_of(response)


def test_a_server_with_a_token_requires_it(runs: dict[str, Path]) -> None:
    with open_client({"numbers": runs["numbers"]}, token=TOKEN) as client:
        for path in ("/v1/policies", "/metrics"):
            assert client.get(path).status_code == 401
            for wrong in ("Bearer 0123456789abcdeg", TOKEN, "bearer", "Bearer \xff"):
                response = client.get(path, headers={"authorization": wrong.encode("latin-1")})
                assert response.status_code == 401
                assert "Authorization: Bearer" in error_of(response)
            assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.post("/v1/recommend", json={}).status_code == 401
        assert client.get("/healthz").status_code == 200
        assert client.get("/openapi.json").json()["components"]["securitySchemes"]


def test_public_pages_reveal_no_ids_and_no_names_if_a_token_is_required(runs: dict[str, Path]) -> None:
    sources = {"secret-name": runs["text"]}
    with open_client(sources) as client:
        for path in ("/openapi.json", "/docs"):
            assert "sku-0" in client.get(path).text
            assert "secret-name" in client.get(path).text
    with open_client(sources, token=TOKEN) as client:
        for path in ("/", "/openapi.json", "/docs", "/healthz", "/readyz", "/v1/recommend", "/nope"):
            text = client.get(path).text
            assert "sku-0" not in text
            assert "secret-name" not in text
        for operation in ("/v1/recommend", "/v1/events", "/v1/reload"):
            body = client.get("/openapi.json").json()["paths"][operation]["post"]["requestBody"]
            assert body["content"]["application/json"]["examples"]


def test_the_openapi_document_is_built_once_per_default_policy(
    tmp_path: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, real = [], app.build_openapi
    monkeypatch.setattr(app, "build_openapi", lambda *arguments: calls.append(arguments) or real(*arguments))
    link = tmp_path / "run"
    link.symlink_to(runs["text"])
    with open_client({"run": link}) as client:
        for _ in range(3):
            assert "sku-0" in client.get("/openapi.json").text
            assert "sku-0" in client.get("/docs").text
        assert len(calls) == 1
        link.unlink()
        link.symlink_to(runs["numbers"])
        assert client.post("/v1/reload", json={}).status_code == 200
        assert "sku-0" not in client.get("/openapi.json").text
        assert len(calls) == 2
