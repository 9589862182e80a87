"""Intervals: a studentised bootstrap over sessions.

Sessions are drawn with replacement, S out of S, and the estimate is made anew from them, normalisation included. Each
resample's distance from the estimate is measured in its own standard error, and the quantiles of these distances are
put around the estimate:

    [ estimate − t_{1 − a/2} · error,  estimate − t_{a/2} · error ],    t = (resample − estimate) / its own error

A resample that lacks the few heavy sessions is too low *and* thinks itself exact; in units of its own error it lies far
out, so the interval reaches up. The plain quantiles of resamples do not see that. One that lacks all of them has no
error at all and lies infinitely far out; where too many do, the interval has no end, for the log does not show one.
Errors come from influence functions: what the estimate would change by if a session weighed a little more.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offrec.errors import InputError
from offrec.estimation.estimators import SessionTerms, contributions
from offrec.estimation.trajectories import Doubles

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LEVEL, RESAMPLES = 0.95, 1000
ROUNDING = 1e-12  # sessions that differ by less are the same
SPREADLESS = 1e-6  # of the estimate's error: a resample with less has none but that of rounding
ELEMENTS = 400_000  # of a part of the resamples, all sessions: bounds what is held at a time


@dataclass(frozen=True)
class Interval:
    estimate: float
    low: float
    high: float
    error: float  # standard error
    heaviest: float = 0.0  # share of the squared error that one session brings

    def as_json(self) -> dict[str, float]:
        return {"estimate": self.estimate, "low": self.low, "high": self.high, "error": self.error}


def interval(
    found: SessionTerms,
    *,
    per: SessionTerms | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """Of the estimate that `found` sums to; of its ratio to the one that `per` sums to, where that is given."""
    if not 0 < level < 1 or resamples < 20:
        raise InputError(f"An interval of {level} from {resamples} resamples: give a level in (0, 1) and 20 or more.")
    sums, below = _Sums(found), None if per is None else _Sums(per)
    values, influence = _influences(sums, below, np.ones((1, len(found))))
    centre, squares = float(values[0]), influence[0] ** 2
    if len(found) < 2:
        return Interval(centre, -np.inf, np.inf, np.inf, 1.0)
    error = float(np.sqrt(squares.mean() / (len(found) - 1)))
    if error <= ROUNDING * abs(centre):
        return Interval(centre, centre, centre, 0.0)
    parts = (_distances(sums, below, counts, centre, error) for counts in _draws(len(found), seed, resamples))
    distances = np.concatenate(list(parts))
    with np.errstate(invalid="ignore"):  # infinity less infinity: of those quantiles too there is no end
        low, high = np.quantile(distances, [(1 + level) / 2, (1 - level) / 2])
    low, high = np.nan_to_num(low, nan=np.inf, posinf=np.inf), np.nan_to_num(high, nan=-np.inf, neginf=-np.inf)
    heaviest = float(squares.max() / squares.sum())
    return Interval(centre, centre - float(low) * error, centre - float(high) * error, error, heaviest)


def refitted(estimate: float, again: Doubles, beside: float = 0.0, level: float = LEVEL) -> Interval:
    """Of an estimate whose model was fitted again to R resamples of the sessions, giving `again` [R]: Student's t.

    `beside`: the standard error that is left once the model is given, from the sessions that it is applied to.
    """
    if len(again) < 2:
        raise InputError(f"An interval from {len(again)} refits cannot be given; fit at least 2.")
    error = float(np.hypot(again.std(ddof=1), beside))
    wide = student_t(len(again) - 1, level) * error
    return Interval(estimate, estimate - wide, estimate + wide, error)


def student_t(freedom: int, level: float) -> float:
    """t with the share `level` of Student's distribution between −t and t, by bisecting tan θ = t / √freedom."""
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        low, high = (angle, high) if _between(freedom, angle) < level else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _between(freedom: int, angle: float) -> float:
    """The share between −t and t, a finite sum in whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    term, found = math.cos(angle) if odd else 1.0, 0.0
    for over in range(1 + odd, freedom, 2):
        found += term
        term *= math.cos(angle) ** 2 * over / (over + 1)
    return 2 / math.pi * (angle + math.sin(angle) * found) if odd else math.sin(angle) * found


def _draws(sessions: int, seed: int, resamples: int) -> Iterator[Doubles]:
    """[b, S] how often each session stands in a resample, a part of the resamples at a time."""
    part = max(1, ELEMENTS // sessions)
    random = np.random.default_rng(seed)
    for first in range(0, resamples, part):
        rows = min(part, resamples - first)
        drawn = random.integers(sessions, size=(rows, sessions)) + sessions * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * sessions).reshape(rows, sessions).astype(np.float64)


def _distances(sums: "_Sums", below: "_Sums | None", counts: Doubles, centre: float, whole: float) -> Doubles:
    """[b] of resampled estimates from the estimate, in their own standard errors; `whole`: the estimate's."""
    sessions = counts.shape[1]
    if below is None and not sums.normalised:  # two products, where influences would be a matrix of their size
        apart = sums.plain - centre
        values, square = (counts @ np.stack([apart, apart**2], 1) / sessions).T
        values, variance = values + centre, square - values**2
    else:
        values, influence = _influences(sums, below, counts)
        variance = (counts * influence**2).sum(1) / sessions
    error = np.sqrt(np.maximum(variance, 0.0) / (sessions - 1))
    spread, apart = error > SPREADLESS * whole, values - centre
    endless = np.where(np.abs(apart) > SPREADLESS * whole, np.copysign(np.inf, apart), 0.0)
    return np.where(spread, apart / np.where(spread, error, 1.0), endless)


