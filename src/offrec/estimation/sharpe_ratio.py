"""SharpeRatio@k: how much an estimator's k best policies promise, relative to how much they differ.

    SharpeRatio@k = (best@k − V_b) / std@k        (Kiyohara et al. 2024)

The k policies with the largest estimates would be tried in an A/B test. best@k is the largest value among them, std@k
is the standard deviation of their values (with divisor k), and V_b is the value of the logging policy. An estimator is
efficient if its candidates contain a good policy and none that is much worse.

Unlike the paper: with ground truth, values are true; in an estimate from a log, they are the estimates themselves, so
that the ratio says what the estimator promises.
"""

from collections.abc import Sequence

import numpy as np

from offrec.errors import InputError

LARGEST = 10  # largest k of an estimate


def sharpe_ratio(estimates: Sequence[float], values: Sequence[float], logged: float, k: int) -> float | None:
    """Compute SharpeRatio@k of an estimator.

    Args:
        estimates: The estimate of each policy, by which they are chosen.
        values: The value of each policy.
        logged: The value of the logging policy.
        k: The number of policies that are chosen, from 2 to their number.

    Returns:
        The ratio; None if the chosen policies have the same value. It is negative if none is better than the log.

    Raises:
        InputError: If k is out of range or the numbers of estimates and values differ.

    Example:
        >>> sharpe_ratio([3.0, 1.0, 2.0], [2.0, 5.0, 4.0], logged=1.0, k=2)
        3.0
    """
    if len(estimates) != len(values) or not 2 <= k <= len(estimates):
        raise InputError(
            f"k is {k} for {len(estimates)} estimates and {len(values)} values; k must be between 2 and their number, "
            "which must be the same."
        )
    chosen = np.asarray(values, float)[np.argsort(-np.asarray(estimates, float), kind="stable")[:k]]
    spread = float(chosen.std())
    return (float(chosen.max()) - logged) / spread if spread > 0 else None


def sharpe_ratios(estimates: Sequence[float], values: Sequence[float], logged: float) -> dict[int, float | None]:
    """Return SharpeRatio@k for each k from 2 to the number of policies, at most 10; empty for fewer than two."""
    return {k: sharpe_ratio(estimates, values, logged, k) for k in range(2, min(LARGEST, len(estimates)) + 1)}
