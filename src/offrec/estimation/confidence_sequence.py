r"""Confidence sequences: intervals for a mean that are valid at all sample sizes at once.

Robbins' normal mixture. Let S_t be a sum of t independent centred normal variables of variance 1. For every λ,
exp(λ S_t − λ² t / 2) is a martingale with mean 1. So is its mean over λ ~ N(0, ρ²):

    M_t = exp(ρ² S_t² / (2 (t ρ² + 1))) / sqrt(t ρ² + 1)

By Ville's inequality, P(there is a t with M_t ≥ 1 / α) ≤ α. Solved for S_t, with probability 1 − α, for all t,

    |S_t| / t < sqrt(2 (t ρ² + 1) / (t² ρ²) · log(sqrt(t ρ² + 1) / α))

For other variables with a finite variance, the same interval with the estimated standard deviation is an asymptotic
confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, "Time-uniform central limit theory and
asymptotic confidence sequences"): its error probability over all t ≥ m tends to α as m grows.
"""

import math
from dataclasses import dataclass

import numpy as np

from offrec.types import Doubles, Longs


@dataclass(frozen=True)
class ConfidenceSequence:
    """Means and their intervals after 1, 2, … values."""

    mean: Doubles  # [n]
    radius: Doubles  # [n] half of the length of the interval


def asymptotic_confidence_sequence(values: Doubles, alpha: float, planned: float) -> ConfidenceSequence:
    """Compute the confidence sequence of a mean.

    Args:
        values: [n] or [..., n] values in the order in which they arrived.
        alpha: The probability that the interval misses the mean at any time.
        planned: The number of values at which the interval is narrowest. Choose it before looking at the values.
    """
    count = np.arange(1, values.shape[-1] + 1, dtype=np.float64)
    mean = np.cumsum(values, -1) / count
    variance = np.maximum(np.cumsum(values**2, -1) / count - mean**2, 0.0)
    return ConfidenceSequence(mean, np.sqrt(variance) * boundary(count, alpha, planned))


def boundary(count: Doubles, alpha: float, planned: float) -> Doubles:
    """[n] the half-length of the interval after `count` values of variance 1."""
    # ρ that minimises the boundary at `planned`, up to terms of lower order (from the paper cited above)
    rho_squared = (-2 * math.log(alpha) + math.log(1 - 2 * math.log(alpha))) / planned
    grown = count * rho_squared + 1
    radius: Doubles = np.sqrt(2 * grown / (count**2 * rho_squared) * np.log(np.sqrt(grown) / alpha))
    return radius


def difference_terms(rewards: Doubles, treated: Longs, share: Doubles) -> Doubles:
    """Return values whose mean estimates the difference of two arms, for sessions assigned with known probabilities.

        f_i = m1_i − m0_i + A_i (Y_i − m1_i) / p_i − (1 − A_i) (Y_i − m0_i) / (1 − p_i)

    m1_i and m0_i are the means of the earlier sessions of each arm. They are known before session i, and p_i is exact,
    so f_i has the difference of the arms as its expected value, whatever happened before. As the means converge, the
    variance of f_i becomes that of a difference of means.

    Args:
        rewards: [..., n] Y, by the start of the session.
        treated: [..., n] A: 1 in the second arm, 0 in the first.
        share: [..., n] p, the probability of the second arm.
    """
    one = treated.astype(np.float64)
    zero: Doubles = 1.0 - one
    mean_1, mean_0 = _mean_before(rewards, one), _mean_before(rewards, zero)
    terms: Doubles = mean_1 - mean_0 + one * (rewards - mean_1) / share - zero * (rewards - mean_0) / (1 - share)
    return terms


def _mean_before(rewards: Doubles, is_in_arm: Doubles) -> Doubles:
    """[..., n] the mean reward of the earlier sessions of an arm; 0 if there are none."""
    total = np.cumsum(rewards * is_in_arm, -1) - rewards * is_in_arm
    count = np.cumsum(is_in_arm, -1) - is_in_arm
    mean: Doubles = total / np.maximum(count, 1.0)
    return mean
