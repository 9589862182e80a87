"""The estimators: numbers worked by hand, relations between them, and SCOPE-RL's and obp's numbers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offrec.errors import InputError
from offrec.estimation.estimators import ESTIMATORS, contributions, residual, terms, value
from offrec.estimation.trajectories import Trajectories, log_weights, weights

PEERS = json.loads((Path(__file__).parent / "peers" / "numbers.json").read_text())


@pytest.fixture
def by_hand() -> Trajectories:
    """Two decisions with the ratios 2 and ½, one with ½, and a session without any."""
    return Trajectories(
        offsets=np.array([0, 2, 3, 3]),
        reward=np.array([1.0, 3.0, 4.0]),
        log_pi=np.log([0.4, 0.2, 0.1]),
        log_b=np.log([0.2, 0.4, 0.2]),
        q=np.array([1.5, 2.0, 3.0]),
        v=np.array([2.0, 1.0, 1.0]),
        log_marginal=np.log([1.0, 2.0, 4.0]),
        by={"view": np.array([1.0, 0.0, 1.0]), "buy": np.array([0.0, 3.0, 3.0])},
    )


def some_steps(seed: int, sessions: int = 40) -> Trajectories:
    random = np.random.default_rng(seed)
    lengths = random.poisson(3, sessions)
    offsets, n = np.concatenate([[0], np.cumsum(lengths)]), int(lengths.sum())
    reward, q, v = random.normal(size=(3, n))
    log_pi, log_b = np.log(random.uniform(0.1, 1, (2, n)))
    return Trajectories(offsets, reward, log_pi, log_b, q=q, v=v, log_marginal=random.normal(size=n))


def test_weights_by_hand(by_hand: Trajectories) -> None:
    after, before = weights(by_hand)
    np.testing.assert_allclose(after, [2, 1, 0.5])
    np.testing.assert_allclose(before, [1, 2, 1])
    np.testing.assert_allclose(weights(by_hand, cap=1.5)[0], [1.5, 1, 0.5])


@pytest.mark.parametrize(
    ("name", "cap", "expected"),
    [
        ("importance", None, [2 * 1 + 0.5 * 1 * 3, 0.5 * 4, 0]),
        ("capped", 1.5, [1.5 * 1 + 0.5 * 1 * 3, 0.5 * 4, 0]),
        ("capped", None, [3**0.5 * 1 + 0.5 * 1 * 3, 0.5 * 4, 0]),  # √S
        # mean weights: (2 + ½ + 1) / 3, then (1 + ½ + 1) / 3, the last two of sessions that are over
        ("self_normalised", None, [2 / (3.5 / 3) + 0.5 * 3 / (2.5 / 3), 0.5 * 4 / (3.5 / 3), 0]),
        # weights 1, 2 and 4; their means (1 + 4 + 1) / 3, then (2 + 4 + 1) / 3
        ("marginal", None, [1 / 2 + 0.5 * 2 * 3 / (7 / 3), 4 * 4 / 2, 0]),
        ("direct", None, [2, 1, 0]),
        # δ: 1 + ½·1 − 1.5 = 0, 3 − 2 = 1, 4 − 3 = 1
        ("doubly_robust", None, [2 + 2 * 0 + 0.5 * 1 * 1, 1 + 0.5 * 1, 0]),
        ("weighted_doubly_robust", None, [2 + 0.5 * 1 / (2.5 / 3), 1 + 0.5 / (3.5 / 3), 0]),
    ],
)
def test_by_hand(by_hand: Trajectories, name: str, cap: float | None, expected: list[float]) -> None:
    found = contributions(terms(name, by_hand, gamma=0.5, cap=cap))
    np.testing.assert_allclose(found, expected)
    assert value(name, by_hand, 0.5, cap) == pytest.approx(np.mean(expected))


def test_every_estimator_is_worked_by_hand() -> None:
    """The list above and the registry are the same set."""
    mark = next(mark for mark in test_by_hand.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {row[0] for row in mark.args[1]} == set(ESTIMATORS)


def test_parts_by_behaviour_add_up(by_hand: Trajectories) -> None:
    for name in ("importance", "self_normalised", "capped", "marginal"):
        parts = [value(name, by_hand.earning(part), 0.5) for part in by_hand.by]
        assert sum(parts) == pytest.approx(value(name, by_hand, 0.5))
    assert value("importance", by_hand.counting()) == pytest.approx((2 + 1 + 0.5) / 3)
    with pytest.raises(InputError, match="there are view, buy"):
        by_hand.earning("cart")
    with pytest.raises(InputError, match="needs Q and V"):
        value("doubly_robust", by_hand.earning("buy"))


def test_without_a_model_doubly_robust_is_importance_sampling() -> None:
    steps = some_steps(0)
    blank = replace(steps, q=np.zeros(steps.decisions), v=np.zeros(steps.decisions))
    for robust, plain in (("doubly_robust", "importance"), ("weighted_doubly_robust", "self_normalised")):
        assert value(robust, blank, 0.9) == pytest.approx(value(plain, steps, 0.9))


def test_the_logging_policy_itself_earns_what_was_logged() -> None:
    steps = some_steps(1)
    same = replace(steps, log_pi=steps.log_b, log_marginal=np.zeros(steps.decisions))
    earned = np.bincount(steps.session, 0.9**steps.step * steps.reward, minlength=len(steps))
    for name in ("importance", "capped", "self_normalised", "marginal"):
        np.testing.assert_allclose(contributions(terms(name, same, 0.9)), earned, atol=1e-12)
    robust = contributions(terms("doubly_robust", same, 0.9))
    np.testing.assert_allclose(contributions(terms("weighted_doubly_robust", same, 0.9)), robust, atol=1e-12)


def test_a_right_model_needs_no_weights() -> None:
    """Where every residual is 0, doubly robust is the direct method, whatever the weights."""
    steps = some_steps(2)
    assert steps.v is not None
    nothing = np.zeros(steps.decisions)
    exact = residual(steps.reward, nothing, steps.v, steps.step, 0.9)  # Q = r + γ V(s′)
    steps = replace(steps, q=exact)
    for name in ("doubly_robust", "weighted_doubly_robust"):
        assert value(name, steps, 0.9, cap=2.0) == pytest.approx(value("direct", steps, 0.9))


def test_what_the_policy_never_shows_weighs_nothing(by_hand: Trajectories) -> None:
    assert by_hand.log_pi is not None
    never = replace(by_hand, log_pi=np.array([-np.inf, -1.0, -1.0]))
    np.testing.assert_array_equal(weights(never)[0][:2], [0, 0])
    nothing = replace(by_hand, log_pi=np.full(3, -np.inf), offsets=np.array([0, 2, 3]))
    assert value("self_normalised", nothing) == 0.0


def test_weights_beyond_all_bounds_stay_numbers() -> None:
    steps = replace(some_steps(3), log_pi=np.full(some_steps(3).decisions, 400.0))
    for name in ESTIMATORS:
        assert np.isfinite(contributions(terms(name, steps))).all()
    assert log_weights(steps).max() < 709 / 2


def test_resampled_sessions_are_whole() -> None:
    steps = some_steps(4)
    chosen = np.array([3, 3, 0, 39, 5])
    plain = contributions(terms("importance", steps, 0.9))
    np.testing.assert_allclose(contributions(terms("importance", steps.of(chosen), 0.9)), plain[chosen], atol=1e-12)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"offsets": np.array([0, 2, 2])}, "do not fill sessions"),
        ({"offsets": np.array([0, 3, 2, 3])}, "do not fill sessions"),
        ({"q": np.zeros((3, 1))}, r"q has the shape \(3, 1\)"),
        ({"log_b": np.array([0.0, -np.inf, 0.0])}, "log_b is -inf at decision 1"),
        ({"start": np.zeros(2)}, "there are 3 sessions"),
        ({"by": {"view": np.zeros(2)}}, "there are 3 decisions"),
    ],
)
def test_refusals(by_hand: Trajectories, change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        replace(by_hand, **change)


def test_refused_estimates(by_hand: Trajectories) -> None:
    with pytest.raises(InputError, match="only the direct method"):
        value("importance", replace(by_hand, log_pi=None))
    assert value("direct", replace(by_hand, log_pi=None, q=None)) == pytest.approx(1.0)
    with pytest.raises(InputError, match="no estimator 'dr'"):
        value("dr", by_hand)
    with pytest.raises(InputError, match=r"discount is 1\.5"):
        value("importance", by_hand, 1.5)
    with pytest.raises(InputError, match="cap on weights is 0"):
        value("importance", by_hand, cap=0)
    with pytest.raises(InputError, match="clusters' ratios"):
        value("marginal", replace(by_hand, log_marginal=None))


@pytest.mark.parametrize("case", PEERS, ids=lambda case: case["name"])
def test_equal_to_peers(case: dict[str, Any]) -> None:
    pi, b, q = (np.array(case[name]) for name in ("pi", "b", "q"))
    action = np.array(case["action"])
    rows, cluster = np.arange(len(action)), np.arange(pi.shape[1]) % case["clusters"]
    inside = cluster[None, :] == cluster[action][:, None]
    steps = Trajectories(
        offsets=np.concatenate([[0], np.cumsum(case["lengths"])]),
        reward=np.array(case["reward"]),
        log_pi=np.log(pi[rows, action]),
        log_b=np.log(b[rows, action]),
        q=q[rows, action],
        v=(pi * q).sum(1),
        log_marginal=np.log((pi * inside).sum(1) / (b * inside).sum(1)),
    )
    for peer, numbers in case["estimates"].items():
        for name, expected in numbers.items():
            cap = case["cap"] if name == "capped" else None
            assert value(name, steps, case["gamma"], cap) == pytest.approx(expected, rel=1e-6, abs=1e-9), (peer, name)
