"""Diagnostics of an estimate: how much the log supports a policy, and how well a fitted Q matches the log."""

from dataclasses import dataclass, replace

import numpy as np

from offrec.estimation.estimators import (
    SessionTerms,
    contributions,
    get_estimator,
    mean_weight,
    td_residual,
    terms_of,
)
from offrec.estimation.tail import tail_shape
from offrec.estimation.trajectories import MAX_LOG_WEIGHT, Trajectories
from offrec.types import Doubles

GROUPS = 10
MIN_SPREAD = 1.5  # of the largest contributions; nearly equal ones, as of small shares, may have any shape


@dataclass(frozen=True)
class Support:
    """Diagnostics of how well the log supports a policy, from the uncapped weights; None if there are no weights."""

    sessions: int
    decisions: int
    effective_sessions: float | None  # number of on-policy sessions with the same information
    effective_sessions_by_step: tuple[float, ...]
    largest_weight: float | None
    mean_weight: float | None  # mean of the last weights; expected 1 if the log contains all of the policy's choices
    mean_weight_error: float | None  # its standard error
    tail_shape: float | None  # Pareto shape k of the last weights; from 1/2 on their variance is infinite
    contribution_tail_shape: float | None  # the same for the absolute contributions of sessions to the estimate
    capped_share: float | None  # share of the decisions whose weight was capped
    cut_weight: float | None  # share of the discounted weight that the cap removed
    divergence: float | None  # KL(π ‖ b) per decision in nats, at the logged states
    overlap: float | None  # Σ min(π, b) over lists at the logged states; 1 if both policies are the same
    rare_share: float | None  # share of the policy's choices that are rare under the logging policy


@dataclass(frozen=True)
class QCalibration:
    """Diagnostics of how closely Q(s, a) equals r + γ V(s′) at the logged decisions, relative to the mean |Q|."""

    error: float  # mean absolute residual over ten groups of equal size, sorted by Q
    bias: float  # absolute mean residual over all decisions


def compute_support(name: str, trajectories: Trajectories, gamma: float, cap: float) -> Support:
    """Compute the support diagnostics of the estimator `name`; `cap` is the cap in use."""
    rare = trajectories.rare_mass
    rare_share = None if rare is None or not trajectories.decisions else float(rare.mean())
    divergence, overlap = _divergence(trajectories), _overlap(trajectories)
    sessions, decisions = len(trajectories), trajectories.decisions
    if not get_estimator(name).uses_weights:
        unknown = (None,) * 7
        return Support(sessions, decisions, None, (), *unknown, divergence, overlap, rare_share)
    used = replace(get_estimator(name), uses_q=False, is_normalised=False, is_capped=False)
    terms = terms_of(used, trajectories, gamma, None)
    overall, by_step = effective_sessions(terms, gamma)
    discounted = gamma**trajectories.step * terms.weight
    capped = gamma**trajectories.step * np.minimum(terms.weight, cap)
    return Support(
        sessions=sessions,
        decisions=decisions,
        effective_sessions=overall,
        effective_sessions_by_step=tuple(by_step.tolist()),
        largest_weight=float(terms.weight.max(initial=0.0)),
        mean_weight=float(terms.last_weight.mean()),
        mean_weight_error=float(terms.last_weight.std() / sessions**0.5),
        tail_shape=tail_shape(terms.last_weight),
        contribution_tail_shape=tail_shape(np.abs(contributions(terms)), MIN_SPREAD),
        capped_share=float((terms.weight > cap).mean()) if decisions else 0.0,
        cut_weight=1 - float(capped.sum() / discounted.sum()) if discounted.any() else 0.0,
        divergence=divergence,
        overlap=overlap,
        rare_share=rare_share,
    )


def effective_sessions(terms: SessionTerms, gamma: float) -> tuple[float, Doubles]:
    """Return the effective sample size in sessions: overall, and at each step [T].

    At step t it is (Σ w)² / Σ w² over all sessions. The overall value is the harmonic mean, because variances add up.
    Step t is weighted by γ^t times the share of the policy's sessions that reach it.
    """
    sessions, last = len(terms), terms.last_weight
    first = mean_weight(terms.offsets, terms.step, terms.weight, last) * sessions
    second = mean_weight(terms.offsets, terms.step, terms.weight**2, last**2) * sessions
    by_step = np.divide(first**2, second, out=np.zeros_like(first), where=second > 0)
    running = np.bincount(terms.step, terms.weight, minlength=len(first))
    share = np.divide(running, first, out=np.zeros_like(first), where=first > 0)
    importance = gamma ** np.arange(len(first)) * share
    if not len(first):
        return float(sessions), by_step
    if not importance.sum() > 0:
        return 0.0, by_step
    positive = importance > 0
    return float(importance.sum() / (importance[positive] / by_step[positive]).sum()), by_step


def calibrate_q(trajectories: Trajectories, gamma: float) -> QCalibration | None:
    """Compare Q with the rewards and values that followed; None if Q or V is unknown."""
    q, v = trajectories.q, trajectories.v
    if q is None or v is None or not trajectories.decisions:
        return None
    residual = td_residual(trajectories.reward, q, v, trajectories.step, gamma)
    scale = float(np.abs(q).mean()) or 1.0
    groups = [group for group in np.array_split(np.argsort(q, kind="stable"), GROUPS) if len(group)]
    distance = sum(abs(float(residual[group].mean())) * len(group) for group in groups) / trajectories.decisions
    return QCalibration(error=distance / scale, bias=abs(float(residual.mean())) / scale)


def excess_over_log(trajectories: Trajectories, gamma: float, estimate: float) -> float:
    """Return (estimate − logged return) / mean |logged return|."""
    returns = trajectories.returns(gamma)
    excess, scale = estimate - float(returns.mean()), float(np.abs(returns).mean())
    return excess / scale if scale else float(np.sign(excess)) * np.inf if excess else 0.0


def _overlap(trajectories: Trajectories) -> float | None:
    """Return Σ min(π, b) = E_b[min(ρ, 1)], or None if there are no probabilities."""
    log_ratio = _log_ratio(trajectories)
    return None if log_ratio is None else float(np.exp(np.minimum(log_ratio, 0.0)).mean())


def _divergence(trajectories: Trajectories) -> float | None:
    """Return E_π[log π/b] = E_b[ρ log ρ − ρ + 1], or None if there are no probabilities. No term is negative."""
    log_ratio = _log_ratio(trajectories)
    if log_ratio is None:
        return None
    log_ratio = np.minimum(log_ratio, MAX_LOG_WEIGHT)
    ratio = np.exp(log_ratio)
    return float((ratio * np.where(ratio > 0, log_ratio, 0.0) - ratio + 1).mean())


def _log_ratio(trajectories: Trajectories) -> Doubles | None:
    if trajectories.log_pi is None or trajectories.log_b is None or not trajectories.decisions:
        return None
    return trajectories.log_pi - trajectories.log_b
