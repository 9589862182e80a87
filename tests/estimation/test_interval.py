"""Intervals: resamples, influences compared with finite differences, and coverage in difficult cases."""

import numpy as np
import pytest
from scipy.special import stdtrit

from offrec.errors import InputError
from offrec.estimation import interval as interval_module
from offrec.estimation.estimators import ESTIMATORS, SessionTerms, contributions, estimate_value, session_terms
from offrec.estimation.interval import (
    bootstrap_interval,
    refit_interval,
    resample_counts,
    resampled_sums,
    student_t_quantile,
    studentise,
)
from offrec.estimation.trajectories import Trajectories

WEIGHTINGS = sorted({one.weighting for one in ESTIMATORS.values()} - {"lists"})


def random_trajectories(seed: int, sessions: int = 30) -> Trajectories:
    random = np.random.default_rng(seed)
    lengths = random.poisson(3, sessions)
    offsets, n = np.concatenate([[0], np.cumsum(lengths)]), int(lengths.sum())
    reward, q, v = random.normal(size=(3, n))
    log_pi, log_b = np.log(random.uniform(0.2, 1, (2, n)))
    return Trajectories(
        offsets,
        reward,
        log_pi,
        log_b,
        q=q,
        v=v,
        log_ratios=dict.fromkeys(WEIGHTINGS, random.normal(size=n) / 3),
        controls=dict.fromkeys(WEIGHTINGS, random.normal(size=n)),
        state=random.integers(0, 3, n),
    )


def session_values(values: list[float]) -> SessionTerms:
    """Sessions without decisions that contribute these values."""
    empty = np.zeros(0)
    offsets = np.zeros(len(values) + 1, np.int64)
    return SessionTerms(offsets, np.zeros(0, np.int64), np.array(values), empty, empty, is_normalised=False)


def count(sessions: np.ndarray, of: int) -> np.ndarray:
    return np.bincount(sessions, minlength=of).astype(float)[None]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_resample_is_the_estimate_of_the_resampled_sessions(name: str) -> None:
    steps = random_trajectories(0)
    chosen = np.random.default_rng(1).integers(len(steps), size=len(steps))
    cap = None if name != "capped" else 1.5
    values = resampled_sums(session_terms(name, steps, 0.9, cap))(count(chosen, len(steps)))[0]
    assert values[0] == pytest.approx(estimate_value(name, steps.select(chosen), 0.9, cap))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_influence_is_the_derivative_by_the_share_of_a_session(name: str) -> None:
    """Compare with central differences at a resample in which sessions occur several times."""
    steps, small = random_trajectories(2), 1e-6
    sums = resampled_sums(session_terms(name, steps, 0.9))
    counts = count(np.random.default_rng(3).integers(len(steps), size=len(steps)), len(steps))
    influence = sums(counts)[1][0]
    for session in range(0, len(steps), 5):
        toward = np.eye(len(steps))[session] * len(steps) - counts[0]  # towards a log that contains only this session
        ahead, back = (sums(counts + sign * small * toward)[0][0] for sign in (1, -1))
        assert influence[session] == pytest.approx((ahead - back) / (2 * small), rel=1e-5, abs=1e-7)


def test_the_standard_error_of_a_mean_by_hand() -> None:
    interval = bootstrap_interval(session_values([1.0, 2.0, 6.0]))
    assert interval.estimate == pytest.approx(3.0)
    assert interval.standard_error == pytest.approx((14 / 2 / 3) ** 0.5)  # squared distances 4 + 1 + 9
    assert interval.largest_session_share == pytest.approx(9 / 14)
    assert interval.low < 3 < interval.high


@pytest.mark.parametrize("name", ["importance", "weighted_doubly_robust", "state_marginal"])
def test_the_interval_equals_a_loop_over_resamples(name: str) -> None:
    """Each resample is estimated separately, with the standard error of its own influences."""
    steps, distance = random_trajectories(6, sessions=25), []
    n = len(steps)
    interval = bootstrap_interval(session_terms(name, steps, 0.9), seed=3, resamples=40)
    for counts in np.concatenate(list(resample_counts(n, 3, 40))):
        resample = steps.select(np.repeat(np.arange(n), counts.astype(int)))
        influence = resampled_sums(session_terms(name, resample, 0.9))(np.ones((1, n)))[1][0]
        error = influence.std(ddof=1) / n**0.5  # the influences have mean 0
        distance.append((estimate_value(name, resample, 0.9) - interval.estimate) / error)
    low, high = np.quantile(distance, [0.975, 0.025], method="weibull")
    assert (interval.low, interval.high) == pytest.approx(
        (interval.estimate - low * interval.standard_error, interval.estimate - high * interval.standard_error)
    )


def test_the_interval_of_39_resamples_extends_to_the_most_extreme_ones() -> None:
    """A further resample is among the 40 equally likely ranks: outside of the 39 others with probability 2 / 40."""
    values = np.random.default_rng(0).exponential(size=200)
    interval = bootstrap_interval(session_values(values.tolist()), seed=1, resamples=39)
    counts = np.concatenate(list(resample_counts(200, 1, 39)))
    means = counts @ values / 200
    errors = np.sqrt(((values - means[:, None]) ** 2 * counts).sum(1) / 200 / 199)
    distance = (means - values.mean()) / errors
    ends = values.mean() - np.array([distance.max(), distance.min()]) * interval.standard_error
    assert (interval.low, interval.high) == pytest.approx(tuple(ends))


