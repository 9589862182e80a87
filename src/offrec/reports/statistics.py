"""The tests, as functions of numbers alone: nothing here knows of runs or studies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

RESAMPLES = 4000
CHUNK = 100  # resamples held at once


@dataclass(frozen=True)
class Summary:
    """Over seeds; one seed alone has no spread."""

    mean: float
    sd: float | None
    n: int


def summary(values: Sequence[float]) -> Summary | None:
    if not values:
        return None
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(float(np.mean(values)), sd, len(values))


def paired_t(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p of "no difference", a[i] and b[i] being one repeat. None where there are fewer than two repeats."""
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    if len(difference) < 2:
        return None
    if np.ptp(difference) == 0:  # no spread: the same difference each time
        return 1.0 if difference[0] == 0 else 0.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(difference, 0.0).pvalue)


def resampled(sums: Doubles, counts: Doubles, seed: int = 0, resamples: int = RESAMPLES) -> Doubles:
    """[resamples, M] ratios Σ sums / Σ counts, over sessions drawn with replacement.

    sums [S, M]: what each session adds to each of M figures; counts [S, M]: how many events it adds. The same sessions
    are drawn for every figure, so figures may be subtracted: that is the paired bootstrap.
    """
    random, n = np.random.default_rng(seed), len(sums)
    both = np.concatenate([sums, counts], 1).astype(np.float32)
    rows = []
    for first in range(0, resamples, CHUNK):
        drawn = random.integers(0, n, (min(CHUNK, resamples - first), n))
        weight = np.stack([np.bincount(row, minlength=n) for row in drawn]).astype(np.float32)
        rows.append(weight @ both)
    top, bottom = np.split(np.concatenate(rows).astype(np.float64), 2, axis=1)
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


@dataclass(frozen=True)
class Interval:
    low: float
    high: float
    p: float  # two-sided, of "no difference"


def bootstrap(differences: Doubles) -> Interval:
    """95 % interval and p from the resampled differences [resamples] of two figures."""
    low, high = np.percentile(differences, [2.5, 97.5])
    beyond = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return Interval(float(low), float(high), min(1.0, 2 * (beyond + 1) / (len(differences) + 1)))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's correction within a family; those that could not be tested are no part of it."""
    order = sorted((p, index) for index, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = largest
    return adjusted
