"""Assess an estimate: its interval, its diagnostics and a verdict (trust, caution or do not trust) with reasons.

`LIMITS` contains every threshold. A log that lacks the few sessions with the largest weights looks harmless, and a log
that happens to contain one looks alarming. Therefore the absence of a dominating session does not justify trust, and
its presence is at most a reason for caution. What counts is how much of the log is left after weighting, and whether
the mean weight is 1.

A network's Q can only be compared with logged decisions. For choices that the log rarely contains it extrapolates. A
policy that was optimised on the same log prefers choices that are overestimated. The direct method with a network is
therefore never trusted. It is rejected if the policy differs much from the log or promises much more than the log paid.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from offrec.estimation.assumption import ANY_MEAN_WEIGHT, AssumptionBias, assumption_bias
from offrec.estimation.estimators import CLUSTER_WEIGHTINGS, Estimator, contributions, get_estimator, session_terms
from offrec.estimation.interval import RESAMPLES, Interval, bootstrap_interval, refit_interval
from offrec.estimation.sensitivity import Sensitivity, sensitivity
from offrec.estimation.support import (
    QCalibration,
    Support,
    calibrate_q,
    compute_support,
    effective_sessions,
    excess_over_log,
)
from offrec.estimation.trajectories import Trajectories
from offrec.types import Doubles

Verdict = Literal["trust", "caution", "do not trust"]
VERDICTS: tuple[Verdict, ...] = ("trust", "caution", "do not trust")
NEAR = 0.6  # effective share of the sessions from which on a policy counts as near the log
MIN_EFFECTIVE = 50  # effective sessions that the bounds under hidden knowledge need
MEAN_WEIGHT_TOLERANCE = 0.02  # a mean weight within this distance of 1 is harmless, even if significant


@dataclass(frozen=True)
class Limit:
    """The thresholds of one diagnostic, and its entry in the legend."""

    code: str
    trust: float
    caution: float
    show: float  # beyond this the estimate is withheld
    text: str
    unit: str = ""  # format of the value; empty for yes-or-no conditions
    at_least: bool = False  # whether values below the threshold are worse, instead of values above it

    def level(self, value: float) -> int:
        """Return 0 for trust, 1 for caution, 2 for do not trust, 3 for do not trust and withhold the estimate."""
        thresholds = (self.trust, self.caution, self.show)
        return sum(value < threshold if self.at_least else value > threshold for threshold in thresholds)


LIMITS = (
    Limit("sessions", 200, 50, 10, "number of sessions in the split", ",.0f", at_least=True),
    Limit("effective_sessions", 200, 50, 10, "sessions left after weighting", ",.0f", at_least=True),
    # In logs of 600 sessions whose reward equals the weight, 71 % of the intervals with an effective share of .5 that
    # the other limits accepted contained the exact value. Near the log few effective sessions are enough.
    Limit("effective_if_far", 1000, 100, 10, "sessions left after weighting, if most are lost", ",.0f", at_least=True),
    Limit("tail", 0.5, 0.8, np.inf, "Pareto shape of the weights' tail; from 0.5 on their variance is infinite", ".2f"),
    # Intervals of ratios of picks are extended by `assumption`, so that they tolerate heavier tails.
    Limit("tail_of_picks", 0.6, 0.8, np.inf, "Pareto shape of the tail of weights by picks", ".2f"),
    Limit("contribution_tail", 0.7, 0.9, np.inf, "Pareto shape of the tail of what sessions contribute", ".2f"),
    Limit(
        "assumption", 0.2, 0.5, np.inf, "bias that the estimator's assumption may have, relative to the estimate", ".0%"
    ),
    Limit(
        "mean_weight_low", 0.8, 0.5, 0.1, "mean weight, expected 1: the log lacks some choices", ".2f", at_least=True
    ),
    Limit("mean_weight_high", 1.25, 2.0, 10.0, "mean weight, expected 1: the propensities are too small", ".2f"),
    Limit("significantly_low", 3.0, 5.0, np.inf, "standard errors by which the mean weight is below 1", ".1f"),
    Limit("significantly_high", 2.0, 4.0, np.inf, "standard errors by which the mean weight is above 1", ".1f"),
    Limit("largest_session", 0.5, 1.0, 1.0, "share of the variance that comes from a single session", ".0%"),
    Limit("unbounded", 0, 0, 1, "too few sessions determine the estimate, so its interval is unbounded"),
    Limit("cut_weight", 0.02, 0.1, 0.9, "share of the weight that the cap removed", ".0%"),
    Limit("rare_items", 0.05, 0.25, 0.75, "share of the policy's choices that the log rarely contains", ".0%"),
    Limit("propensity_error", 0.02, 0.1, 1.0, "calibration error of the estimated propensities", ".3f"),
    Limit("q_error", 0.1, 0.3, 1.0, "error of Q at logged decisions, in ten groups, relative to Q", ".0%"),
    Limit("q_bias", 0.05, 0.15, 0.5, "mean error of Q at logged decisions, relative to Q", ".0%"),
    # In `demo` 0 no direct estimate was within 25 % of the ground truth at an overlap of .67 or less.
    Limit(
        "overlap", 0.9, 0.7, 0, "share of its choices that the policy has in common with the log", ".0%", at_least=True
    ),
    # In `demo` 0 estimates up to the logged reward were within 15 % of the ground truth; most of those 70 % above it
    # were not. In `demo` 1 an estimate 18 % above the logged reward was 64 % too high.
    Limit("above_log", 0.0, 0.1, np.inf, "excess over the logged reward, where Q tends to overestimate", ".0%"),
    Limit("extrapolation", 0, 1, 1, "Q of choices outside the log is extrapolated by a network"),
    Limit("clusters", 0, 1, 1, "assumes that all items of a cluster are alike, which the log can only show on average"),
    Limit("states", 0, 1, 1, "assumes that all states of a class are alike, which the log shows only in part"),
    Limit("averaged", 0, 1, 1, "its probabilities are means over contexts that --match does not distinguish"),
    Limit("no_refits", 0, 1, 1, "without refits the error of Q itself is unknown"),
    Limit("q_unchecked", 0, 1, 1, "Q was not compared with the log"),
    Limit("support_unknown", 0, 1, 1, "it is unknown how much of the policy's behaviour the log contains"),
)
TEXTS = {limit.code: limit.text for limit in LIMITS}


@dataclass(frozen=True)
class Reason:
    """A diagnostic beyond a limit."""

    code: str  # of a `Limit`
    value: float
    verdict: Verdict  # the verdict if this were the only diagnostic
    short: str  # the code and the value: "overlap 45%"

    @property
    def text(self) -> str:
        """Description of the diagnostic, with its value."""
        value = self.short.removeprefix(self.code).strip()
        return f"{TEXTS[self.code]}: {value}" if value else TEXTS[self.code]


@dataclass(frozen=True)
class Assessment:
    """An estimate with its interval, diagnostics and verdict."""

    estimator: str
    gamma: float
    cap: float  # infinity: no cap
    interval: Interval  # value per session, extended by the bias of the assumption of parts of lists and of classes
    per_decision: Interval | None  # value per decision; None if the estimator cannot estimate the number of decisions
    by_behaviour: dict[str, Interval]  # behaviour → its part of the value per session
    assumption_bias: AssumptionBias  # 0 for products of ratios of whole lists
    support: Support
    q_calibration: QCalibration | None
    verdict: Verdict
    reasons: tuple[Reason, ...]  # most severe first; empty for "trust"
    sensitivity: Sensitivity | None  # to hidden knowledge of the logging policy, if the propensities were estimated
    is_withheld: bool  # too little support to show a number, unless the estimator was chosen by name

    @property
    def reason(self) -> str:
        """The reasons as one line; "within all limits" for "trust"."""
        return "; ".join(reason.text for reason in self.reasons) or "within all limits"

    def as_json(self, always_show: bool = False) -> dict[str, Any]:
        """Return the assessment for JSON; numbers of a withheld estimate are None unless `always_show`."""
        numbers = {
            **self.interval.as_json(),
            "per_decision": self.per_decision and self.per_decision.as_json(),
            "by_behaviour": {name: part.as_json() for name, part in self.by_behaviour.items()},
        }
        return {
            "estimator": self.estimator,
            "gamma": self.gamma,
            "cap": self.cap if self.cap < np.inf else None,
            **(numbers if always_show or not self.is_withheld else dict.fromkeys(numbers)),
            "assumption_bias": asdict(self.assumption_bias),
            "support": asdict(self.support),
            "q_calibration": self.q_calibration and asdict(self.q_calibration),
            "largest_session_share": self.interval.largest_session_share,
            "verdict": self.verdict,
            "reasons": [
                {"code": reason.code, "value": reason.value, "verdict": reason.verdict, "text": reason.text}
                for reason in self.reasons
            ],
            "sensitivity": self.sensitivity and {**asdict(self.sensitivity), "text": self.sensitivity.text},
            "withheld": self.is_withheld,
        }


def assess(
    name: str,
    trajectories: Trajectories,
    *,
    gamma: float = 1.0,
    cap: float | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    refits: Doubles | None = None,
    propensity_error: float | None = None,
    is_tabular: bool = False,
    breakdown: bool = True,
) -> Assessment:
    """Estimate a policy's value per session and assess how far the estimate can be trusted.

    Args:
        name: The estimator, one of `ESTIMATORS`.
        trajectories: Logged sessions with the columns that the estimator needs.
        gamma: Discount per decision.
        cap: Largest weight; None for the estimator's own cap.
        seed: Seed of the bootstrap.
        resamples: Bootstrap resamples.
        refits: [R] direct estimates of models refitted to resampled sessions, for an interval that includes the error
            of Q.
        propensity_error: Calibration error of the propensities, if they were estimated.
        is_tabular: Whether Q is a table with data for every choice, so that nothing is extrapolated.
        breakdown: Whether to compute the intervals by behaviour and per decision too.

    Returns:
        The estimate with its interval, diagnostics and verdict.

    Raises:
        InputError: If a column that the estimator needs is missing.
    """
    estimator, terms = get_estimator(name), session_terms(name, trajectories, gamma, cap)
    interval = bootstrap_interval(terms, seed=seed, resamples=resamples)
    if refits is not None and not estimator.uses_weights:
        interval = refit_interval(interval.estimate, refits, interval.standard_error)
    bias = assumption_bias(name, trajectories, gamma, cap)
    interval = bias.widen(interval)
    used_cap = estimator.effective_cap(len(trajectories), cap)
    support = compute_support(name, trajectories, gamma, used_cap)
    q_calibration = None
    if estimator.uses_weights:
        diagnostics = _weight_diagnostics(estimator, support, interval, bias, propensity_error)
    else:
        q_calibration = calibrate_q(trajectories, gamma)
        diagnostics = _model_diagnostics(support, q_calibration, refits)
        if not is_tabular:
            diagnostics["extrapolation"] = 1.0
            diagnostics["above_log"] = excess_over_log(trajectories, gamma, interval.estimate)
            diagnostics["overlap"] = support.overlap
    diagnostics["averaged"] = float(trajectories.is_averaged)
    diagnostics["unbounded"] = float(not np.isfinite([interval.low, interval.high]).all())
    level, reasons = _apply_limits(diagnostics)
    by_behaviour: dict[str, Interval] = {}
    per_decision = None
    if breakdown and estimator.uses_weights and not estimator.uses_q:  # Q and V belong to the whole reward
        by_behaviour, per_decision = _break_down(name, trajectories, gamma, cap, seed, resamples)
    return Assessment(
        estimator=name,
        gamma=gamma,
        cap=used_cap,
        interval=interval,
        per_decision=per_decision,
        by_behaviour=by_behaviour,
        assumption_bias=bias,
        support=support,
        q_calibration=q_calibration,
        verdict=VERDICTS[min(level, 2)],
        reasons=reasons,
        sensitivity=None
        if propensity_error is None
        else _sensitivity(estimator, trajectories, interval, gamma, used_cap),
        is_withheld=level > 2,
    )


def _weight_diagnostics(
    estimator: Estimator, support: Support, interval: Interval, bias: AssumptionBias, propensity_error: float | None
) -> dict[str, float | None]:
    effective = support.effective_sessions or 0.0
    # Ratios of parts of lists may have another mean than 1; `assumption` covers that. The weights of a class share a
    # mean, so that their own spread does not contain its error.
    has_error = estimator.weighting not in ANY_MEAN_WEIGHT and not estimator.last_ratios
    deviation = _mean_weight_deviation(support) if has_error else 0.0
    return {
        "sessions": support.sessions,
        "effective_sessions": support.effective_sessions,
        "effective_if_far": effective if effective < NEAR * support.sessions else None,
        "tail_of_picks" if estimator.weighting == "picks" else "tail": support.tail_shape,
        "contribution_tail": support.contribution_tail_shape,
        "assumption": bias.relative_margin(interval.estimate),
        "mean_weight_low": support.mean_weight,
        "mean_weight_high": support.mean_weight,
        "significantly_low": -deviation,
        "significantly_high": deviation,
        "largest_session": interval.largest_session_share,
        "cut_weight": support.cut_weight,
        "rare_items": support.rare_share,
        "propensity_error": propensity_error,
        "clusters": float(estimator.weighting in CLUSTER_WEIGHTINGS),
        "states": float(estimator.last_ratios > 0),
    }


def _sensitivity(
    estimator: Estimator, trajectories: Trajectories, interval: Interval, gamma: float, cap: float
) -> Sensitivity | None:
    """Return how strong hidden knowledge must be to overturn the estimate; None if it cannot be bounded.

    The bounds are those of estimators with normalised ratios of whole lists, without a cap, and of the direct method.
    They need enough sessions with weights: bounds from a single session would have no width.
    """
    if not np.isfinite([interval.low, interval.high]).all() or estimator.weighting != "lists":
        return None
    if estimator.last_ratios:
        return None
    if trajectories.log_pi is None or trajectories.log_b is None or not trajectories.decisions:
        return None
    if estimator.uses_weights and (not estimator.is_normalised or cap < np.inf):
        return None
    if estimator.uses_q and (trajectories.q is None or trajectories.v is None):
        return None
    if effective_sessions(session_terms("importance", trajectories), gamma)[0] < MIN_EFFECTIVE:
        return None
    return sensitivity(trajectories, interval, gamma, uses_q=estimator.uses_q)


def _mean_weight_deviation(support: Support) -> float:
    """Return how far the mean weight is above 1, in standard errors.

    A mean weight that is too large indicates wrong propensities: with the right ones, heavy weights increase the
    standard error as well.
    """
    excess = (support.mean_weight or 0.0) - 1.0
    if abs(excess) <= MEAN_WEIGHT_TOLERANCE or not support.mean_weight_error:
        return 0.0
    return excess / support.mean_weight_error


def _model_diagnostics(
    support: Support, q_calibration: QCalibration | None, refits: Doubles | None
) -> dict[str, float | None]:
    return {
        "sessions": support.sessions,
        "rare_items": support.rare_share,
        "q_error": q_calibration.error if q_calibration else None,
        "q_bias": q_calibration.bias if q_calibration else None,
        "no_refits": float(refits is None),
        "q_unchecked": float(q_calibration is None),
        "support_unknown": float(support.rare_share is None),
    }


def _break_down(
    name: str, trajectories: Trajectories, gamma: float, cap: float | None, seed: int, resamples: int
) -> tuple[dict[str, Interval], Interval | None]:
    """Return the value by behaviour, and per decision: value per session / decisions per session, both discounted."""
    parts = {one: trajectories.with_reward_of(one) for one in trajectories.reward_by_behaviour}
    by_behaviour = {
        behaviour: assumption_bias(name, part, gamma, cap).widen(
            bootstrap_interval(session_terms(name, part, gamma, cap), seed=seed, resamples=resamples)
        )
        for behaviour, part in parts.items()
    }
    unit = trajectories.with_unit_reward()
    count = session_terms(name, unit, gamma, cap)
    if not count.gain.any():
        return by_behaviour, None
    value = session_terms(name, trajectories, gamma, cap)
    ratio = bootstrap_interval(value, divisor=count, seed=seed, resamples=resamples)
    # To first order, the bias of a ratio is that of (reward − ratio) per session, divided by the number of decisions.
    surplus = replace(unit, reward=trajectories.reward - ratio.estimate)
    number = float(contributions(count).mean())
    bias = assumption_bias(name, surplus, gamma, cap)
    return by_behaviour, AssumptionBias(bias.bias / number, bias.standard_error / abs(number)).widen(ratio)


def _apply_limits(diagnostics: dict[str, float | None]) -> tuple[int, tuple[Reason, ...]]:
    """Return the worst level of all diagnostics, and the diagnostics beyond a limit, most severe first."""
    beyond: list[tuple[int, Reason]] = []
    for limit in LIMITS:
        value = diagnostics.get(limit.code)
        level = 0 if value is None else limit.level(value)
        if value is not None and level:
            short = f"{limit.code} {value:{limit.unit}}" if limit.unit else limit.code
            beyond.append((level, Reason(limit.code, float(value), VERDICTS[min(level, 2)], short)))
    beyond.sort(key=lambda entry: -entry[0])
    return max((level for level, _ in beyond), default=0), tuple(reason for _, reason in beyond)
