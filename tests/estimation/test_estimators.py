"""Estimators: numbers worked out by hand, relations between them, and equality with SCOPE-RL and obp."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offrec.errors import InputError
from offrec.estimation.estimators import ESTIMATORS, contributions, estimate_value, session_terms, td_residual
from offrec.estimation.trajectories import Trajectories, log_weights, weights

PEERS = json.loads((Path(__file__).parent / "peers" / "numbers.json").read_text())
OTHERS = [estimator for estimator in ESTIMATORS.values() if estimator.weighting != "lists"]
WITH_OTHER_RATIOS = [one.name for one in OTHERS if not one.uses_q]
WITH_Q_OF_LISTS = [one.name for one in OTHERS if one.uses_q and not one.depends_on_reaction]
WITH_CONTROLS = [one.name for one in OTHERS if one.uses_q and one.depends_on_reaction]
WEIGHTINGS = [one.weighting for one in OTHERS if not one.uses_q]


@pytest.fixture
def by_hand() -> Trajectories:
    """A session with the ratios 2 and ½, one with the ratio ½, and one without decisions."""
    return Trajectories(
        offsets=np.array([0, 2, 3, 3]),
        reward=np.array([1.0, 3.0, 4.0]),
        log_pi=np.log([0.4, 0.2, 0.1]),
        log_b=np.log([0.2, 0.4, 0.2]),
        q=np.array([1.5, 2.0, 3.0]),
        v=np.array([2.0, 1.0, 1.0]),
        log_ratios=dict.fromkeys(WEIGHTINGS, np.log([1.0, 2.0, 4.0])),
        controls=dict.fromkeys(WEIGHTINGS, np.array([0.5, 0.6, 2.0])),
        state=np.array([0, 1, 0]),
        reward_by_behaviour={"view": np.array([1.0, 0.0, 1.0]), "buy": np.array([0.0, 3.0, 3.0])},
    )


def random_trajectories(seed: int, sessions: int = 40) -> Trajectories:
    random = np.random.default_rng(seed)
    lengths = random.poisson(3, sessions)
    offsets, n = np.concatenate([[0], np.cumsum(lengths)]), int(lengths.sum())
    reward, q, v = random.normal(size=(3, n))
    log_pi, log_b = np.log(random.uniform(0.1, 1, (2, n)))
    return Trajectories(
        offsets,
        reward,
        log_pi,
        log_b,
        q=q,
        v=v,
        log_ratios=dict.fromkeys(WEIGHTINGS, random.normal(size=n)),
        controls=dict.fromkeys(WEIGHTINGS, random.normal(size=n)),
        state=random.integers(0, 3, n),
    )


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
        # mean weights: (2 + ½ + 1) / 3, then (1 + ½ + 1) / 3; the last two belong to sessions that have ended
        ("self_normalised", None, [2 / (3.5 / 3) + 0.5 * 3 / (2.5 / 3), 0.5 * 4 / (3.5 / 3), 0]),
        # only one session has a second decision, so the mean of its class is its own weight
        ("state_marginal", None, [2 / (3.5 / 3) + 0.5 * 3 / (2.5 / 3), 0.5 * 4 / (3.5 / 3), 0]),
        # weights 1, 2 and 4; their means (1 + 4 + 1) / 3, then (2 + 4 + 1) / 3
        *((name, None, [1 / 2 + 0.5 * 2 * 3 / (7 / 3), 4 * 4 / 2, 0]) for name in WITH_OTHER_RATIOS),
        # the same weights with δ as below: 0, 1 and 1
        *((name, None, [2 + 0.5 * 2 * 1 / (7 / 3), 1 + 4 * 1 / 2, 0]) for name in WITH_Q_OF_LISTS),
        # δ: 1 + ½ (1 − .6) = 1.2, 3 and 4; the base is V − K at the first decision: 2 − .5 and 1 − 2
        *((name, None, [1.5 + 1.2 / 2 + 0.5 * 2 * 3 / (7 / 3), -1 + 4 * 4 / 2, 0]) for name in WITH_CONTROLS),
        ("direct", None, [2, 1, 0]),
        # δ: 1 + ½·1 − 1.5 = 0, 3 − 2 = 1, 4 − 3 = 1
        ("doubly_robust", None, [2 + 2 * 0 + 0.5 * 1 * 1, 1 + 0.5 * 1, 0]),
        ("weighted_doubly_robust", None, [2 + 0.5 * 1 / (2.5 / 3), 1 + 0.5 / (3.5 / 3), 0]),
        ("state_marginal_doubly_robust", None, [2 + 0.5 * 1 / (2.5 / 3), 1 + 0.5 / (3.5 / 3), 0]),
    ],
)
def test_contributions_by_hand(by_hand: Trajectories, name: str, cap: float | None, expected: list[float]) -> None:
    actual = contributions(session_terms(name, by_hand, gamma=0.5, cap=cap))
    np.testing.assert_allclose(actual, expected)
    assert estimate_value(name, by_hand, 0.5, cap) == pytest.approx(np.mean(expected))


def test_every_estimator_has_a_case_by_hand() -> None:
    """The cases above cover the registry."""
    mark = next(mark for mark in test_contributions_by_hand.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {row[0] for row in mark.args[1]} == set(ESTIMATORS)


def test_the_values_of_all_behaviours_add_up(by_hand: Trajectories) -> None:
    for name in ("importance", "self_normalised", "capped", "marginal"):
        parts = [estimate_value(name, by_hand.with_reward_of(part), 0.5) for part in by_hand.reward_by_behaviour]
        assert sum(parts) == pytest.approx(estimate_value(name, by_hand, 0.5))
    assert estimate_value("importance", by_hand.with_unit_reward()) == pytest.approx((2 + 1 + 0.5) / 3)
    with pytest.raises(InputError, match="known behaviours: view, buy"):
        by_hand.with_reward_of("cart")
    with pytest.raises(InputError, match="needs Q and V"):
        estimate_value("doubly_robust", by_hand.with_reward_of("buy"))


def test_doubly_robust_without_a_model_is_importance_sampling() -> None:
    steps = random_trajectories(0)
    nothing = np.zeros(steps.decisions)
    blank = replace(steps, q=nothing, v=nothing, controls=dict.fromkeys(WEIGHTINGS, nothing))
    pairs = [(name, name.removesuffix("_doubly_robust")) for name in (*WITH_Q_OF_LISTS, *WITH_CONTROLS)]
    pairs += [("doubly_robust", "importance"), ("weighted_doubly_robust", "self_normalised")]
    for robust, plain in (*pairs, ("state_marginal_doubly_robust", "state_marginal")):
        assert estimate_value(robust, blank, 0.9) == pytest.approx(estimate_value(plain, steps, 0.9))


def test_the_estimate_of_the_logging_policy_is_the_logged_reward() -> None:
    steps = random_trajectories(1)
    same = replace(steps, log_pi=steps.log_b, log_ratios=dict.fromkeys(WEIGHTINGS, np.zeros(steps.decisions)))
    earned = np.bincount(steps.session, 0.9**steps.step * steps.reward, minlength=len(steps))
    for name in ("importance", "capped", "self_normalised", "marginal", "state_marginal"):
        np.testing.assert_allclose(contributions(session_terms(name, same, 0.9)), earned, atol=1e-12)
    robust = contributions(session_terms("doubly_robust", same, 0.9))
    np.testing.assert_allclose(contributions(session_terms("weighted_doubly_robust", same, 0.9)), robust, atol=1e-12)


def test_doubly_robust_with_an_exact_model_is_the_direct_method() -> None:
    """With residuals of 0 the weights have no effect."""
    steps = random_trajectories(2)
    assert steps.v is not None
    nothing = np.zeros(steps.decisions)
    exact = td_residual(steps.reward, nothing, steps.v, steps.step, 0.9)  # Q = r + γ V(s′)
    steps = replace(steps, q=exact)
    for name in ("doubly_robust", "weighted_doubly_robust", "state_marginal_doubly_robust", *WITH_Q_OF_LISTS):
        assert estimate_value(name, steps, 0.9, cap=2.0) == pytest.approx(estimate_value("direct", steps, 0.9))


def test_lists_that_the_policy_never_shows_have_weight_0(by_hand: Trajectories) -> None:
    assert by_hand.log_pi is not None
    never = replace(by_hand, log_pi=np.array([-np.inf, -1.0, -1.0]))
    np.testing.assert_array_equal(weights(never)[0][:2], [0, 0])
    nothing = replace(by_hand, log_pi=np.full(3, -np.inf), offsets=np.array([0, 2, 3]))
    assert estimate_value("self_normalised", nothing) == 0.0


def test_huge_weights_stay_finite() -> None:
    steps = replace(random_trajectories(3), log_pi=np.full(random_trajectories(3).decisions, 400.0))
    for name in ESTIMATORS:
        assert np.isfinite(contributions(session_terms(name, steps))).all()
    assert log_weights(steps).max() < 709 / 2


def test_selected_sessions_keep_their_contributions() -> None:
    steps = random_trajectories(4)
    chosen = np.array([3, 3, 0, 39, 5])
    plain = contributions(session_terms("importance", steps, 0.9))
    np.testing.assert_allclose(
        contributions(session_terms("importance", steps.select(chosen), 0.9)), plain[chosen], atol=1e-12
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": np.array([0, 2, 2])}, "offsets end with"),
        ({"offsets": np.array([0, 3, 2, 3])}, "offsets end with"),
        ({"q": np.zeros((3, 1))}, r"q has shape \(3, 1\)"),
        ({"log_b": np.array([0.0, -np.inf, 0.0])}, "log_b is -inf at decision 1"),
        ({"start_value": np.zeros(2)}, r"start_value has shape \(2,\); expected \(3,\)"),
        ({"reward_by_behaviour": {"view": np.zeros(2)}}, r"expected \(3,\), one value per decision"),
    ],
)
def test_invalid_trajectories_are_refused(by_hand: Trajectories, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(by_hand, **change)


def test_estimates_without_the_needed_columns_are_refused(by_hand: Trajectories) -> None:
    with pytest.raises(InputError, match="use the estimator direct"):
        estimate_value("importance", replace(by_hand, log_pi=None))
    assert estimate_value("direct", replace(by_hand, log_pi=None, q=None)) == pytest.approx(1.0)
    with pytest.raises(InputError, match="Unknown estimator 'dr'"):
        estimate_value("dr", by_hand)
    with pytest.raises(InputError, match=r"gamma must be between 0 and 1; got 1\.5"):
        estimate_value("importance", by_hand, 1.5)
    with pytest.raises(InputError, match="cap must be positive; got 0"):
        estimate_value("importance", by_hand, cap=0)
    with pytest.raises(InputError, match="needs ratios of clusters"):
        estimate_value("marginal", replace(by_hand, log_ratios={}))
    with pytest.raises(InputError, match="pick_doubly_robust needs Q of each item of a list, which is missing"):
        estimate_value("pick_doubly_robust", replace(by_hand, controls={}))


@pytest.mark.parametrize("case", PEERS, ids=lambda case: case["name"])
def test_estimates_equal_those_of_other_libraries(case: dict[str, Any]) -> None:
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
        log_ratios={"clusters": np.log((pi * inside).sum(1) / (b * inside).sum(1))},
    )
    for peer, numbers in case["estimates"].items():
        for name, expected in numbers.items():
            cap = case["cap"] if name == "capped" else None
            value = estimate_value(name, steps, case["gamma"], cap)
            assert value == pytest.approx(expected, rel=1e-6, abs=1e-9), (peer, name)
