"""The Pareto shape of weights: known tails, an independent maximum-likelihood fit, and edge cases."""

import numpy as np
import pytest
from scipy.stats import genpareto

from offrec.estimation.support import compute_support
from offrec.estimation.tail import fit_pareto, tail_shape
from offrec.estimation.trajectories import Trajectories, blended


@pytest.mark.parametrize("shape", [0.1, 0.4, 0.7, 1.0])
def test_fit_agrees_with_maximum_likelihood(shape: float) -> None:
    values = np.sort(genpareto.rvs(shape, scale=2.0, size=3000, random_state=1))
    expected_shape, _, expected_scale = genpareto.fit(values, floc=0)
    fitted_shape, fitted_scale = fit_pareto(values)
    assert fitted_shape == pytest.approx(expected_shape, abs=0.01)
    assert fitted_scale == pytest.approx(expected_scale, rel=0.01)


@pytest.mark.parametrize(("shape", "sessions"), [(0.3, 100_000), (0.5, 100_000), (0.9, 100_000)])
def test_shape_of_a_known_tail(shape: float, sessions: int) -> None:
    """P(w > x) = x^(−1/k) has shape k above every threshold."""
    weights = np.random.default_rng(2).random(sessions) ** -shape
    assert tail_shape(weights) == pytest.approx(shape, abs=0.07)


def test_prior_moves_the_shape_by_hand() -> None:
    """The tail of 100 weights has 20 values; their fitted shape counts 20 times and 1/2 counts 10 times."""
    weights = np.random.default_rng(3).exponential(size=100)
    largest = np.sort(weights)[-21:]
    shape = fit_pareto(largest[1:] - largest[0])[0]
    assert tail_shape(weights) == pytest.approx((20 * shape + 10 * 0.5) / 30)


def test_scale_of_the_weights_does_not_matter() -> None:
    weights = np.random.default_rng(4).lognormal(size=2000)
    assert tail_shape(weights) == pytest.approx(tail_shape(1e6 * weights))


def test_bounded_weights_have_a_light_tail() -> None:
    shape = tail_shape(np.random.default_rng(5).random(10_000))
    assert shape is not None
    assert shape < 0


def test_rounding_of_equal_weights_is_not_a_tail() -> None:
    random = np.random.default_rng(6)
    weights = random.integers(1, 4, 1000) * (1 + 1e-7 * random.normal(size=1000))
    assert tail_shape(weights) is None
    weights[:20] = 4.0
    shape = tail_shape(weights)
    assert shape is not None
    assert shape < 0.4


def test_equal_and_few_weights() -> None:
    assert tail_shape(np.ones(1000)) is None
    assert tail_shape(np.arange(24.0)) is None
    assert tail_shape(np.arange(25.0)) is not None


def test_equal_values_have_a_finite_shape() -> None:
    """For 100 equal values, one point of the grid is exactly 0."""
    assert np.isfinite(fit_pareto(np.full(100, 100.0))).all()


def test_nearly_equal_values_have_no_shape() -> None:
    """30 values of 1 to 1.4 above a threshold of 1: they fit a heavy tail, but none is far from the others."""
    excess = np.sort(np.random.default_rng(7).random(30) ** -2.0)
    values = np.concatenate([np.ones(120), 1 + 0.4 * excess / excess[-1]])
    shape = tail_shape(values)
    assert shape is not None
    assert shape > 0.7
    assert tail_shape(values, min_spread=1.5) is None
    assert tail_shape(values, min_spread=1.3) == shape


def test_nearly_equal_contributions_of_a_small_share_are_trusted() -> None:
    """Rewards of 1 and ratios of .5 or 1 to 2.2, with a heavy tail; at a share of .3 the weights are .85 to 1.36."""
    random = np.random.default_rng(8)
    heavy = np.minimum(random.random(2000) ** -0.9, 40.0)
    ratio = np.where(random.random(2000) < 0.1, 1 + 1.2 * heavy / heavy.max(), 0.5)
    steps = Trajectories(np.arange(2001), np.ones(2000), log_pi=np.log(ratio), log_b=np.zeros(2000))
    assert compute_support("self_normalised", steps, 1.0, np.inf).contribution_tail_shape is not None
    assert compute_support("self_normalised", blended(steps, 0.3), 1.0, np.inf).contribution_tail_shape is None
