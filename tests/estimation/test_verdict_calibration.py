"""Verdicts are calibrated: intervals with the verdict "trust" contain the exact value at their nominal rate.

The logs have one decision per session and log-normal weights, and the reward of a decision equals its weight. The exact
value is therefore known, and the intervals miss it more often the farther the policy is from the log.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from offrec.estimation import verdict
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import assess

SESSIONS, LOGS = 600, 40
NEAR, FAR = (0.85, 0.65), (0.35, 0.28)  # expected effective share of the sessions
NOMINAL, TOLERANCE = 0.95, 0.05  # about three standard errors of 150 intervals


def logs(share: float) -> Iterator[tuple[Trajectories, float]]:
    """Logs whose weights have the second moment 1 / share, and the exact value E[w²] of the policy."""
    random, variance = np.random.default_rng(0), -np.log(share)
    zeros, offsets = np.zeros(SESSIONS), np.arange(SESSIONS + 1)
    for _ in range(LOGS):
        log_weight = variance**0.5 * random.normal(size=SESSIONS) - variance / 2
        yield Trajectories(offsets, np.exp(log_weight), log_weight, zeros, rare_mass=zeros), 1 / share


def coverage_of_trusted(shares: tuple[float, ...]) -> tuple[float, int]:
    """Share of the trusted intervals that contain the exact value, and the number of trusted intervals."""
    covered = []
    for share in shares:
        for seed, (trajectories, exact) in enumerate(logs(share)):
            for name in ("importance", "self_normalised"):
                one = assess(name, trajectories, seed=seed, resamples=200, breakdown=False)
                if one.verdict == "trust":
                    covered.append(one.interval.low <= exact <= one.interval.high)
    return float(np.mean(covered)), len(covered)


def test_trusted_intervals_contain_the_exact_value_at_the_nominal_rate() -> None:
    coverage, trusted = coverage_of_trusted((*NEAR, *FAR))
    assert trusted >= 100, "a verdict that trusts nothing would pass"
    assert coverage >= NOMINAL - TOLERANCE


def test_a_loosened_limit_breaks_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100 effective sessions instead of 1,000 far from the log, the test above would fail."""
    loosened = [replace(limit, trust=100) if limit.code == "effective_if_far" else limit for limit in verdict.LIMITS]
    monkeypatch.setattr(verdict, "LIMITS", tuple(loosened))
    coverage, _ = coverage_of_trusted((*NEAR, *FAR))
    assert coverage < NOMINAL - TOLERANCE - 0.02
