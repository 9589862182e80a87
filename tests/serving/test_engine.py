"""Answers of the engine: those of `Policy.recommend`, whoever else asks at the same time."""

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
ALL = [
    Query([3, 4, 5], 5),
    Query([], 3, temperature=1.0),
    Query([7], 4, frozenset({7, 1, 2})),
    Query([7, 8, 9, 10, 11, 12, 13], 1, frozenset(range(100))),
    Query([9], 9, allowed=[2, 3, 4]),
    Query([2], 2, allowed=[5, 6, 7], temperature=2.0),
    Query([1], 6, frozenset(range(90)), temperature=0.5),
]


@pytest.fixture(scope="module", params=["sl", "dqn", "dc", "pg"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    run = write_run(
        tmp_path_factory.mktemp("run") / "run", list(range(1000, 1000 + ITEMS)), algorithm_name=request.param
    )
    return Engine(load(run, "cpu"), seed=0)


def asks(engine: Engine) -> list[Query]:
    return ALL if engine.policy.stochastic else [ask for ask in ALL if ask.temperature is None]


def test_the_best_are_those_of_the_policy(engine: Engine) -> None:
    plain = [ask for ask in asks(engine) if ask.temperature is None]
    for ask, answer in zip(plain, engine.answer(plain), strict=True):
        expected = engine.policy.recommend(
            [1000 + item for item in ask.history],
            ask.k,
            exclude=[1000 + item for item in ask.barred],
            candidates=None if ask.allowed is None else [1000 + item for item in ask.allowed],
        )
        assert [1000 + item for item in answer.items] == expected.items
        assert answer.scores == pytest.approx(expected.scores, abs=1e-5)
        assert (answer.probabilities is None) == (expected.probabilities is None)
        if expected.probabilities is not None:
            assert answer.probabilities == pytest.approx(expected.probabilities, rel=1e-4)
        assert answer.log_probability is None


def test_company_changes_nothing(engine: Engine) -> None:
    plain = [ask for ask in asks(engine) if ask.temperature is None]
    alone = [engine.answer([ask])[0] for ask in plain]
    together = [answer for answer in engine.answer(asks(engine)) if answer.log_probability is None]
    for one, other in zip(alone, together, strict=True):
        assert one.items == other.items
        assert one.scores == pytest.approx(other.scores, abs=1e-5)


def test_drawn_lists_keep_to_what_is_allowed(engine: Engine) -> None:
    if not engine.policy.stochastic:
        pytest.skip("a policy of scores is not drawn from")
    for ask, answer in zip(ALL, engine.answer(ALL), strict=True):
        assert len(answer.items) == min(ask.k, len(ask.allowed or range(ITEMS)))
        assert not set(answer.items) & ask.barred
        assert ask.allowed is None or set(answer.items) <= set(ask.allowed)
        if ask.temperature is not None:
            assert answer.places is not None
            assert answer.log_probability == pytest.approx(float(torch.tensor(answer.places).log().sum()), abs=1e-5)


def test_logging_probabilities_are_those_of_the_logging_policy(tmp_path: Path) -> None:
    engine = Engine(load(write_run(tmp_path / "dc", list(range(30)), algorithm_name="dc"), "cpu"), 0)
    assert engine.knows_logging
    with_b, without = engine.answer([Query([1, 2], 4, logging=True), Query([1, 2], 4)])
    assert without.logging is None
    prior = engine.policy.agent.prior  # type: ignore[attr-defined]
    batch = batch_from_histories([[1, 2]], 30, 5, torch.device("cpu"))
    expected = log_prob(prior(batch), torch.tensor([with_b.items]))[0].exp().tolist()
    assert with_b.logging == pytest.approx(expected, rel=1e-5)
    assert with_b.logging != pytest.approx(with_b.probabilities, rel=1e-3)
    assert not Engine(load(write_run(tmp_path / "sl", [1, 2]), "cpu"), 0).knows_logging


def test_what_a_policy_gives_no_chance_is_left_out(tmp_path: Path) -> None:
    """DQN within support of π̂_b: with a bound that few items reach, lists are short."""
    run = write_run(tmp_path / "run", list(range(50)), spread=3.0, algorithm_name="dqn", algorithm_delta=0.05)
    answer = Engine(load(run, "cpu"), 0).answer([Query([1], 40)])[0]
    assert 0 < len(answer.items) < 20
    assert min(answer.scores) > -1e6


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_a_large_ask_does_not_swell_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float | None
) -> None:
    engine = Engine(load(write_run(tmp_path / "run", list(range(3000)), network_repeat="off"), "cpu"), 0)
    name = "top_lists" if temperature is None else "sample_lists"
    real, sizes = getattr(engine_module, name), []

    def watched(head: Head, k: int, *rest: Any) -> ItemLists:
        sizes.append((head.n_rows, k, 0 if head.items is None else head.items.shape[1]))
        found: ItemLists = real(head, k, *rest)
        return found

    monkeypatch.setattr(engine_module, name, watched)
    small = [Query([item], 5, frozenset({item}), temperature=temperature) for item in range(6)]
    large = Query([7], 800, frozenset(range(2000)), temperature=temperature)
    long, barred = Query([8], 800, temperature=temperature), Query([9], 5, large.barred, temperature=temperature)
    asks = [*small[:3], large, long, *small[3:], barred]
    found = engine.answer(asks)
    assert sorted(sizes) == [(1, 5, 2000), (1, 800, 0), (1, 800, 2000), (6, 5, 1)]
    for ask, answer in zip(asks, found, strict=True):
        assert len(set(answer.items)) == ask.k
        assert not ask.barred & {*answer.items}
