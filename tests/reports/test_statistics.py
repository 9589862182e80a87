"""Statistical tests, compared with numbers worked by hand and with scipy."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from offrec.reports.statistics import Summary, bootstrap_interval, holm, paired_t, resample, summarise


def test_summary() -> None:
    assert summarise([]) is None
    assert summarise([0.25]) == Summary(0.25, None, 1)
    assert summarise([1.0, 2.0, 3.0]) == Summary(2.0, 1.0, 3)


def test_holm_by_hand() -> None:
    """.01 · 3 = .03; .03 · 2 = .06; .04 · 1 = .04, which is raised to the value before it."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([None, 0.02, None]) == [None, 0.02, None], "untested comparisons do not count"
    assert holm([]) == []


def test_paired_t() -> None:
    a, b = [0.31, 0.33, 0.30, 0.35], [0.30, 0.31, 0.30, 0.31]
    assert paired_t(a, b) == pytest.approx(ttest_rel(a, b).pvalue)
    assert paired_t([0.3], [0.2]) is None, "one pair has no variance"
    assert paired_t([0.3, 0.4], [0.3, 0.4]) == 1.0
    assert paired_t([0.5, 0.6], [0.25, 0.35]) == pytest.approx(0.0, abs=1e-6)


def test_the_bootstrap_is_of_ratios_of_sums() -> None:
    """Two sessions have 1 of 1 and 0 of 3 hits, so the ratio of a resample is 1, 1/4 or 0."""
    ratios = resample(np.array([[1.0], [0.0]]), np.array([[1.0], [3.0]]), resamples=2000)
    assert set(np.round(ratios[:, 0], 6)) == {0.0, 0.25, 1.0}
    assert abs((ratios == 0.25).mean() - 0.5) < 0.05


def test_the_bootstrap_is_paired() -> None:
    """A constant difference is certain, however much the sessions differ."""
    random = np.random.default_rng(0)
    hard = random.random(300)
    sums, counts = np.stack([hard + 0.01, hard, random.permutation(hard)], 1), np.ones((300, 3))
    ratios = resample(sums, counts)
    sure = bootstrap_interval(ratios[:, 0] - ratios[:, 1])
    assert sure.low == pytest.approx(0.01, abs=1e-4)
    assert sure.high == pytest.approx(0.01, abs=1e-4)
    assert sure.p < 0.001
    unsure = bootstrap_interval(ratios[:, 1] - ratios[:, 2])
    assert unsure.low < 0 < unsure.high
    assert unsure.p > 0.3


def test_the_bootstrap_interval_matches_the_normal_one() -> None:
    values = np.random.default_rng(3).standard_normal(400) + 0.1
    ratios = resample(np.stack([values, np.zeros(400)], 1), np.ones((400, 2)))
    interval = bootstrap_interval(ratios[:, 0] - ratios[:, 1])
    error = values.std(ddof=1) / 20
    assert interval.low == pytest.approx(values.mean() - 1.96 * error, abs=0.01)
    assert interval.high == pytest.approx(values.mean() + 1.96 * error, abs=0.01)
