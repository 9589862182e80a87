"""Bounds under hidden knowledge: by hand, against all corners of the ranges, and against a confounded log."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from offrec.estimation.estimators import estimate_value
from offrec.estimation.interval import Interval
from offrec.estimation.sensitivity import MAX_STRENGTH, largest_mean, residual_bounds, sensitivity, value_bounds
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import assess


def one_step(reward: list[float], pi: float = 1.0, b: float = 1e-9) -> Trajectories:
    n = len(reward)
    return Trajectories(np.arange(n + 1), np.array(reward), np.full(n, np.log(pi * b)), np.full(n, np.log(b)))


def test_largest_mean_by_hand() -> None:
    """Two values 1 and 0 with weights between 1/2 and 2: 2 / (2 + 1/2)."""
    half, two = np.full(2, 0.5), np.full(2, 2.0)
    assert largest_mean(np.array([1.0, 0.0]), half, two) == pytest.approx(0.8)
    assert largest_mean(np.array([0.0, 0.0]), half, two) == 0.0


def test_largest_mean_is_the_best_corner() -> None:
    random = np.random.default_rng(0)
    values, small = random.normal(size=8), random.random(8)
    large = small + random.random(8)
    corners = (np.where(chosen, large, small) for chosen in product([False, True], repeat=8))
    assert largest_mean(values, small, large) == pytest.approx(max((w * values).sum() / w.sum() for w in corners))


def test_strength_1_gives_the_self_normalised_estimate() -> None:
    random = np.random.default_rng(1)
    offsets = np.array([0, 3, 3, 5, 9])
    steps = Trajectories(offsets, random.random(9), np.log(random.random(9)), np.log(random.random(9)))
    assert value_bounds(steps, 0.9, 1.0) == pytest.approx([estimate_value("self_normalised", steps, 0.9)] * 2)


def test_bounds_by_hand() -> None:
    """Half of the sessions earn 1. Ratios may be doubled or halved: 2 / (2 + 1/2) and 1/2 / (2 + 1/2)."""
    assert value_bounds(one_step([1.0, 0.0]), 1.0, 2.0) == pytest.approx((0.2, 0.8))
    certain = one_step([1.0, 0.0], b=1.0)  # the logging policy had no choice, so it cannot have used what it knew
    assert value_bounds(certain, 1.0, 2.0) == pytest.approx((0.5, 0.5))


def test_strengths_by_hand() -> None:
    """Γ / (Γ + 1 / Γ) = 0.6 for Γ² = 1.5; the difference from the log is 0 already."""
    found = sensitivity(one_step([1.0, 0.0]), Interval(0.5, 0.4, 0.6, 0.05))
    assert found.outside == pytest.approx(1.5**0.5, rel=1e-3)
    assert found.no_difference == 1.0
    assert "22% per decision could move the estimate outside" in found.text


def test_no_strength_overturns_a_certain_policy() -> None:
    found = sensitivity(one_step([1.0, 0.0], b=1.0), Interval(0.9, 0.8, 1.0, 0.05))
    assert (found.outside, found.no_difference) == (MAX_STRENGTH, MAX_STRENGTH)


def test_residual_bounds_by_hand() -> None:
    """Residuals ±1/2 of two sessions with one decision each: their mean is at most .8 · 1/2 − .2 · 1/2 = .3."""
    steps = replace(one_step([1.0, 0.0]), q=np.full(2, 0.5), v=np.full(2, 0.5))
    assert residual_bounds(steps, 1.0, 2.0) == pytest.approx((0.2, 0.8))


def rare_item(sessions: int = 10_000) -> Trajectories:
    """The log shows item B in 1 % of the sessions; π always shows it. B earns 1 or 0 equally often, A nothing."""
    is_b = np.arange(sessions) % 100 == 0
    reward, half = (is_b & (np.arange(sessions) % 200 == 0)).astype(float), np.full(sessions, 0.5)
    log_pi, log_b = np.where(is_b, 0.0, -np.inf), np.log(np.where(is_b, 0.01, 0.99))
    clusters = {"clusters": log_pi - log_b}
    q = np.where(is_b, 0.5, 0.0)
    return Trajectories(np.arange(sessions + 1), reward, log_pi, log_b, q=q, v=half, log_ratios=clusters)


def test_residuals_of_decisions_that_the_policy_never_makes_do_not_count() -> None:
    """Only B counts, whose ratio is within .01 + .99 / 2 and .01 + .99 · 2: .505 and 1.99."""
    expected = (0.505 / 2.495, 1.99 / 2.495)
    assert residual_bounds(rare_item(), 1.0, 2.0) == pytest.approx(expected)
    assert value_bounds(rare_item(), 1.0, 2.0) == pytest.approx(expected)


def test_strength_1_gives_the_weighted_doubly_robust_estimate() -> None:
    random = np.random.default_rng(3)
    columns = [random.random(9) for _ in range(5)]
    steps = Trajectories(
        np.array([0, 3, 3, 5, 9]), columns[0], np.log(columns[1]), np.log(columns[2]), q=columns[3], v=columns[4]
    )
    assert residual_bounds(steps, 0.9, 1.0) == pytest.approx([estimate_value("weighted_doubly_robust", steps, 0.9)] * 2)


@pytest.mark.parametrize("name", ["self_normalised", "weighted_doubly_robust", "direct"])
def test_estimates_with_bounds_report_a_strength(name: str) -> None:
    assessment = assess(name, rare_item(), propensity_error=0.01, resamples=20, refits=np.array([0.49, 0.5, 0.51]))
    assert assessment.sensitivity is not None
    assert 1 < assessment.sensitivity.outside < MAX_STRENGTH
    assert assessment.as_json()["sensitivity"]["text"] == assessment.sensitivity.text


@pytest.mark.parametrize("name", ["importance", "capped", "marginal", "doubly_robust"])
def test_estimates_without_bounds_report_no_strength(name: str) -> None:
    assert assess(name, rare_item(), propensity_error=0.01, resamples=20).sensitivity is None


def test_no_strength_without_probabilities_with_a_cap_or_with_few_sessions() -> None:
    top_k, refits = replace(rare_item(), log_pi=None, log_ratios={}), np.array([0.4, 0.6])
    assert assess("direct", top_k, propensity_error=0.01, resamples=20, refits=refits).sensitivity is None
    capped = assess("self_normalised", rare_item(), cap=5.0, propensity_error=0.01, resamples=20)
    assert capped.sensitivity is None
    few = assess("direct", rare_item(4_000), propensity_error=0.01, resamples=20, refits=refits)
    assert few.sensitivity is None


def test_bounds_contain_the_value_that_hidden_knowledge_distorts() -> None:
    """Visitors like one of two items. The logging policy knows which and shows it with odds 3 instead of 1.

    Their log makes a uniform policy look like .75; it earns .5. The odds differ by 3 from the estimated odds of 1.
    """
    random = np.random.default_rng(2)
    liked = (random.random(4000) < 0.75).astype(float)
    steps = Trajectories(np.arange(4001), liked, np.full(4000, np.log(0.5)), np.full(4000, np.log(0.5)))
    assert value_bounds(steps, 1.0, 1.5)[0] > 0.52
    low, high = value_bounds(steps, 1.0, 3.0)
    assert low < 0.52
    assert high > 0.8
