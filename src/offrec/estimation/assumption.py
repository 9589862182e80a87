"""The bias of ratios of parts of lists, as far as the log shows it, and intervals that include it.

Ratios ρ of parts of lists rest on an assumption about visitors. Ratios ρ* of whole lists need none. Their products over
a session vary too much, but within one decision their means are precise. By the performance difference lemma, with the
weights w* before a decision and the value V of the state after it,

    V_ρ − V_ρ* = Σ_t γ^t E_b[w*_{t−1} (ρ_t − ρ*_t) (r_t + γ V_ρ(s_{t+1}))]

Products of ρ* are avoided by two approximations. V of a running session is a constant, the mean over its decisions.
The mean of (ρ − ρ*)(r + γV − V) over all logged decisions replaces that over the decisions of the policy; it is
multiplied by the (discounted) number of decisions per session of the policy.

Ratios of clusters rest on an assumption in the same way: the items of a cluster are alike ("no direct effect" of an
item beyond its cluster).

Doubly robust forms need the assumption for the residuals only. With the fitted V̂ and Q̂ in place of the constant, and
the control variate K (ρ Q̂ if the ratios do not depend on the reaction), the mean is that of

    ρ y − K − ρ* (y − Q̂),     y = r + γ (V̂(s′) + d) − d

The constant d is the mean difference between V and V̂ over the decisions of a running session.

State-marginal weights rest on another assumption: the states of a class are alike. Their bias is estimated by how much
the estimate changes if one more ratio is not averaged. Differences that appear only two decisions later are missed.
"""

from dataclasses import dataclass, replace

import numpy as np

from offrec.estimation.estimators import Estimator, get_estimator, td_residual, terms_of
from offrec.estimation.interval import Interval, resampled_sums
from offrec.estimation.trajectories import MAX_LOG_WEIGHT, Trajectories, one_earlier
from offrec.types import Doubles, Longs

# Weightings that rest on how visitors react to lists; those of `ANY_MEAN_WEIGHT` need not have the mean 1.
PARTS_OF_LISTS = ("sets", "prefixes", "picks", "pick_clusters", "clusters")
ANY_MEAN_WEIGHT = ("sets", "prefixes", "picks", "pick_clusters")
MARGIN = 2.0  # standard errors of the bias by which intervals are extended


@dataclass(frozen=True)
class AssumptionBias:
    """By how much the assumption of an estimator increases the value per session, with its standard error."""

    bias: float = 0.0
    standard_error: float = 0.0

    def relative_margin(self, estimate: float) -> float | None:
        """Return the largest bias within the margin, relative to the estimate; None if there is no assumption."""
        largest = abs(self.bias) + MARGIN * self.standard_error
        return largest / abs(estimate) if estimate and largest else np.inf if largest else None

    def widen(self, interval: Interval) -> Interval:
        """Extend an interval by the bias and its margin, each end by what may lie beyond it."""
        margin = MARGIN * self.standard_error
        low, high = max(0.0, self.bias + margin), max(0.0, margin - self.bias)
        return replace(interval, low=interval.low - low, high=interval.high + high)


def assumption_bias(name: str, trajectories: Trajectories, gamma: float, cap: float | None = None) -> AssumptionBias:
    """Estimate the bias of ratios of parts of lists and of state-marginal weights; 0 for other estimators.

    Args:
        name: The estimator.
        trajectories: Logged sessions with the columns that the estimator needs, and log_pi and log_b.
        gamma: Discount per decision.
        cap: Largest weight; None for the estimator's own cap.
    """
    estimator = get_estimator(name)
    parts = _bias_of_parts(estimator, trajectories, gamma, cap)
    if not estimator.last_ratios or not trajectories.decisions:
        return parts
    classes = _bias_of_classes(estimator, trajectories, gamma, cap)
    error = float(np.hypot(parts.standard_error, classes.standard_error))
    return AssumptionBias(parts.bias + classes.bias, error)


def _bias_of_classes(
    estimator: Estimator, trajectories: Trajectories, gamma: float, cap: float | None
) -> AssumptionBias:
    """Return the difference between the estimate and that with one more ratio that is not averaged."""
    more = replace(estimator, last_ratios=estimator.last_ratios + 1)
    sums = [resampled_sums(terms_of(one, trajectories, gamma, cap)) for one in (estimator, more)]
    (value, influence), (other, influence_of_other) = (one(np.ones((1, len(trajectories)))) for one in sums)
    error = float((influence - influence_of_other).std()) / len(trajectories) ** 0.5
    return AssumptionBias(float(value[0] - other[0]), error)


def _bias_of_parts(estimator: Estimator, trajectories: Trajectories, gamma: float, cap: float | None) -> AssumptionBias:
    """Return the bias of ratios of parts of lists, compared with ratios of whole lists; 0 for other ratios."""
    log_pi, log_b = trajectories.log_pi, trajectories.log_b
    if estimator.weighting not in PARTS_OF_LISTS or log_pi is None or log_b is None or not trajectories.decisions:
        return AssumptionBias()
    log_ratio, step, sessions = trajectories.log_ratios[estimator.weighting], trajectories.step, len(trajectories)
    ratio, exact = (np.exp(np.minimum(one, MAX_LOG_WEIGHT)) for one in (log_ratio, log_pi - log_b))
    terms = terms_of(replace(estimator, uses_q=False), trajectories, gamma, cap)
    before = one_earlier(terms.weight, step)
    mean = terms.mean_weight()
    mean_before = np.concatenate([[1.0], mean[:-1]])
    reached = gamma**step * before
    decisions = float(_divide(_by_step(step, reached), mean_before).sum())
    if not decisions > 0:
        return AssumptionBias()
    earned = _divide(_by_step(step, terms.gain), mean)
    value = float(np.cumsum(earned[::-1]).sum()) / decisions  # of a running session, over all of its decisions
    fitted = _fitted_columns(estimator, trajectories, ratio)
    if fitted is None:
        continues = np.append(step[1:] > 0, False)
        surplus = (ratio - exact) * (trajectories.reward + (gamma * continues - 1.0) * value)
    else:
        q, v, control = fitted
        excess = value - float(_divide(_by_step(step, reached * v), mean_before).sum()) / decisions
        outcome = td_residual(trajectories.reward, np.full_like(q, excess), v + excess, step, gamma)
        surplus = ratio * outcome - control - exact * (outcome - q)
    by_session = np.bincount(trajectories.session, gamma**step * surplus, minlength=sessions)
    scale = decisions / float((gamma**step).sum())
    return AssumptionBias(scale * float(by_session.mean()), scale * float(by_session.std()) / sessions**0.5)


def _fitted_columns(
    estimator: Estimator, trajectories: Trajectories, ratio: Doubles
) -> tuple[Doubles, Doubles, Doubles] | None:
    """Return Q, V and the control variate of a doubly robust form; None for an estimator without Q."""
    q, v = trajectories.q, trajectories.v
    if not estimator.uses_q or q is None or v is None:
        return None
    return q, v, trajectories.controls[estimator.weighting] if estimator.depends_on_reaction else ratio * q


def _by_step(step: Longs, values: Doubles) -> Doubles:
    """[T] sums over the decisions at each step."""
    return np.bincount(step, values).astype(np.float64)


def _divide(values: Doubles, mean: Doubles) -> Doubles:
    return np.divide(values, mean, out=np.zeros_like(values), where=mean > 0)
