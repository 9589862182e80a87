"""Statistical tests as functions of numbers, independent of runs and studies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

RESAMPLES = 4000
CHUNK = 100  # resamples per chunk


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over seeds; a single seed has no deviation."""

    mean: float
    sd: float | None
    n: int


def summarise(values: Sequence[float]) -> Summary | None:
    """Return the mean and sample standard deviation, or None if there are no values."""
    if not values:
        return None
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(float(np.mean(values)), sd, len(values))


def paired_t(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the two-sided p-value of a paired t-test, or None if there are fewer than two pairs."""
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    if len(difference) < 2:
        return None
    if np.ptp(difference) == 0:  # no variance: the test statistic is undefined
        return 1.0 if difference[0] == 0 else 0.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(difference, 0.0).pvalue)


def resample(sums: Doubles, counts: Doubles, seed: int = 0, resamples: int = RESAMPLES) -> Doubles:
    """Compute ratios Σ sums / Σ counts over sessions sampled with replacement.

    Every column uses the same sampled sessions. The difference of two columns is therefore a paired bootstrap.

    Args:
        sums: [sessions, M] contribution of each session to each of M metrics.
        counts: [sessions, M] number of events of each session.
        seed: Seed of the sampling.
        resamples: Number of resamples.

    Returns:
        [resamples, M]
    """
    random, n = np.random.default_rng(seed), len(sums)
    columns = np.concatenate([sums, counts], 1).astype(np.float32)
    rows = []
    for first in range(0, resamples, CHUNK):
        sessions = random.integers(0, n, (min(CHUNK, resamples - first), n))
        weight = np.stack([np.bincount(row, minlength=n) for row in sessions]).astype(np.float32)
        rows.append(weight @ columns)
    top, bottom = np.split(np.concatenate(rows).astype(np.float64), 2, axis=1)
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


@dataclass(frozen=True)
class Interval:
    """A 95 % interval, and the two-sided p-value of "no difference"."""

    low: float
    high: float
    p: float


def bootstrap_interval(differences: Doubles) -> Interval:
    """Return interval and p-value of the resampled differences [resamples] of two metrics."""
    low, high = np.percentile(differences, [2.5, 97.5])
    beyond = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return Interval(float(low), float(high), min(1.0, 2 * (beyond + 1) / (len(differences) + 1)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Apply Holm's correction to a family of p-values; None stays None and does not count."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = largest
    return adjusted