def _influences(sums: "_Sums", below: "_Sums | None", counts: Doubles) -> tuple[Doubles, Doubles]:
    """[b] estimates of resamples, and [b, S] what each session does to them."""
    values, influence = sums(counts)
    if below is None:
        return values, influence
    under, its = below(counts)
    ratio = values / under
    return ratio, (influence - ratio[:, None] * its) / under[:, None]


class _Sums:
    """Estimates of resampled sessions, and what each session's weight in them does to them."""

    def __init__(self, found: SessionTerms) -> None:
        self.sessions, self.normalised = len(found), found.normalised
        self.plain = found.base if found.normalised else contributions(found)
        if found.normalised:
            self.lengths = np.diff(found.offsets)
            self.horizon = max(1, int(self.lengths.max(initial=0)))
            self.last = found.last
            self.gain = _by_step(found.gain, found, self.horizon)
            self.weight = _by_step(found.weight, found, self.horizon)
            self.ends = _ends(self.lengths, self.last, self.horizon)

    def __call__(self, counts: Doubles) -> tuple[Doubles, Doubles]:
        """[b] estimates, and [b, S] S times the change by a session's share of the sessions."""
        values = counts @ self.plain / self.sessions
        influence = self.plain - values[:, None]
        if not self.normalised:
            return values, influence
        total = _dense(self.weight, counts) + np.cumsum(_dense(self.ends, counts), 1)[:, : self.horizon]  # [b, T]
        each = np.divide(self.sessions, total, out=np.zeros_like(total), where=total > 0)
        mean = _dense(self.gain, counts) * each / self.sessions  # [b, T] of δ, by weight
        slope = mean * each
        to_come = np.cumsum(slope[:, ::-1], 1)[:, ::-1]
        to_come = np.concatenate([to_come, np.zeros((len(counts), 1))], 1)[:, self.lengths] * self.last
        moved = (self.gain @ each.T).T - (self.weight @ slope.T).T - to_come
        return values + mean.sum(1), influence + moved


def _by_step(values: Doubles, found: SessionTerms, horizon: int) -> "csr_array[Any]":
    """[S, T] with what is known of each decision."""
    from scipy.sparse import csr_array

    return csr_array((values, found.step, found.offsets), shape=(len(found), horizon))


def _ends(lengths: Any, last: Doubles, horizon: int) -> "csr_array[Any]":
    """[S, T + 1] each session's last weight, at the step from which on it is over."""
    from scipy.sparse import csr_array

    return csr_array((last, lengths, np.arange(len(lengths) + 1)), shape=(len(lengths), horizon + 1))


def _dense(matrix: "csr_array[Any]", counts: Doubles) -> Doubles:
    found: Doubles = (matrix.T @ counts.T).T
    return found
