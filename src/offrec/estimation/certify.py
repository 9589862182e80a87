"""Certify how much of the traffic a policy may get: the largest share that is trusted and earns more than the log.

A share β means: the policy makes each decision with probability β, independently, and the policy that wrote the log
makes all others. The probability of a list is then β π + (1 − β) b, so small shares stay close to the log and can be
estimated even if the policy itself cannot.

A share is certified if the estimate of its blend gets the verdict "trust" and the interval of its difference from the
logged reward is above 0, by at least .1 % of the logged reward (smaller gains may be rounding). Ratios of parts of
lists rest on an assumption; their intervals are extended by the bias that the log shows (`assumption_bias`). The
intervals of all trusted shares of all policies hold together with a probability of 95 % (`simultaneous.py`). The
statement about the selected share is therefore as reliable as one about a share that was fixed beforehand.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offrec.errors import InputError
from offrec.estimation.assumption import AssumptionBias, assumption_bias
from offrec.estimation.estimators import get_estimator, session_terms
from offrec.estimation.interval import LEVEL, RESAMPLES
from offrec.estimation.simultaneous import PairedIntervals, simultaneous_intervals
from offrec.estimation.trajectories import Trajectories, blended
from offrec.estimation.verdict import Assessment, assess

SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MIN_GAIN = 1e-3  # relative to the mean absolute reward of a session
LEAST_MEAN_WEIGHT = 0.05  # of a policy alone, expected 1; below it, the log hardly contains the policy's lists
VERDICT_RESAMPLES = 200  # of the bootstrap for a verdict, which only asks whether the interval is bounded


@dataclass(frozen=True)
class Candidate:
    """One share of one policy."""

    share: float
    assessment: Assessment
    intervals: PairedIntervals | None  # simultaneous over all trusted candidates; None if it is not trusted
    min_gain: float = 0.0  # the lower bound of the difference must exceed it

    @property
    def is_trusted(self) -> bool:
        """Whether the verdict is "trust"."""
        return self.intervals is not None

    @property
    def is_certified(self) -> bool:
        """Whether the candidate is trusted and certainly earns more than the log."""
        return self.certain_gain > self.min_gain

    @property
    def certain_gain(self) -> float:
        """Lower bound of the difference from the logged reward; −∞ if the candidate is not trusted."""
        return -np.inf if self.intervals is None else self.intervals.difference.low

    @property
    def divergence(self) -> float:
        """KL(blend ‖ b) per decision in nats: how far the blend is from the log."""
        return self.assessment.support.divergence or 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the share, its verdict and its intervals."""
        return {
            "share": self.share,
            "verdict": self.assessment.verdict,
            "reasons": [reason.code for reason in self.assessment.reasons],
            "divergence": self.divergence,
            "certified": self.is_certified,
            "value": None if self.intervals is None else self.intervals.value.as_json(),
            "difference_to_logging_policy": None if self.intervals is None else self.intervals.difference.as_json(),
        }


@dataclass(frozen=True)
class PolicyCertificate:
    """All shares of one policy, in ascending order."""

    name: str
    estimator: str
    candidates: tuple[Candidate, ...]

    @property
    def certified(self) -> Candidate | None:
        """The largest certified share; None if no share is certified."""
        return next((one for one in reversed(self.candidates) if one.is_certified), None)

    @property
    def largest_trusted(self) -> Candidate | None:
        """The largest trusted share, whether it earns more or not; None if no share is trusted."""
        return next((one for one in reversed(self.candidates) if one.is_trusted), None)


