"""Requests with the lists of a session: the user model uses them, other policies ignore them; blends are exact."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
import torch
from random_runs import write_run
from small_server import open_client, read_records

import offrec
from offrec.commands.recommend import Recommend
from offrec.console import Console
from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.policy import Policy, ShownList
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.engine import AllowedItems, Engine, Query
from offrec.serving.exploration import Blend, parse_explore

SETTINGS = {"algorithm.types": 4, "algorithm.width": 4, "training.epochs": 4}
SHOWN = [ShownList([1, 2, 3, 4], 2), ShownList([5, 6, 7, 8], None), ShownList([9, 10, 11, 12], 9)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user model, trained on lists of 20 items. Visitors like either even or odd items."""
    folder, random = tmp_path_factory.mktemp("user-model"), np.random.default_rng(0)
    rows = []
    for session in range(150):
        for step in range(3):
            offered = random.permutation(20)[:4].tolist()
            liked = [item for item in offered if item % 2 == session % 2]
            item = liked[0] if liked and random.random() < 0.7 else None
            rows.append({"session": session, "time": step, "offered": offered, "item": item, "propensity": 0.01})
    frame = pl.DataFrame(rows).with_columns(behaviour=pl.lit("click"))
    frame.write_parquet(folder / "lists.parquet")
    prepare(folder / "lists.parquet", out=folder / "data", format="decisions")
    offrec.train(
        folder / "data", folder / "run", algorithm="user-model", settings=SETTINGS, device="cpu", console=Console(True)
    )
    return folder / "run"


@pytest.fixture(scope="module")
def policy(run: Path) -> Policy:
    return offrec.load(run, "cpu")


def played(policy: Policy, shown: list[ShownList], k: int = 5) -> list[int]:
    """The best items of a session that is played step by step, as the shop plays it."""
    states = policy.start_sessions(1)
    for one in shown:
        pick = policy.n_items if one.picked is None else one.picked
        states.observe(torch.tensor([0]), torch.tensor([list(one.items)]), torch.tensor([pick]))
    head = states.head(torch.tensor([0]))
    order = head.at(torch.arange(policy.n_items)[None])[0].sort(descending=True, stable=True).indices
    return order[:k].tolist()


def test_lists_of_a_request_are_those_of_a_session_played_step_by_step(policy: Policy) -> None:
    engine = Engine(policy, 0)
    queries = [
        Query([2, 9], 5, shown=SHOWN),
        Query([], 5, shown=[ShownList([1, 2, 3, 4], None)] * 4),
        Query([3, 4], 5),
        Query([2], 5, shown=SHOWN[:2]),
    ]
    results = [result.items for result in engine.rank(queries)]
    assert results[0] == played(policy, SHOWN)
    assert results[1] == played(policy, [ShownList([1, 2, 3, 4], None)] * 4)
    assert results[2] == engine.policy.recommend([policy.vocabulary.id(3), policy.vocabulary.id(4)], 5).items
    assert results[3] == played(policy, SHOWN[:2])


def test_ignored_lists_change_what_is_recommended(policy: Policy) -> None:
    """Otherwise the field would be without effect."""
    first = policy.recommend([], 4).items
    ignored = policy.recommend([], 4, shown=[(first, None)] * 6).items
    assert ignored != first


def test_policies_that_do_not_learn_from_lists_use_only_the_picks(tmp_path: Path) -> None:
    plain = offrec.load(write_run(tmp_path / "run", list(range(30))), "cpu")
    assert not plain.learns_from_lists
    assert plain.recommend([], 5, shown=[([1, 2], 2), ([3], None)]).items == plain.recommend([2], 5).items
    results = Engine(plain, 0).rank([Query([2], 5, shown=SHOWN[:2]), Query([2], 5)])
    assert results[0] == results[1]


