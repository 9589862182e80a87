"""Confidence intervals: a studentised bootstrap over sessions.

Each resample draws S of the S sessions with replacement and repeats the estimate, normalisation included. Its distance
from the estimate is divided by its own standard error. The quantiles t of these distances give the interval

    [ estimate − t_{1 − a/2} · error,  estimate − t_{a/2} · error ],    t = (resample − estimate) / its own error

A resample without the few heavy sessions is too low *and* has a small standard error. In units of that error it is far
from the estimate, so the interval extends upwards; the plain percentile bootstrap misses this. A resample without any
heavy session has no error and is infinitely far away. If many resamples are like that, the interval is unbounded.

The standard errors come from influence functions: how the estimate changes if the weight of a session increases.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from offrec.errors import InputError
from offrec.estimation.estimators import SessionTerms, contributions
from offrec.estimation.state_weights import SplicedSums
from offrec.types import Doubles, Longs

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LEVEL, RESAMPLES = 0.95, 1000
ROUNDING = 1e-12  # relative differences below this are rounding
MIN_RELATIVE_ERROR = 1e-6  # smaller errors of a resample, relative to the estimate's error, count as 0
MAX_ELEMENTS = 400_000  # largest size of a resampling matrix, to bound memory


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    estimate: float
    low: float
    high: float
    standard_error: float
    largest_session_share: float = 0.0  # share of the squared error that comes from one session

    def as_json(self) -> dict[str, float]:
        """Return the numbers that reports show."""
        return {
            "estimate": self.estimate,
            "low": self.low,
            "high": self.high,
            "standard_error": self.standard_error,
        }


def bootstrap_interval(
    terms: SessionTerms,
    *,
    divisor: SessionTerms | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """Compute the interval of an estimate, or of a ratio of two estimates.

    Args:
        terms: The estimate.
        divisor: The denominator, for the interval of a ratio.
        seed: Seed of the resamples.
        resamples: Number of bootstrap resamples, at least 20.
        level: Confidence level.

    Returns:
        The interval. It is unbounded with one session, or if too few sessions determine the estimate.

    Raises:
        InputError: If `level` or `resamples` is out of range.
    """
    if not 0 < level < 1 or resamples < 20:
        raise InputError(
            f"level is {level} and resamples is {resamples}; level must be between 0 and 1, resamples at least 20."
        )
    sums, divisor_sums = resampled_sums(terms), None if divisor is None else resampled_sums(divisor)
    values, influence = _influences(sums, divisor_sums, np.ones((1, len(terms))))
    centre, squares = float(values[0]), influence[0] ** 2
    if len(terms) < 2:
        return Interval(centre, -np.inf, np.inf, np.inf, 1.0)
    error = float(np.sqrt(squares.mean() / (len(terms) - 1)))
    if error <= ROUNDING * abs(centre):
        return Interval(centre, centre, centre, 0.0)
    counts = resample_counts(len(terms), seed, resamples)
    distances = np.concatenate([_distances(sums, divisor_sums, part, centre, error) for part in counts])
    with np.errstate(invalid="ignore"):  # infinity − infinity between two quantiles: unbounded as well
        # Weibull positions are exact for exchangeable distances; the default would be 1.9 points too narrow for 100.
        low, high = np.quantile(distances, [(1 + level) / 2, (1 - level) / 2], method="weibull")
    low, high = np.nan_to_num(low, nan=np.inf, posinf=np.inf), np.nan_to_num(high, nan=-np.inf, neginf=-np.inf)
    largest = float(squares.max() / squares.sum())
    return Interval(centre, centre - float(low) * error, centre - float(high) * error, error, largest)


def refit_interval(estimate: float, refits: Doubles, session_error: float = 0.0, level: float = LEVEL) -> Interval:
    """Compute a Student t interval from models that were refitted to resampled sessions.

    Args:
        estimate: The estimate of the model that was fitted to all sessions.
        refits: [R] the estimates of the refitted models, R ≥ 2.
        session_error: Standard error of the estimate for a fixed model, from the sessions it is applied to.
        level: Confidence level.

    Returns:
        The interval; its standard error combines both sources.

    Raises:
        InputError: If there are fewer than two refits.
    """
    if len(refits) < 2:
        raise InputError(f"An interval needs at least 2 refits; got {len(refits)}.")
    error = float(np.hypot(refits.std(ddof=1), session_error))
    half_width = student_t_quantile(len(refits) - 1, level) * error
    return Interval(estimate, estimate - half_width, estimate + half_width, error)


def student_t_quantile(degrees: int, level: float) -> float:
    """Return t so that Student's distribution has probability `level` within ±t; bisects tan θ = t / √degrees."""
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        low, high = (angle, high) if _student_t_probability(degrees, angle) < level else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def _student_t_probability(degrees: int, angle: float) -> float:
    """Return the probability within ±t: a finite sum for integer degrees (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    odd = degrees % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for index in range(1 + odd, degrees, 2):
        total += term
        term *= math.cos(angle) ** 2 * index / (index + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def resample_counts(sessions: int, seed: int, resamples: int) -> Iterator[Doubles]:
    """[b, S] how often each session occurs in each resample, in parts of bounded size."""
    part = max(1, MAX_ELEMENTS // sessions)
    random = np.random.default_rng(seed)
    for first in range(0, resamples, part):
        rows = min(part, resamples - first)
        chosen = random.integers(sessions, size=(rows, sessions)) + sessions * np.arange(rows)[:, None]
        yield np.bincount(chosen.ravel(), minlength=rows * sessions).reshape(rows, sessions).astype(np.float64)


def _distances(sums: "Sums", divisor: "Sums | None", counts: Doubles, centre: float, error: float) -> Doubles:
    """[b] distance of each resample from the estimate `centre` in units of its own error (estimate: `error`)."""
    sessions = counts.shape[1]
    if divisor is None and not sums.is_normalised:  # two products are cheaper than a matrix of influences
        deviation = sums.plain - centre
        values, square = (counts @ np.stack([deviation, deviation**2], 1) / sessions).T
        values, variance = values + centre, square - values**2
    else:
        values, influence = _influences(sums, divisor, counts)
        variance = (counts * influence**2).sum(1) / sessions
    return studentise(values, variance, sessions, centre, error)


def studentise(
    values: Doubles, variance: Doubles, sessions: int, centre: float | Doubles, error: float | Doubles
) -> Doubles:
    """Return the distances of resampled estimates from `centre` in units of their own standard errors.

    Args:
        values: Estimates of resamples.
        variance: Variance of a session's influence on each of them.
        sessions: Sessions per resample.
        centre: The estimate from all sessions.
        error: Its standard error. An own error of almost 0, compared with it, gives an infinite distance.

    Returns:
        The distances. Undefined estimates, of resamples without any weight, are infinitely far away on both sides in
        turn, so that they widen the interval.
    """
    own_error = np.sqrt(np.maximum(variance, 0.0) / (sessions - 1))
    varies, distance = own_error > MIN_RELATIVE_ERROR * error, values - centre
    unbounded = np.where(np.abs(distance) > MIN_RELATIVE_ERROR * error, np.copysign(np.inf, distance), 0.0)
    distances = np.where(varies, distance / np.where(varies, own_error, 1.0), unbounded)
    undefined = np.isnan(values)
    sides = np.where(np.cumsum(undefined, -1) % 2 == 1, np.inf, -np.inf)
    return np.where(undefined, sides, distances)


def _influences(sums: "Sums", divisor: "Sums | None", counts: Doubles) -> tuple[Doubles, Doubles]:
    """[b] estimates of the resamples and [b, S] the influence of each session on them."""
    values, influence = sums(counts)
    if divisor is None:
        return values, influence
    denominator, denominator_influence = divisor(counts)
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample may have no weight at all
        ratio = values / denominator
        return ratio, (influence - ratio[:, None] * denominator_influence) / denominator[:, None]


class ResampledSums:
    """Estimates of resampled sessions, and the influence of each session on them."""

    def __init__(self, terms: SessionTerms) -> None:
        self.sessions, self.is_normalised = len(terms), terms.is_normalised
        self.plain = terms.base if terms.is_normalised else contributions(terms)
        if terms.is_normalised:
            self.lengths = np.diff(terms.offsets)
            self.horizon = max(1, int(self.lengths.max(initial=0)))
            self.last_weight = terms.last_weight
            self.gain = _session_by_step(terms.gain, terms, self.horizon)
            self.weight = _session_by_step(terms.weight, terms, self.horizon)
            self.ended = _weights_after_end(self.lengths, self.last_weight, self.horizon)

    def __call__(self, counts: Doubles) -> tuple[Doubles, Doubles]:
        """[b] estimates, and [b, S] S times their derivative by the share of each session."""
        values = counts @ self.plain / self.sessions
        influence = self.plain - values[:, None]
        if not self.is_normalised:
            return values, influence
        ended = np.cumsum(_resampled(self.ended, counts), 1)[:, : self.horizon]
        total = _resampled(self.weight, counts) + ended  # [b, T]
        inverse = np.divide(self.sessions, total, out=np.zeros_like(total), where=total > 0)
        mean = _resampled(self.gain, counts) * inverse / self.sessions  # [b, T] weighted mean of δ
        slope = mean * inverse
        remaining = np.cumsum(slope[:, ::-1], 1)[:, ::-1]
        remaining = np.concatenate([remaining, np.zeros((len(counts), 1))], 1)[:, self.lengths] * self.last_weight
        change = (self.gain @ inverse.T).T - (self.weight @ slope.T).T - remaining
        return values + mean.sum(1), influence + change


Sums = ResampledSums | SplicedSums


def resampled_sums(terms: SessionTerms) -> Sums:
    """Return what computes the estimates of resampled sessions."""
    return ResampledSums(terms) if terms.splice is None else SplicedSums(terms, terms.splice)


def _session_by_step(values: Doubles, terms: SessionTerms, horizon: int) -> "csr_array[Any]":
    """[S, T] matrix with one value per decision."""
    return _matrix(values, terms.step, terms.offsets, (len(terms), horizon))


def _weights_after_end(lengths: Longs, last_weight: Doubles, horizon: int) -> "csr_array[Any]":
    """[S, T + 1] the last weight of each session, at the step at which the session has ended."""
    return _matrix(last_weight, lengths, np.arange(len(lengths) + 1), (len(lengths), horizon + 1))


def _matrix(values: Doubles, columns: Longs, offsets: Longs, shape: tuple[int, int]) -> "csr_array[Any]":
    """Return a matrix with the given values in each row: sparse, or dense on machines without scipy."""
    try:
        from scipy.sparse import csr_array
    except ModuleNotFoundError:
        dense = np.zeros(shape)
        dense[np.repeat(np.arange(shape[0]), np.diff(offsets)), columns] = values
        return cast("csr_array[Any]", dense)  # used through @ and .T only
    return csr_array((values, columns, offsets), shape=shape)


def _resampled(matrix: "csr_array[Any]", counts: Doubles) -> Doubles:
    product: Doubles = (matrix.T @ counts.T).T
    return product
