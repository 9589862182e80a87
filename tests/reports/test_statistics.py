"""The tests of a report, against numbers worked by hand and against scipy."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from offrec.reports.statistics import Summary, bootstrap, holm, paired_t, resampled, summary


def test_summary() -> None:
    assert summary([]) is None
    assert summary([0.25]) == Summary(0.25, None, 1)
    assert summary([1.0, 2.0, 3.0]) == Summary(2.0, 1.0, 3)


def test_holm_by_hand() -> None:
    """.01 · 3 = .03; .03 · 2 = .06; .04 · 1 = .04, but no smaller than the one before."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([None, 0.02, None]) == [None, 0.02, None], "what was not tested does not count"
    assert holm([]) == []


def test_paired_t() -> None:
    a, b = [0.31, 0.33, 0.30, 0.35], [0.30, 0.31, 0.30, 0.31]
    assert paired_t(a, b) == pytest.approx(ttest_rel(a, b).pvalue)
    assert paired_t([0.3], [0.2]) is None, "one repeat has no spread"
    assert paired_t([0.3, 0.4], [0.3, 0.4]) == 1.0
    assert paired_t([0.5, 0.6], [0.25, 0.35]) == pytest.approx(0.0, abs=1e-6)


def test_the_bootstrap_is_of_ratios_of_sums() -> None:
    """Two sessions, one with 1 of 1 hits, one with 0 of 3: a resample has 1, 1/4 or 0."""
    drawn = resampled(np.array([[1.0], [0.0]]), np.array([[1.0], [3.0]]), resamples=2000)
    assert set(np.round(drawn[:, 0], 6)) == {0.0, 0.25, 1.0}
    assert abs((drawn == 0.25).mean() - 0.5) < 0.05


def test_the_bootstrap_is_paired() -> None:
    """Where one policy is ahead by the same in every session, there is no doubt, however much sessions differ."""
    random = np.random.default_rng(0)
    hard = random.random(300)
    sums, counts = np.stack([hard + 0.01, hard, random.permutation(hard)], 1), np.ones((300, 3))
    drawn = resampled(sums, counts)
    sure = bootstrap(drawn[:, 0] - drawn[:, 1])
    assert sure.low == pytest.approx(0.01, abs=1e-4)
    assert sure.high == pytest.approx(0.01, abs=1e-4)
    assert sure.p < 0.001
    unsure = bootstrap(drawn[:, 1] - drawn[:, 2])
    assert unsure.low < 0 < unsure.high
    assert unsure.p > 0.3


def test_the_bootstraps_interval_is_the_normal_one() -> None:
    values = np.random.default_rng(3).standard_normal(400) + 0.1
    drawn = resampled(np.stack([values, np.zeros(400)], 1), np.ones((400, 2)))
    found = bootstrap(drawn[:, 0] - drawn[:, 1])
    error = values.std(ddof=1) / 20
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.01)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.01)