def test_resamples_without_any_weight_are_infinitely_far_on_both_sides() -> None:
    values, variance = np.array([np.nan, 2.0, np.nan, 0.5]), np.array([np.nan, 1.0, np.nan, 4.0])
    # Their own errors are 1 / √4 and 2 / √4.
    np.testing.assert_allclose(studentise(values, variance, 5, 1.0, 0.5), [np.inf, 2.0, -np.inf, -0.5])


def test_errors_that_two_estimates_share_cancel_in_their_ratio() -> None:
    steps = random_trajectories(4)
    single = session_terms("self_normalised", steps, 0.9)
    doubled = SessionTerms(single.offsets, single.step, single.base, 2 * single.gain, single.weight, is_normalised=True)
    interval = bootstrap_interval(doubled, divisor=single)
    assert interval.estimate == pytest.approx(2.0)
    assert interval.standard_error == pytest.approx(0.0, abs=1e-12)
    decisions = session_terms("importance", steps.with_unit_reward(), 0.9)
    ratio = bootstrap_interval(session_terms("importance", steps, 0.9), divisor=decisions)
    top, bottom = contributions(session_terms("importance", steps, 0.9)), contributions(decisions)
    assert ratio.estimate == pytest.approx(top.mean() / bottom.mean())
    by_hand = (top - ratio.estimate * bottom).std(ddof=1) / bottom.mean() / len(steps) ** 0.5
    assert ratio.standard_error == pytest.approx(by_hand)


def test_the_same_seed_gives_the_same_interval_in_any_part_size(monkeypatch: pytest.MonkeyPatch) -> None:
    interval = session_terms("weighted_doubly_robust", random_trajectories(5), 0.9)
    whole = bootstrap_interval(interval, seed=7)
    assert bootstrap_interval(interval, seed=7) == whole
    assert bootstrap_interval(interval, seed=8) != whole
    monkeypatch.setattr(interval_module, "MAX_ELEMENTS", 100)
    parts = bootstrap_interval(interval, seed=7)
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high))


def test_intervals_of_skewed_sessions_contain_the_mean() -> None:
    """Logs of 60 log-normal sessions.

    In 3,000 logs, 88.8 % of the normal intervals and 91.4 % of the studentised ones contained the mean. The bounds are
    three standard errors of 1,000 logs around the latter.
    """
    random, truth = np.random.default_rng(0), np.exp(0.5)
    logs = [random.lognormal(size=60) for _ in range(1000)]
    interval = [
        bootstrap_interval(session_values(list(log)), resamples=200, seed=seed) for seed, log in enumerate(logs)
    ]
    coverage = np.mean([one.low <= truth <= one.high for one in interval])
    normal = np.mean([abs(one.estimate - truth) <= 1.96 * one.standard_error for one in interval])
    assert 0.887 <= coverage <= 0.941
    assert coverage > normal + 0.01


def test_the_interval_of_one_session_is_unbounded_and_of_equal_sessions_a_point() -> None:
    alone = bootstrap_interval(session_values([2.0]))
    assert (alone.estimate, alone.low, alone.high) == (2.0, -np.inf, np.inf)
    equal = bootstrap_interval(session_values([0.1 + 0.2] * 50))
    assert (equal.low, equal.high) == (equal.estimate, equal.estimate)


def test_the_interval_of_refits_by_hand() -> None:
    """Student's t with 2 degrees of freedom: 4.302653 at 97.5 %."""
    interval = refit_interval(5.0, np.array([4.0, 6.0, 8.0]))
    assert (interval.low, interval.high) == pytest.approx((5 - 4.302653 * 2, 5 + 4.302653 * 2))
    assert refit_interval(5.0, np.array([4.0, 6.0, 8.0]), session_error=1.5).standard_error == pytest.approx(2.5)
    with pytest.raises(InputError, match="at least 2"):
        refit_interval(5.0, np.array([4.0]))


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 40])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_student_t_quantiles_equal_those_of_scipy(degrees: int, level: float) -> None:
    assert student_t_quantile(degrees, level) == pytest.approx(stdtrit(degrees, (1 + level) / 2), rel=1e-10)


def test_invalid_levels_and_resamples_are_refused() -> None:
    for wrong in ({"level": 1.0}, {"resamples": 3}):
        with pytest.raises(InputError, match="level must be between 0 and 1, resamples at least 20"):
            bootstrap_interval(session_values([1.0, 2.0]), **wrong)


@pytest.mark.parametrize(("sessions", "heavy"), [(50, 1), (2000, 1), (2000, 2)])
def test_the_interval_is_unbounded_if_few_sessions_determine_the_estimate(sessions: int, heavy: int) -> None:
    """Many resamples contain none of these sessions, so the log shows no upper limit."""
    interval = bootstrap_interval(session_values([1.0] * heavy + [0.0] * (sessions - heavy)))
    assert interval.estimate == pytest.approx(heavy / sessions)
    assert interval.high == np.inf
    assert 0 <= interval.estimate - interval.low < 10 * interval.standard_error


def test_the_interval_is_bounded_if_many_sessions_determine_the_estimate() -> None:
    interval = bootstrap_interval(session_values([1.0] * 20 + [0.0] * 1980))
    assert interval.estimate < interval.high < 0.03


def test_the_interval_of_two_sessions_is_unbounded() -> None:
    interval = bootstrap_interval(session_values([0.0, 1.0]))
    assert (interval.low, interval.high) == (-np.inf, np.inf)