@dataclass(frozen=True)
class Certification:
    """The certificates of all policies on one log."""

    level: float
    logged: float  # what the log earned per session
    policies: tuple[PolicyCertificate, ...]

    @property
    def boldest(self) -> tuple[PolicyCertificate, Candidate] | None:
        """The certified candidate of all policies that is farthest from the log; None if no share is certified."""
        pairs = [(one, candidate) for one in self.policies if (candidate := one.certified) is not None]
        return max(pairs, key=lambda pair: pair[1].divergence, default=None)

    @property
    def best(self) -> tuple[PolicyCertificate, Candidate] | None:
        """The certified candidate with the largest lower bound of its gain; None if no share is certified."""
        pairs = [(one, candidate) for one in self.policies for candidate in one.candidates if candidate.is_certified]
        return max(pairs, key=lambda pair: pair[1].certain_gain, default=None)

    def sentences(self) -> list[str]:
        """Return one sentence per policy and, for several policies, two about the boldest and the best of them."""
        lines = [f"{one.name}: {sentence(one, self.logged)}" for one in self.policies]
        boldest, best = self.boldest, self.best
        if len(self.policies) > 1 and boldest is not None and best is not None:
            lines.append(f"Boldest: {boldest[0].name} with {_percent(boldest[1].share)} of the traffic.")
            lines.append(
                f"Largest certain gain: {best[0].name} with {_percent(best[1].share)} of the traffic, at least "
                f"{_number(best[1].certain_gain)} more than the log."
            )
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return everything that `offrec estimate --certify --json` prints about the shares."""
        chosen = {"boldest": self.boldest, "largest_certain_gain": self.best}
        return {
            "level": self.level,
            "logged": self.logged,
            **{key: pair and {"name": pair[0].name, "share": pair[1].share} for key, pair in chosen.items()},
            "policies": [
                {
                    "name": one.name,
                    "estimator": one.estimator,
                    "certified_share": None if one.certified is None else one.certified.share,
                    "sentence": sentence(one, self.logged),
                    "candidates": [candidate.as_json() for candidate in one.candidates],
                }
                for one in self.policies
            ],
        }


def certify(
    policies: Mapping[str, Trajectories],
    *,
    estimator: str | Mapping[str, str] = "self_normalised",
    shares: Sequence[float] = SHARES,
    gamma: float = 1.0,
    cap: float | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    progress: Callable[[int, int], None] | None = None,
) -> Certification:
    """Certify the largest share of the traffic for each policy.

    Args:
        policies: The trajectories of each policy alone, by name, over the same logged sessions, with log_pi and log_b.
            The propensities must be exact.
        estimator: An estimator without Q, for all policies or by the name of the policy.
        shares: The shares to consider, above 0 and at most 1.
        gamma: Discount per decision.
        cap: Largest weight; None for the estimator's own cap.
        seed: Seed of the bootstrap.
        resamples: Bootstrap resamples of the simultaneous intervals.
        level: Probability that all intervals hold.
        progress: Called after every assessed share with (shares done, total).

    Returns:
        All shares of all policies with their verdicts and intervals.

    Raises:
        InputError: If there are no policies or shares, a share is out of range, the estimator uses Q, or the policies
            have different sessions.

    Example:
        >>> result = certify({"new": trajectories})
        >>> result.policies[0].certified.share
        0.3
    """
    if not policies or not shares:
        raise InputError("Certification needs at least one policy and one share.")
    estimators = dict.fromkeys(policies, estimator) if isinstance(estimator, str) else estimator
    for one_name in estimators.values():
        if get_estimator(one_name).uses_q:
            raise InputError(f"--estimator {one_name} cannot evaluate a blend, so it cannot certify a share; omit it.")
    first = next(iter(policies.values()))
    logged = first.returns(gamma)
    grid = sorted(set(shares))
    assessments, terms = [], []
    biases: list[AssumptionBias] = []
    for name, trajectories in policies.items():
        if len(trajectories) != len(first) or not np.array_equal(trajectories.reward, first.reward):
            raise InputError(f"{name} has other logged sessions than {next(iter(policies))}; certify them separately.")
        own_estimator = estimators[name]
        for share in grid:
            blend = blended(trajectories, share)
            one = assess(
                own_estimator, blend, gamma=gamma, cap=cap, seed=seed, resamples=VERDICT_RESAMPLES, breakdown=False
            )
            assessments.append((name, share, one))
            if one.verdict == "trust":
                terms.append(session_terms(own_estimator, blend, gamma, cap))
                biases.append(assumption_bias(own_estimator, blend, gamma, cap))
            if progress is not None:
                progress(len(assessments), len(grid) * len(policies))
    together = simultaneous_intervals(terms, logged, seed=seed, resamples=resamples, level=level)
    intervals = iter(
        PairedIntervals(bias.widen(pair.value), bias.widen(pair.difference))
        for pair, bias in zip(together, biases, strict=True)
    )
    candidates: dict[str, list[Candidate]] = {name: [] for name in policies}
    min_gain = MIN_GAIN * float(np.abs(logged).mean())
    for name, share, one in assessments:
        pair = next(intervals) if one.verdict == "trust" else None
        candidates[name].append(Candidate(share, one, pair, min_gain))
    certificates = tuple(PolicyCertificate(name, estimators[name], tuple(own)) for name, own in candidates.items())
    return Certification(level, float(logged.mean()), certificates)


def _what_to_log(alone: Candidate) -> str:
    """Return what log would help, given the largest share of a policy."""
    weight = alone.assessment.support.mean_weight
    if alone.share == 1.0 and weight is not None and weight < LEAST_MEAN_WEIGHT:
        return (
            "estimate it from a log that it served itself as a blend: this log hardly contains its lists, and more "
            "exploration would not change that if lists are long"
        )
    return "log with more exploration"


def sentence(certificate: PolicyCertificate, logged: float) -> str:
    """Return what a team may do with a policy, in one sentence."""
    certified, trusted = certificate.certified, certificate.largest_trusted
    if certified is not None and certified.intervals is not None:
        value, difference = certified.intervals.value, certified.intervals.difference
        return (
            f"You may give it {_percent(certified.share)} of the traffic: it will earn between {_number(value.low)} "
            f"and {_number(value.high)} per session, {_number(difference.low)} to {_number(difference.high)} more than "
            f"the log ({_number(logged)})."
        )
    if trusted is None or trusted.intervals is None:
        smallest = certificate.candidates[0]
        reason = smallest.assessment.reasons[0].text if smallest.assessment.reasons else smallest.assessment.verdict
        return (
            f"No share can be certified: even an estimate for {_percent(smallest.share)} of the traffic is not trusted "
            f"({reason}). Test it on a few visitors, or {_what_to_log(certificate.candidates[-1])}."
        )
    value, difference = trusted.intervals.value, trusted.intervals.difference
    interval = (
        f"with {_percent(trusted.share)} of the traffic it would earn between {_number(value.low)} and "
        f"{_number(value.high)} per session"
    )
    if difference.high < 0:
        return (
            f"Do not use it: {interval}, {_number(-difference.high)} to {_number(-difference.low)} less than the log "
            f"({_number(logged)})."
        )
    return (
        f"No share can be certified yet: {interval}, which may be less than the log ({_number(logged)}). "
        "Collect more sessions."
    )


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