def test_lists_are_planned_among_the_allowed_items(policy: Policy) -> None:
    engine, mask = Engine(policy, 0), np.arange(policy.n_items) % 3 == 0
    allowed = AllowedItems(mask)
    (result,) = engine.rank([Query([2, 9], 4, shown=SHOWN, allowed=allowed)])
    assert mask[result.items].all()
    planner = policy.agent.planner()  # type: ignore[attr-defined]
    states = policy.start_sessions(1)
    everything = torch.ones(policy.n_items, dtype=torch.bool)
    arguments = (states.posterior, states.memory, states.picks)  # type: ignore[attr-defined]
    assert planner.plan(*arguments, everything).equal(planner.plan(*arguments))
    planned = planner.plan(*arguments, torch.from_numpy(mask))
    assert mask[planned.numpy()].all()
    assert len(set(planned[0].tolist())) == planned.shape[1]


@pytest.mark.parametrize("count", [2, 12])
def test_candidates_are_planned_like_an_allow_list(policy: Policy, count: int) -> None:
    """`candidates` of a request and of `recommend` give the list that an allow list of the same items gives."""
    engine, random = Engine(policy, 0), np.random.default_rng(1)
    differ = 0
    for _ in range(10):
        items = np.sort(random.choice(policy.n_items, count, replace=False))
        mask = np.isin(np.arange(policy.n_items), items)
        query = Query([2, 9], 4, shown=SHOWN)
        allowed, candidates, whole = engine.rank(
            [
                replace(query, allowed=AllowedItems(mask)),
                replace(query, candidates=items.tolist()),
                replace(query, k=policy.n_items),
            ]
        )
        assert candidates.items == allowed.items
        ids = [policy.vocabulary.id(item) for item in items.tolist()]
        shown = [
            (
                [policy.vocabulary.id(i) for i in one.items],
                None if one.picked is None else policy.vocabulary.id(one.picked),
            )
            for one in SHOWN
        ]
        history = [policy.vocabulary.id(2), policy.vocabulary.id(9)]
        answer = policy.recommend(history, 4, candidates=ids, shown=shown)
        assert policy.vocabulary.encode(answer.items)[0] == allowed.items
        differ += allowed.items != [item for item in whole.items if mask[item]][:4]
    assert differ  # the plan of the whole catalogue, filtered, is another list


def test_excluded_items_are_planned_like_an_allow_list_of_the_others(policy: Policy) -> None:
    """Each query of a batch excludes other items, and one excludes none."""
    random, differ, query = np.random.default_rng(2), 0, Query([2, 9], 4, shown=SHOWN)
    excluded = [random.choice(policy.n_items, count, replace=False).tolist() for count in range(1, 19)]
    queries = [replace(query, excluded=frozenset(items)) for items in [*excluded, []]]
    results = [result.items for result in Engine(policy, 0).rank(queries)]
    (whole,) = Engine(policy, 0).rank([replace(query, k=policy.n_items)])
    assert results.pop() == whole.items[:4]
    ids = policy.vocabulary.id
    shown = [([ids(i) for i in one.items], None if one.picked is None else ids(one.picked)) for one in SHOWN]
    for items, result in zip(excluded, results, strict=True):
        others = AllowedItems(~np.isin(np.arange(policy.n_items), items))
        (allowed,) = Engine(policy, 0).rank([replace(query, allowed=others)])
        assert result == allowed.items
        answer = policy.recommend([ids(2), ids(9)], 4, exclude=[ids(item) for item in items], shown=shown)
        assert policy.vocabulary.encode(answer.items)[0] == result
        differ += result != [item for item in whole.items if item not in items][:4]
    assert differ  # the plan of the whole catalogue, filtered, is another list


def test_items_of_the_history_are_excluded_from_the_plan(policy: Policy) -> None:
    history = [policy.vocabulary.id(item) for item in (2, 9, 4)]
    others = [policy.vocabulary.id(item) for item in range(policy.n_items) if item not in (2, 9, 4)]
    answer = policy.recommend(history, 4, exclude_seen=True)
    assert answer.items == policy.recommend(history, 4, candidates=others).items


