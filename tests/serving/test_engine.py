"""The engine's lists are those of `Policy.recommend`, no matter which other queries are in the batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from random_runs import write_run

from offrec.catalogue import Head, log_prob
from offrec.catalogue.lists import ItemLists
from offrec.data.replay import batch_from_histories
from offrec.runs.loading import load
from offrec.serving import engine as engine_module
from offrec.serving.engine import Engine, Query

ITEMS = 200
QUERIES = [
    Query([3, 4, 5], 5),
    Query([], 3, temperature=1.0),
    Query([7], 4, frozenset({7, 1, 2})),
    Query([7, 8, 9, 10, 11, 12, 13], 1, frozenset(range(100))),
    Query([9], 9, candidates=[2, 3, 4]),
    Query([9, 3, 4], 3, candidates=[2, 3, 4], skip_recent=1),
    Query([5, 6, 5, 8], ITEMS, skip_recent=3),
    Query([5, 6], 4, frozenset({5}), skip_recent=8, temperature=1.0),
    Query([2], 2, candidates=[5, 6, 7], temperature=2.0),
    Query([1], 6, frozenset(range(90)), temperature=0.5),
]


@pytest.fixture(scope="module", params=["sl", "dqn", "dc", "pg"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    ids = list(range(1000, 1000 + ITEMS))
    run = write_run(tmp_path_factory.mktemp("run") / "run", ids, algorithm_name=request.param)
    return Engine(load(run, "cpu"), seed=0)


def queries_for(engine: Engine) -> list[Query]:
    return [query for query in QUERIES if query.temperature is None or engine.policy.stochastic]


def test_best_lists_are_those_of_the_policy(engine: Engine) -> None:
    queries = [query for query in QUERIES if query.temperature is None]
    for query, result in zip(queries, engine.rank(queries), strict=True):
        expected = engine.policy.recommend(
            [1000 + item for item in query.history],
            query.k,
            skip_recent=query.skip_recent,
            exclude=[1000 + item for item in query.excluded],
            candidates=None if query.candidates is None else [1000 + item for item in query.candidates],
        )
        assert [1000 + item for item in result.items] == expected.items
        assert result.scores == pytest.approx(expected.scores, abs=1e-5)
        assert (result.probabilities is None) == (expected.probabilities is None)
        if expected.probabilities is not None:
            assert result.probabilities == pytest.approx(expected.probabilities, rel=1e-4)
        assert result.log_probability is None


def test_other_queries_in_the_batch_change_nothing(engine: Engine) -> None:
    best = [query for query in QUERIES if query.temperature is None]
    alone = [engine.rank([query])[0] for query in best]
    in_batch = [result for result in engine.rank(queries_for(engine)) if result.log_probability is None]
    for one, other in zip(alone, in_batch, strict=True):
        assert one.items == other.items
        assert one.scores == pytest.approx(other.scores, abs=1e-5)


def test_sampled_lists_respect_exclusions_and_candidates(engine: Engine) -> None:
    if not engine.policy.stochastic:
        pytest.skip("this policy is not a distribution")
    for query, result in zip(QUERIES, engine.rank(QUERIES), strict=True):
        assert len(result.items) == min(query.k, len(query.candidates or range(ITEMS)))
        assert not set(result.items) & query.excluded
        assert query.candidates is None or set(result.items) <= set(query.candidates)
        if query.temperature is not None:
            assert result.position_probabilities is not None
            total = float(torch.tensor(result.position_probabilities).log().sum())
            assert result.log_probability == pytest.approx(total, abs=1e-5)


def test_logging_probabilities_are_those_of_the_logging_policy(tmp_path: Path) -> None:
    engine = Engine(load(write_run(tmp_path / "dc", list(range(30)), algorithm_name="dc"), "cpu"), 0)
    assert engine.has_logging_policy
    with_logging, without = engine.rank([Query([1, 2], 4, logging=True), Query([1, 2], 4)])
    assert without.logging_probabilities is None
    prior = engine.policy.agent.prior  # type: ignore[attr-defined]
    batch = batch_from_histories([[1, 2]], 30, 5, torch.device("cpu"))
    expected = log_prob(prior(batch), torch.tensor([with_logging.items]))[0].exp().tolist()
    assert with_logging.logging_probabilities == pytest.approx(expected, rel=1e-5)
    assert with_logging.logging_probabilities != pytest.approx(with_logging.probabilities, rel=1e-3)
    assert not Engine(load(write_run(tmp_path / "sl", [1, 2]), "cpu"), 0).has_logging_policy


def test_items_outside_the_support_are_left_out(tmp_path: Path) -> None:
    """DQN restricted to items with π̂_b ≥ δ: if few items reach δ, lists are short."""
    run = write_run(tmp_path / "run", list(range(50)), spread=3.0, algorithm_name="dqn", algorithm_delta=0.05)
    result = Engine(load(run, "cpu"), 0).rank([Query([1], 40)])[0]
    assert 0 < len(result.items) < 20
    assert min(result.scores) > -1e6


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_large_queries_do_not_pad_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float | None
) -> None:
    engine = Engine(load(write_run(tmp_path / "run", list(range(3000)), network_repeat="off"), "cpu"), 0)
    name = "top_lists" if temperature is None else "sample_lists"
    real, sizes = getattr(engine_module, name), []

    def record_size(head: Head, k: int, *rest: Any) -> ItemLists:
        sizes.append((head.n_rows, k, 0 if head.items is None else head.items.shape[1]))
        lists: ItemLists = real(head, k, *rest)
        return lists

    monkeypatch.setattr(engine_module, name, record_size)
    small = [Query([item], 5, frozenset({item}), temperature=temperature) for item in range(6)]
    large = Query([7], 800, frozenset(range(2000)), temperature=temperature)
    long_list = Query([8], 800, temperature=temperature)
    many_excluded = Query([9], 5, large.excluded, temperature=temperature)
    queries = [*small[:3], large, long_list, *small[3:], many_excluded]
    results = engine.rank(queries)
    neighbours = 250  # the corrections of SL's counted neighbours: 5 items with 50 neighbours each
    excluded = [(1, 5, 2000), (1, 800, 0), (1, 800, 2000), (6, 5, 1)]
    assert sorted(sizes) == [(rows, k, items + neighbours) for rows, k, items in excluded]
    for query, result in zip(queries, results, strict=True):
        assert len(set(result.items)) == query.k
        assert not query.excluded & {*result.items}
