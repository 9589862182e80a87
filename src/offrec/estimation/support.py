"""How much of a log speaks of a policy, and how well a fitted Q keeps its own promises: what a verdict rests on."""

from dataclasses import dataclass

import numpy as np

from offrec.estimation.estimators import SessionTerms, mean_weight, residual, terms
from offrec.estimation.estimators import estimator as named
from offrec.estimation.trajectories import BEYOND, Doubles, Trajectories

GROUPS = 10


@dataclass(frozen=True)
class Support:
    """What the weights say, before any cap: cutting them adds nothing to what the log knows."""

    sessions: int
    decisions: int
    effective: float | None  # sessions of the policy's own that the log is worth
    effective_by_step: tuple[float, ...]  # the same at each step
    largest_weight: float | None
    mass: float | None  # mean of the weights sessions end with: 1 in expectation, if the log has all the policy does
    mass_error: float | None  # its standard error
    capped: float | None  # share of the decisions whose weight was cut
    cut: float | None  # share of all the weight that was cut off, later decisions discounted
    divergence: float | None  # KL(π‖b) a decision, in nats, at the log's states
    overlap: float | None  # Σ min(π, b) over lists, at the log's states: 1 where both do the same
    rare: float | None  # share of the policy's choices at the log's states that fall on items π_b hardly ever takes


@dataclass(frozen=True)
class Fit:
    """How far Q keeps r + γ V(s′) = Q(s, a) on average, at logged decisions. In shares of the mean |Q|."""

    calibration: float  # mean distance over ten groups of equal size, by Q
    drift: float  # mean distance over all: |mean of r + γ V(s′) − Q|


def support(name: str, steps: Trajectories, gamma: float, cap: float) -> Support:
    rare = None if steps.rare is None or not steps.decisions else float(steps.rare.mean())
    divergence, common = _divergence(steps), _overlap(steps)
    if not named(name).weighted:
        return Support(len(steps), steps.decisions, None, (), None, None, None, None, None, divergence, common, rare)
    found = terms("marginal" if named(name).marginal else "importance", steps, gamma)
    overall, by_step = effective(found, gamma)
    discounted = gamma**steps.step * found.weight
    kept = gamma**steps.step * np.minimum(found.weight, cap)
    return Support(
        sessions=len(steps),
        decisions=steps.decisions,
        effective=overall,
        effective_by_step=tuple(by_step.tolist()),
        largest_weight=float(found.weight.max(initial=0.0)),
        mass=float(found.last.mean()),
        mass_error=float(found.last.std() / len(steps) ** 0.5),
        capped=float((found.weight > cap).mean()) if steps.decisions else 0.0,
        cut=1 - float(kept.sum() / discounted.sum()) if discounted.any() else 0.0,
        divergence=divergence,
        overlap=common,
        rare=rare,
    )


def effective(found: SessionTerms, gamma: float) -> tuple[float, Doubles]:
    """How many sessions played by the policy itself the weighted ones are worth: overall, and [T] at each step.

    At step t (Σ w)² / Σ w², over all sessions. Overall the harmonic mean of these, since variances add up, each step
    weighing as much as it matters: γ^t times the share of the policy's sessions that get so far.
    """
    sessions, last = len(found), found.last
    first = mean_weight(found.offsets, found.step, found.weight, last) * sessions
    second = mean_weight(found.offsets, found.step, found.weight**2, last**2) * sessions
    by_step = np.divide(first**2, second, out=np.zeros_like(first), where=second > 0)
    there = np.bincount(found.step, found.weight, minlength=len(first))
    matters = gamma ** np.arange(len(first)) * np.divide(there, first, out=np.zeros_like(first), where=first > 0)
    if not len(first):
        return float(sessions), by_step
    if not matters.sum() > 0:
        return 0.0, by_step
    some = matters > 0
    return float(matters.sum() / (matters[some] / by_step[some]).sum()), by_step


def fit(steps: Trajectories, gamma: float) -> Fit | None:
    """None where Q or V is not known at the logged decisions."""
    if steps.q is None or steps.v is None or not steps.decisions:
        return None
    gap = residual(steps.reward, steps.q, steps.v, steps.step, gamma)
    scale = float(np.abs(steps.q).mean()) or 1.0
    groups = [part for part in np.array_split(np.argsort(steps.q, kind="stable"), GROUPS) if len(part)]
    distance = sum(abs(float(gap[part].mean())) * len(part) for part in groups) / steps.decisions
    return Fit(calibration=distance / scale, drift=abs(float(gap.mean())) / scale)


def above(steps: Trajectories, gamma: float, estimate: float) -> float:
    """By how much an estimate is above what the sessions earned, in shares of what they earned (of its size)."""
    earned = np.bincount(steps.session, gamma**steps.step * steps.reward, minlength=len(steps))
    more, size = estimate - float(earned.mean()), float(np.abs(earned).mean())
    return more / size if size else float(np.sign(more)) * np.inf if more else 0.0


def _overlap(steps: Trajectories) -> float | None:
    """Σ min(π, b) = E_b[min(ρ, 1)]; None without probabilities."""
    if steps.log_pi is None or steps.log_b is None or not steps.decisions:
        return None
    return float(np.exp(np.minimum(steps.log_pi - steps.log_b, 0.0)).mean())


def _divergence(steps: Trajectories) -> float | None:
    """E_π[log π/b] = E_b[ρ log ρ − ρ + 1], whose terms are never below 0; None without probabilities."""
    if steps.log_pi is None or steps.log_b is None or not steps.decisions:
        return None
    log_ratio = np.minimum(steps.log_pi - steps.log_b, BEYOND)
    ratio = np.exp(log_ratio)
    return float((ratio * np.where(ratio > 0, log_ratio, 0.0) - ratio + 1).mean())
