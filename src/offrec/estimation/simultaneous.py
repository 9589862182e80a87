"""Simultaneous confidence intervals: one bootstrap for several estimates from the same sessions.

Each of M estimates has its own studentised distances t_m in B common resamples, as in `interval.py`. The interval of
estimate m is

    [ estimate_m − t_m(B − d) · error_m,  estimate_m − t_m(1 + d) · error_m ],     t_m(i) the i-th smallest distance

with the same depth d for all estimates. d is the largest number for which at most 5 % of the resamples are outside of
any of the M intervals. All intervals therefore hold together in about 95 % of the logs, so any of them may be selected
after looking at all of them. Estimates that are strongly correlated, such as those of similar policies, cost little:
for equal estimates d is that of a single interval.

d is selected with the same resamples. If it is small, as with many independent estimates, the intervals rest on a few
extreme resamples and are too narrow: with B = 1,000, 100 independent normal rows held together in 82 %. With
d < 5 all intervals therefore have at least the width of normal ones with Bonferroni's correction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from offrec.errors import InputError
from offrec.estimation.estimators import SessionTerms
from offrec.estimation.interval import (
    LEVEL,
    RESAMPLES,
    ROUNDING,
    Interval,
    Sums,
    resample_counts,
    resampled_sums,
    studentise,
)
from offrec.types import Doubles

MIN_LEFT_OUT = 5  # values that must be outside at each end; with fewer the band is extended


@dataclass(frozen=True)
class PairedIntervals:
    """The simultaneous intervals of an estimate and of its difference from the logged reward."""

    value: Interval
    difference: Interval


def simultaneous_intervals(
    estimates: Sequence[SessionTerms],
    logged: Doubles,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> list[PairedIntervals]:
    """Compute intervals that hold together, for estimates and their differences from the logged reward.

    Args:
        estimates: The terms of each estimate, all over the same S sessions.
        logged: [S] what each session earned.
        seed: Seed of the resamples.
        resamples: Number of bootstrap resamples, at least 20.
        level: Probability that all intervals hold.

    Returns:
        The intervals, in the order of `estimates`.

    Raises:
        InputError: If an argument is out of range, or the estimates have different numbers of sessions.
    """
    if not 0 < level < 1 or resamples < 20:
        raise InputError(
            f"level is {level} and resamples is {resamples}; level must be between 0 and 1, resamples at least 20."
        )
    sessions = len(logged)
    if any(len(terms) != sessions for terms in estimates):
        raise InputError(f"All estimates must have the {sessions} sessions of the logged rewards.")
    sums = [resampled_sums(terms) for terms in estimates]
    centres, squares = _pairs(sums, logged, np.ones((1, sessions)))
    centre = centres[:, 0]
    error = np.sqrt(squares[:, 0] / max(1, sessions - 1))
    if sessions < 2:
        everything = [Interval(float(one), -np.inf, np.inf, np.inf, 1.0) for one in centre]
        return [PairedIntervals(*pair) for pair in zip(everything[::2], everything[1::2], strict=True)]
    distances = np.concatenate(
        [_studentised(sums, logged, counts, centre, error) for counts in resample_counts(sessions, seed, resamples)], 1
    )
    low, high = reliable_band(distances, level)
    scale = max(1.0, float(np.abs(centre).max(initial=0.0)))
    intervals = []
    for one, own_error, below, above in zip(centre, error, low, high, strict=True):
        if own_error <= ROUNDING * scale:
            intervals.append(Interval(float(one), float(one), float(one), 0.0))
        else:
            ends = float(one - above * own_error), float(one - below * own_error)
            intervals.append(Interval(float(one), *ends, float(own_error)))
    return [PairedIntervals(*pair) for pair in zip(intervals[::2], intervals[1::2], strict=True)]


def band(distances: Doubles, level: float) -> tuple[Doubles, Doubles]:
    """Return for each row of distances [M, B] the bounds [M] that a share `level` of the columns satisfies in all rows.

    Each row leaves out the same number of its smallest and of its largest values.
    """
    rows, columns = distances.shape
    if not rows:
        return np.zeros(0), np.zeros(0)
    order = np.argsort(distances, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(columns), order.shape), axis=1)
    depth = np.sort(np.minimum(rank, columns - 1 - rank).min(axis=0))  # [B] values that must go before this column does
    allowed = int(np.floor((1 - level) * columns + 1e-9))
    # Leaving out d values at both ends excludes the columns with depth < d.
    leave_out = int(depth[allowed])
    ordered = np.take_along_axis(distances, order, axis=1)
    return ordered[:, leave_out], ordered[:, columns - 1 - leave_out]


def reliable_band(distances: Doubles, level: float) -> tuple[Doubles, Doubles]:
    """Return `band`, extended to normal quantiles with Bonferroni's correction if it rests on few extreme values."""
    low, high = band(distances, level)
    if not len(low) or (distances < low[:, None]).sum(1).max() >= MIN_LEFT_OUT:  # fewer in rows with equal values
        return low, high
    quantile = NormalDist().inv_cdf(1 - (1 - level) / (2 * len(distances)))
    return np.minimum(low, -quantile), np.maximum(high, quantile)


def _pairs(sums: Sequence[Sums], logged: Doubles, counts: Doubles) -> tuple[Doubles, Doubles]:
    """[2M, b] estimates and differences of resamples, in turn, and the mean squares of their influences."""
    sessions = counts.shape[1]
    logged_value = counts @ logged / sessions
    logged_influence = logged - logged_value[:, None]
    values, squares = np.empty((2 * len(sums), len(counts))), np.empty((2 * len(sums), len(counts)))
    for number, one in enumerate(sums):
        value, influence = one(counts)
        values[2 * number], values[2 * number + 1] = value, value - logged_value
        squares[2 * number] = np.einsum("bs,bs,bs->b", counts, influence, influence) / sessions
        influence -= logged_influence
        squares[2 * number + 1] = np.einsum("bs,bs,bs->b", counts, influence, influence) / sessions
    return values, squares


def _studentised(sums: Sequence[Sums], logged: Doubles, counts: Doubles, centre: Doubles, error: Doubles) -> Doubles:
    """[2M, b] distance of each resample from each estimate, in units of its own error."""
    values, squares = _pairs(sums, logged, counts)
    return studentise(values, squares, counts.shape[1], centre[:, None], error[:, None])
