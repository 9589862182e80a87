"""Intervals that hold together, worked by hand and by simulation."""

import numpy as np
import pytest

from offrec.errors import InputError
from offrec.estimation.estimators import SessionTerms, session_terms
from offrec.estimation.interval import bootstrap_interval
from offrec.estimation.simultaneous import band, reliable_band, simultaneous_intervals
from offrec.estimation.trajectories import Trajectories


def means(values: np.ndarray) -> SessionTerms:
    """The plain mean of one number per session."""
    count = len(values)
    zeros = np.zeros(count)
    return SessionTerms(np.arange(count + 1), np.zeros(count, np.int64), values, zeros, zeros + 1, False)


def test_the_band_leaves_out_the_same_number_at_both_ends() -> None:
    """Ten resamples, level .8: two may be outside. The rows disagree about which are extreme, except for two of them.

    Leaving out one value per end excludes the columns 0 and 9 (first row) and 0 and 8 (second row): three columns, one
    too many. So nothing is left out. With level .7 three columns may be outside.
    """
    first = np.arange(10.0)
    second = np.array([0.0, 1, 2, 3, 4, 5, 6, 7, 9, 8])
    low, high = band(np.stack([first, second]), 0.8)
    assert (low.tolist(), high.tolist()) == ([0.0, 0.0], [9.0, 9.0])
    low, high = band(np.stack([first, second]), 0.7)
    assert (low.tolist(), high.tolist()) == ([1.0, 1.0], [8.0, 8.0])
    low, high = band(first[None], 0.8)
    assert (low.tolist(), high.tolist()) == ([1.0], [8.0]), "a single row: the usual quantiles"
    assert band(np.zeros((0, 10)), 0.95)[0].shape == (0,)


def test_one_estimate_has_its_own_interval_and_equal_ones_cost_nothing() -> None:
    """The logged reward is 0, so that the difference equals the estimate."""
    values = np.random.default_rng(0).exponential(size=300)
    alone = bootstrap_interval(means(values), seed=3)
    for copies in (1, 4):
        for pair in simultaneous_intervals([means(values)] * copies, np.zeros(300), seed=3):
            assert pair.value.estimate == pytest.approx(alone.estimate)
            assert pair.value.low == pytest.approx(alone.low, rel=2e-3)
            assert pair.value.high == pytest.approx(alone.high, rel=2e-3)
            assert pair.difference.low == pytest.approx(pair.value.low)


def test_normalised_estimates_agree_with_the_interval_of_one() -> None:
    random = np.random.default_rng(1)
    log_pi, log_b = np.log(random.uniform(0.2, 0.4, 400)), np.log(random.uniform(0.2, 0.4, 400))
    steps = Trajectories(np.arange(0, 401, 2), random.uniform(size=400), log_pi=log_pi, log_b=log_b)
    terms = session_terms("self_normalised", steps)
    (pair,) = simultaneous_intervals([terms], np.zeros(200), seed=5)
    alone = bootstrap_interval(terms, seed=5)
    assert (pair.value.estimate, pair.value.standard_error) == pytest.approx((alone.estimate, alone.standard_error))
    assert (pair.value.low, pair.value.high) == pytest.approx((alone.low, alone.high), rel=5e-3)


def test_a_paired_difference_of_the_log_itself_is_exactly_zero() -> None:
    logged = np.random.default_rng(2).uniform(size=100)
    (pair,) = simultaneous_intervals([means(logged)], logged)
    assert (pair.difference.low, pair.difference.high) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert pair.value.low < logged.mean() < pair.value.high


def test_selected_intervals_hold_together_where_separate_ones_do_not() -> None:
    """Ten independent estimates of 0, of which the largest is selected."""
    separate = together = 0
    for number in range(120):
        draws = np.random.default_rng(number).normal(size=(10, 80))
        best = int(draws.mean(1).argmax())
        one = bootstrap_interval(means(draws[best]), seed=number, resamples=200)
        pair = simultaneous_intervals([means(row) for row in draws], np.zeros(80), seed=number, resamples=200)[best]
        separate += one.low <= 0 <= one.high
        together += pair.value.low <= 0 <= pair.value.high
    assert together >= 108  # 114 expected; fewer than 108 have a binomial probability of .005
    assert separate < 100, "selection must be a problem here"


def test_many_independent_intervals_hold_together() -> None:
    """60 normal rows of 500 resamples leave nothing out, so that normal quantiles are needed."""
    random, holds = np.random.default_rng(0), {band: 0.0, reliable_band: 0.0}
    for _ in range(10):
        distances, fresh = random.normal(size=(60, 500)), random.normal(size=(60, 500))
        for method in holds:
            low, high = method(distances, 0.95)
            holds[method] += ((fresh >= low[:, None]) & (fresh <= high[:, None])).all(0).mean() / 10
    assert holds[reliable_band] > 0.94
    assert holds[band] < 0.9


def test_a_band_of_enough_values_is_not_extended() -> None:
    distances = np.random.default_rng(0).uniform(size=(2, 1000))
    for one, other in zip(band(distances, 0.95), reliable_band(distances, 0.95), strict=True):
        np.testing.assert_array_equal(one, other)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="resamples at least 20"):
        simultaneous_intervals([], np.zeros(3), resamples=5)
    with pytest.raises(InputError, match="must have the 4 sessions"):
        simultaneous_intervals([means(np.ones(3))], np.zeros(4))
    (pair,) = simultaneous_intervals([means(np.ones(1))], np.zeros(1))
    assert pair.value.high == np.inf
