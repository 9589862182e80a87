"""Lists that the server holds: set, read, delete; allow and deny; all workers; what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from random_runs import write_run
from small_server import open_client, read_records

from offrec.catalogue import Head, restrict
from offrec.catalogue.lists import sample_lists, top_lists
from offrec.runs.loading import load
from offrec.serving import item_lists
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.engine import AllowedItems, Engine, Query
from offrec.serving.item_lists import ItemLists, ListLimits
from offrec.serving.served_policy import load_policy

IDS = list(range(100, 150))
TEXT = {"content-type": "text/plain"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {"a": write_run(folder / "a", IDS), "scores": write_run(folder / "b", IDS, algorithm_name="dqn")}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def client(runs: dict[str, Path], log: Path) -> Iterator[httpx.Client]:
    limits = ListLimits(body_bytes=2000, items=100)
    with open_client(runs, log=log, list_limits=limits, log_options=DecisionLogOptions(flush_seconds=0.02)) as client:
        yield client


def items_of(client: httpx.Client, **body: Any) -> list[int]:
    response = client.post("/v1/recommend", json={"k": 50, **body})
    assert response.status_code == 200, response.text
    assert response.json()["restricted"]
    return [row["item"] for row in response.json()["items"]]


def error_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    sentence: str = response.json()["error"]
    assert sentence.endswith(".")
    return sentence


def test_a_list_can_be_set_read_replaced_and_deleted(client: httpx.Client) -> None:
    done = client.put("/v1/lists/in-stock", json=[101, "102", 7, 101]).json()
    assert (done["items"], done["known"]) == (3, {"a": 2, "scores": 2})
    assert sorted(items_of(client, allow="in-stock")) == [101, 102]
    done = client.put("/v1/lists/in-stock", content="103\n104\r\n\n", headers=TEXT).json()
    assert done["items"] == 2
    assert sorted(items_of(client, allow="in-stock")) == [103, 104], "without a restart"
    assert client.get("/v1/lists/in-stock?limit=1&offset=1").json()["ids"] == ["104"]
    assert [one["name"] for one in client.get("/v1/lists").json()["lists"]] == ["in-stock"]
    assert client.delete("/v1/lists/in-stock").json() == {"deleted": "in-stock"}
    for response in (
        client.delete("/v1/lists/in-stock"),
        client.get("/v1/lists/in-stock"),
        client.post("/v1/recommend", json={"allow": "in-stock"}),
    ):
        assert error_of(response, 404) == "list 'in-stock' does not exist; the lists are: there are none."


@pytest.mark.parametrize("policy", ["a", "scores"])
def test_lists_combine_with_each_other_and_with_other_restrictions(client: httpx.Client, policy: str) -> None:
    client.put("/v1/lists/low", json=IDS[:30])
    client.put("/v1/lists/middle", json=IDS[20:40])
    client.put("/v1/lists/adult", json=IDS[25:28])
    everything = items_of(client, policy=policy, exclude_seen=True)
    for body, expected in (
        ({"allow": "low"}, IDS[:30]),
        ({"deny": "low"}, IDS[30:]),
        ({"allow": ["low", "middle"]}, IDS[20:30]),
        ({"deny": ["low", "middle"]}, IDS[40:]),
        ({"allow": "low", "deny": ["adult"], "exclude": [100]}, [*IDS[1:25], *IDS[28:30]]),
        ({"allow": "low", "candidates": [101, 140], "deny": []}, [101]),
        ({"allow": "low", "history": [101], "exclude_seen": True}, [100, *IDS[2:30]]),
    ):
        got = items_of(client, policy=policy, **body)
        assert sorted(got) == expected
        if "history" not in body:
            assert got == [item for item in everything if item in expected], "in the order of the policy"
    message = "No item is left to recommend: every allowed item is excluded."
    assert error_of(client.post("/v1/recommend", json={"allow": "low", "deny": ["low"]}), 422) == message
    assert error_of(client.post("/v1/recommend", json={"allow": "low", "candidates": [140]}), 422) == message


def test_sampled_lists_are_exact_and_logged_with_the_names(client: httpx.Client, log: Path) -> None:
    client.put("/v1/lists/low", json=IDS[:5])
    request = {"allow": "low", "deny": ["adult"], "sample": True, "k": 5, "request_id": "named"}
    client.put("/v1/lists/adult", json=[100])
    response = client.post("/v1/recommend", json=request).json()
    assert sorted(row["item"] for row in response["items"]) == IDS[1:5]
    weights = np.array([row["probability"] for row in response["items"]])
    expected = np.log(weights / weights[::-1].cumsum()[::-1]).sum()
    assert response["log_probability"] == pytest.approx(expected, abs=1e-5)
    (record,) = [record for record in read_records(log)[0] if record.get("request_id") == "named"]
    assert (record["allow"], record["deny"], record["restricted"]) == (["low"], ["adult"], True)


@pytest.mark.parametrize(
    ("path", "content", "kind", "status", "message"),
    [
        ("/v1/lists/a%20b", b"[1]", "application/json", 422, "The name of a list is 'a b'; expected at most 64 "),
        ("/v1/lists/.x", b"[1]", "application/json", 422, "The name of a list is '.x'; expected at most 64 "),
        ("/v1/lists/..", b"[1]", "application/json", 405, ""),
        ("/v1/lists/a", b"{}", "application/json", 422, "The list is not valid: it must be a JSON array of item ids."),
        ("/v1/lists/a", b"[1, 2.5]", "application/json", 422, "The list is not valid: id number 2 is '2.5', but an "),
        ("/v1/lists/a", b"[tru", "application/json", 422, "The list is not valid: Expecting value: line 1 column 2"),
        ("/v1/lists/a", b"\xff\n", "text/plain", 422, "The list is not valid: it is not UTF-8 text."),
        ("/v1/lists/a", b"1\n" * 102, "text/plain", 422, "The list is not valid: it has more than 100 item ids."),
        (
            "/v1/lists/a",
            b"[]",
            "application/json",
            422,
            "List a was not changed: the new list has no ids; send at least ",
        ),
        (
            "/v1/lists/a",
            b" \n",
            "text/plain",
            422,
            "List a was not changed: the new list has no ids; send at least one",
        ),
        (
            "/v1/lists/a?full=1",
            b"[1]",
            "application/json",
            422,
            '"full" is not a field of this request; the fields',
        ),
        ("/v1/lists/a", b"1" * 2001, "text/plain", 413, "The body is larger than the limit of 2,000 bytes."),
        ("/v1/lists/a", b"1", "text/csv", 415, "Content-Type is 'text/csv'; send Content-Type: application/json or "),
    ],
)
def test_invalid_lists_get_one_sentence(
    client: httpx.Client, path: str, content: bytes, kind: str, status: int, message: str
) -> None:
    client.put("/v1/lists/a", json=[101])
    response = client.put(path, content=content, headers={"content-type": kind})
    assert error_of(response, status).startswith(message)
    assert client.get("/v1/lists/a").json()["ids"] == [101], "the old list remains"


def test_an_empty_list_must_be_asked_for(client: httpx.Client) -> None:
    assert client.put("/v1/lists/recalled?empty=true", json=[]).json()["items"] == 0
    assert sorted(items_of(client, deny="recalled")) == IDS
    assert error_of(client.post("/v1/recommend", json={"allow": "recalled"}), 422).startswith("No item is left")


def test_damaged_lists_are_refused_until_they_are_set_again(tmp_path: Path, runs: dict[str, Path]) -> None:
    with open_client(runs, lists=tmp_path) as client:
        client.put("/v1/lists/a", json=[101, 102])
        content = (tmp_path / "a.list").read_bytes()
        for changed in (content.replace(b"102", b"103"), content[:-4], b"", b"x" * 9000):
            (tmp_path / "a.list").write_bytes(changed)
            sentence = "List a is damaged; set it again with PUT /v1/lists/a."
            assert error_of_server(client.post("/v1/recommend", json={"allow": "a"})) == sentence
        client.put("/v1/lists/a", json=[102])
        assert items_of(client, allow="a") == [102]
    with open_client(runs, lists=tmp_path) as client:
        assert items_of(client, allow="a") == [102], "lists outlive the server"


def error_of_server(response: httpx.Response) -> str:
    assert response.status_code == 503
    sentence: str = response.json()["error"]
    return sentence


def test_the_number_of_lists_is_limited(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_lists, "MAX_LISTS", 0)
    assert "which is the limit" in error_of(client.put("/v1/lists/new", json=[1]), 409)


def test_masks_need_one_bit_per_item_and_are_cached(runs: dict[str, Path], tmp_path: Path) -> None:
    mask = np.random.default_rng(0).random(1001) < 0.3
    allowed = AllowedItems(mask)
    assert allowed.bits.nbytes == 126
    assert (allowed.mask() == mask).all()
    lists, served = ItemLists(tmp_path), load_policy("a", runs["a"], "cpu")
    lists.put("x", b"[101]", is_json=True)
    first = lists.allowed(served, ["x"], [])
    assert lists.allowed(served, ["x"], []) is first
    lists.put("x", b"[102]", is_json=True)
    assert lists.cached(served, ["x"], []) is None
    assert lists.allowed(served, ["x"], []).mask().nonzero()[0].tolist() == [2]


@pytest.mark.parametrize("replaces_base", [False, True])
def test_a_restricted_head_is_a_head_without_the_other_items(replaces_base: bool) -> None:
    torch.manual_seed(0)
    items, values = torch.tensor([[1, 4, 40], [2, 3, 7]]), torch.tensor([[50.0, 60.0, 1.0], [50.0, 60.0, 9.0]])
    head = Head(torch.randn(2, 8), torch.randn(40, 8), torch.randn(40), items, values, replaces_base)
    allowed = torch.rand(40) < 0.5
    allowed[1], allowed[4] = False, True
    z = head.at(torch.arange(40).expand(2, -1)).masked_fill(~allowed, -1e30)
    restricted = restrict(head, allowed)
    assert restricted.at(torch.arange(40).expand(2, -1)).clamp(min=-1e29).equal(z.clamp(min=-1e29))
    lists = top_lists(head, 5, allowed)
    assert lists.items.equal(z.topk(5).indices)
    assert lists.lse.tolist() == pytest.approx(head.at(torch.arange(40).expand(2, -1)).logsumexp(1).tolist(), abs=1e-4)
    sampled = sample_lists(head, 5, torch.ones(2, dtype=torch.double), torch.Generator().manual_seed(0), allowed)
    assert allowed[sampled.items].all()


def test_queries_with_different_lists_share_a_batch(runs: dict[str, Path]) -> None:
    engine = Engine(load(runs["a"], "cpu"), 0)
    sets = [None, AllowedItems(np.arange(50) < 10), AllowedItems(np.arange(50) >= 45)]
    queries = [Query([number % 7], 5, allowed=sets[number % 3]) for number in range(12)]
    for query, result in zip(queries, engine.rank(queries), strict=True):
        assert result.items == engine.rank([query])[0].items
        assert query.allowed is None or query.allowed.mask()[result.items].all()
