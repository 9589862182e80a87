"""How far hidden knowledge of the logging policy could move an estimate with estimated propensities.

The logging policy may have known something about the visitor that the log does not contain. The marginal sensitivity
model (Tan 2006) bounds its effect on each decision by a strength Γ ≥ 1: the odds of the logged list, given what the
policy knew, differ from the estimated odds by at most the factor Γ. The true ratio of a decision is then within

    [b + (1 − b) / Γ,  b + (1 − b) Γ] · π / b

and the weight of a session within the product of these ranges. Let f be the factor of a weight. The self-normalised
estimate at step t is a weighted mean, and its largest value is reached by a threshold on the reward: the sessions
above it have their largest factor, those below it their smallest (Zhao, Small & Bhattacharya 2019).

    Σ_i f_i w_i r_i / Σ_i f_i w_i        f_i ∈ [low_i, high_i]

The bound of the value is the sum of the bounds of its steps, which may use different factors, so it is conservative.

The direct method has no weights. Hidden knowledge changes the mean of r + γ V(s′) given a decision, and Q is fitted to
that mean. The change of its value is the sum, over π's decisions, of the mean residuals r + γ V(s′) − Q. Its bounds are
those above with residuals instead of rewards: the weights turn the decisions of the log into those of π. The weighted
doubly robust estimate has the same bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from offrec.estimation.estimators import td_residual
from offrec.estimation.interval import Interval
from offrec.estimation.trajectories import Trajectories, weights
from offrec.types import Doubles

MAX_STRENGTH = 10.0
STEPS = 30  # of the bisection


@dataclass(frozen=True)
class Sensitivity:
    """The strengths Γ of hidden knowledge that would overturn an estimate; `MAX_STRENGTH` if none does."""

    outside: float  # the bounds leave the 95 % interval: from here on hidden knowledge is the larger error
    no_difference: float  # the interval, widened by the bounds, contains what the logging policy earned

    @property
    def text(self) -> str:
        """The strengths as one sentence."""
        return (
            f"hidden knowledge that changes the odds of a list by {_percent(self.outside)} per decision could move the "
            f"estimate outside its interval; {_percent(self.no_difference)} could explain the whole difference from "
            "the log"
        )


def sensitivity(
    trajectories: Trajectories, interval: Interval, gamma: float = 1.0, *, uses_q: bool = False
) -> Sensitivity:
    """Compute how strong hidden knowledge must be to overturn an estimate.

    Args:
        trajectories: Logged sessions with log_pi and log_b and, if the estimate uses Q, with q and v.
        interval: The estimate and its interval.
        gamma: Discount per decision.
        uses_q: Whether the estimate is direct or weighted doubly robust; otherwise it is self-normalised.
    """
    bounds = residual_bounds if uses_q else value_bounds

    def bound(strength: float) -> tuple[float, float]:
        return bounds(trajectories, gamma, strength)

    centre = sum(bound(1.0)) / 2
    logged = float(trajectories.returns(gamma).mean())

    def is_outside(strength: float) -> bool:
        low, high = bound(strength)
        return centre - low > interval.estimate - interval.low or high - centre > interval.high - interval.estimate

    def has_no_difference(strength: float) -> bool:
        low, high = bound(strength)
        return interval.low - (centre - low) <= logged <= interval.high + (high - centre)

    return Sensitivity(_smallest(is_outside), _smallest(has_no_difference))


def value_bounds(trajectories: Trajectories, gamma: float, strength: float) -> tuple[float, float]:
    """Return the smallest and largest self-normalised value per session under hidden knowledge of a strength.

    Args:
        trajectories: Logged sessions with log_pi and log_b.
        gamma: Discount per decision.
        strength: Γ, at least 1.
    """
    weight, step = weights(trajectories)[0], trajectories.step
    assert trajectories.log_b is not None
    b = np.exp(trajectories.log_b)
    factors = [_products(trajectories, np.log(b + (1 - b) * by)) for by in (1 / strength, strength)]
    last = trajectories.offsets[1:] - 1
    active = trajectories.lengths > 0
    ended_weight = np.where(active, weight[last], 1.0)
    ended_factors = [np.where(active, factor[last], 1.0) for factor in factors]
    low = high = 0.0
    for number in range(int(trajectories.lengths.max(initial=0))):
        rows = np.flatnonzero(step == number)
        ended = trajectories.lengths <= number
        w = np.concatenate([weight[rows], ended_weight[ended]])
        r = np.concatenate([trajectories.reward[rows], np.zeros(int(ended.sum()))])
        small, large = (np.concatenate([f[rows], e[ended]]) for f, e in zip(factors, ended_factors, strict=True))
        high += gamma**number * largest_mean(r, w * small, w * large)
        low -= gamma**number * largest_mean(-r, w * small, w * large)
    return low, high


def residual_bounds(trajectories: Trajectories, gamma: float, strength: float) -> tuple[float, float]:
    """Return the smallest and largest weighted doubly robust value; q and v are needed too. See `value_bounds`."""
    start, q, v = trajectories.start_values, trajectories.q, trajectories.v
    assert start is not None
    assert q is not None
    assert v is not None
    residual = td_residual(trajectories.reward, q, v, trajectories.step, gamma)
    low, high = value_bounds(replace(trajectories, reward=residual), gamma, strength)
    value = float(start.mean())
    return value + low, value + high


def largest_mean(values: Doubles, small: Doubles, large: Doubles) -> float:
    """Return the largest weighted mean of the values if each weight may be anywhere between `small` and `large`."""
    order = np.argsort(-values, kind="stable")
    values, small, large = values[order], small[order], large[order]
    above, below = np.cumsum(large), small.sum() - np.cumsum(small)
    gain_above, gain_below = np.cumsum(large * values), (small * values).sum() - np.cumsum(small * values)
    total = above + below
    means = np.divide(gain_above + gain_below, total, out=np.full_like(total, -np.inf), where=total > 0)
    return float(means.max(initial=-np.inf)) if np.isfinite(means).any() else 0.0


def _products(trajectories: Trajectories, log_factor: Doubles) -> Doubles:
    """[D] product of the factors of a session's decisions so far."""
    total = np.cumsum(log_factor)
    first = np.repeat(trajectories.offsets[:-1], trajectories.lengths)
    return np.exp(np.clip(total - total[first] + log_factor[first], -200, 200))


def _smallest(is_overturned: Callable[[float], bool]) -> float:
    """Return the smallest strength for which the condition holds."""
    if is_overturned(1.0):
        return 1.0
    if not is_overturned(MAX_STRENGTH):
        return MAX_STRENGTH
    low, high = 0.0, float(np.log(MAX_STRENGTH))
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_overturned(float(np.exp(middle))) else (middle, high)
        if high - low < 1e-3:
            break
    return float(np.exp(high))


def _percent(strength: float) -> str:
    if strength >= MAX_STRENGTH:
        return f"more than {MAX_STRENGTH - 1:.0%}"
    return f"{strength - 1:.1%}" if strength < 1.1 else f"{strength - 1:.0%}"