@pytest.mark.parametrize(
    ("shown", "history", "message"),
    [
        ([([1, 2], 3)], [], "shown[0]: the pick 3 is not among its items; give a pick from no list an empty list."),
        ([([1, 2], 2)], [1], "history does not end with the picks of shown; give all picks of the session, in order."),
    ],
)
def test_contradictions_are_one_sentence(policy: Policy, shown: Any, history: list[int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        policy.recommend(history, 3, shown=shown)
    assert str(caught.value) == message


def test_the_command_takes_lists(run: Path, policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    Recommend(run, shown=("1,2,3=2", "4,5,6", "7,8="), k=3, json=True, device="cpu").run()
    rows = json.loads(capsys.readouterr().out)["recommendations"]
    expected = policy.recommend([], 3, shown=[([1, 2, 3], 2), ([4, 5, 6], None), ([7, 8], None)])
    assert [row["item"] for row in rows] == expected.items


def test_unknown_items_of_the_command_are_counted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"candidates": "1,2,3,99", "exclude": "3", "k": 2, "device": "cpu"}
    Recommend(run, shown=("1,2,77,78=2",), **options).run()
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "Warning: --candidates: 1 of 4 items is not in the catalogue; ignored it.",
        "Warning: --shown: 2 of 4 items are not in the catalogue; ignored them.",
    ]
    assert "user-model after 1 list\n" in printed.out
    Recommend(run, shown=("1,2,77,78=2",), json=True, **options).run()
    answer = json.loads(capsys.readouterr().out)
    assert (answer["unknown_candidates"], answer["unknown_exclude"], answer["unknown_shown"]) == (1, 0, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shown": ("1,,2=2",)}, "--shown must be item ids separated by commas, such as 12,55,9; got '1,,2'."),
        ({"shown": ("",)}, "--shown must be item ids separated by commas, such as 12,55,9; got ''."),
        ({"shown": ("1,2,1=2",)}, "--shown '1,2,1' contains the item '1' twice; name each item once."),
        ({"candidates": "1,2,"}, "--candidates must be item ids separated by commas, such as 12,55,9; got '1,2,'."),
    ],
)
def test_malformed_lists_of_the_command_are_one_sentence(run: Path, options: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Recommend(run, device="cpu", **options).run()
    assert str(caught.value) == message


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def client(run: Path, log: Path) -> Iterator[httpx.Client]:
    options = DecisionLogOptions(flush_seconds=0.02)
    with open_client({"user": run}, log=log, log_options=options, explore=Blend(0.5), seed=0) as client:
        yield client


def recommend(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/recommend", json=body)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


def test_a_request_carries_its_lists(client: httpx.Client, policy: Policy) -> None:
    shown = [{"items": [1, 2, 3], "picked": 2}, {"items": [4, 5, 6]}, {"items": [7, 8], "picked": None}]
    response = recommend(client, shown=shown, k=4)
    lists: list[Any] = [([1, 2, 3], 2), ([4, 5, 6], None), ([7, 8], None)]
    assert [row["item"] for row in response["items"]] == policy.recommend([], 4, shown=lists).items
    assert client.get("/v1/policies").json()["policies"][0]["learns_from_lists"]
    wrong = client.post("/v1/recommend", json={"shown": [{"items": [1], "picked": 2}]})
    assert wrong.status_code == 422
    assert wrong.json()["error"].startswith("shown[0]: the pick 2 is not among its items;")
    many = client.post("/v1/recommend", json={"shown": [{"items": [1]}] * 101})
    assert many.status_code == 422


def test_a_blend_makes_the_log_usable(client: httpx.Client, log: Path, tmp_path: Path, policy: Policy) -> None:
    best = policy.recommend([], 2).items
    for number in range(60):
        names = {"session_id": f"s{number}", "request_id": f"r{number}"}
        response = recommend(client, k=2, sample=True, **names)
        items = [row["item"] for row in response["items"]]
        n_items = policy.n_items
        expected = 0.5 * (items == best) + 0.5 / (n_items * (n_items - 1))
        assert response["log_probability"] == pytest.approx(math.log(expected), abs=1e-9)
        client.post("/v1/events", json={**names, "item": items[0], "behaviour": "click"})
    records = [record for record in read_records(log)[0] if record.get("request_id", "").startswith("r")]
    assert {record["explore"] for record in records if record["kind"] == "list"} == {"blend:0.5"}
    dataset = prepare(log, out=tmp_path / "dataset", format="served")
    assert dataset.meta["decisions"]["count"] == 60
    message = "temperature has no effect with the server's --explore blend:0.5; omit it."
    assert client.post("/v1/recommend", json={"sample": True, "temperature": 2.0}).json()["error"] == message


@pytest.mark.parametrize("has_explorer", [False, True])
@pytest.mark.parametrize("restriction", [{}, {"excluded": frozenset({1})}, {"candidates": [0, 2, 3]}])
def test_frequencies_of_a_blend_match_its_probabilities(
    tmp_path: Path, restriction: dict[str, Any], has_explorer: bool
) -> None:
    if has_explorer:
        restriction = restriction | {
            "explorer": offrec.load(write_run(tmp_path / "other", list(range(4)), seed=5), "cpu")
        }
    policy = offrec.load(write_run(tmp_path / "run", list(range(4)), algorithm_name="dqn"), "cpu")
    engine, n = Engine(policy, 0), 500
    queries = [Query([], 2, blend=Blend(0.6), **restriction)] * n
    results = engine.rank(queries)
    counts = Counter(tuple(result.items) for result in results)
    probability = {tuple(result.items): math.exp(result.log_probability or 0.0) for result in results}
    pool = restriction.get("candidates") or [item for item in range(4) if item not in restriction.get("excluded", ())]
    assert set(counts) == set(itertools.permutations(pool, 2))
    assert math.fsum(probability.values()) == pytest.approx(1.0)
    statistic = sum((counts[one] - n * p) ** 2 / (n * p) for one, p in probability.items())
    assert statistic < 40  # χ² with at most 11 degrees of freedom: p < 4e-5


def test_random_lists_can_come_from_another_policy(run: Path, policy: Policy, tmp_path: Path) -> None:
    ids = [policy.vocabulary.id(index) for index in range(policy.n_items)]
    runs = {
        "user": run,
        "other": write_run(tmp_path / "other", ids),  # type: ignore[arg-type]
        "shop": write_run(tmp_path / "shop", [1, 2]),
    }
    with open_client(runs, explore=parse_explore("blend:0.5:other", runs), seed=0) as client:
        response = recommend(client, k=2, sample=True)
        items = [row["item"] for row in response["items"]]
        best = policy.recommend([], 2).items
        first, second = ([*offrec.load(runs["other"], "cpu").recommend([], 20).items].index(item) for item in items)
        weights = offrec.load(runs["other"], "cpu").recommend([], 20).probabilities or []
        softmax = weights[first] * weights[second] / (1 - weights[first])
        assert math.exp(response["log_probability"]) == pytest.approx(0.5 * (items == best) + 0.5 * softmax, rel=1e-4)
        wrong = client.post("/v1/recommend", json={"policy": "shop", "k": 1, "sample": True})
        assert wrong.json()["error"] == "sample is true, but other, which --explore names, has another catalogue."
    with pytest.raises(InputError, match="--explore names 'x', which is not served; the policies are user"):
        parse_explore("blend:0.5:x", ["user"])


@pytest.mark.parametrize("text", ["blend", "blend:1", "blend:0", "blend:x", "mix:0.1", "blend:nan"])
def test_invalid_explorations_are_one_sentence(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_explore(text)
    assert str(caught.value) == (
        f"--explore must be blend:SHARE with a share between 0 and 1, such as blend:0.1; got {text!r}."
    )
