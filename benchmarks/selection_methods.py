"""Two published ways to choose from a log alone: among candidates of Q, and among estimators.

BVFT (Xie & Jiang 2021; for several policies Zhang & Jiang 2021) compares candidates of Q^π pairwise. It divides the
logged decisions into groups in which both candidates are nearly constant, and fits the target r + γ V_i(s′) by the mean
of each group. The exact Q is such a piecewise constant function, up to the width of the groups:

    E(i | j) = sqrt(mean (Q_i − mean of r + γ V_i(s′) over the group)²),     loss_i = max_j E(i | j)

SLOPE (Su et al. 2020) orders estimators from small bias to small variance and accepts them as long as their intervals
have a common point. The last accepted one is used.
"""

from collections.abc import Sequence

import numpy as np

from offrec.estimation.interval import Interval
from offrec.types import Doubles

BINS = 10  # of each candidate, of equal width between its 2 % and 98 % quantiles


def bvft_losses(q: Sequence[Doubles], targets: Sequence[Doubles], bins: int = BINS) -> Doubles:
    """[N] loss of each candidate.

    Args:
        q: [D] Q_i(s, a) of the logged decisions, for each candidate.
        targets: [D] r + γ V_i(s′), for each candidate.
        bins: The number of bins per candidate.
    """
    codes = [_bins(one, bins) for one in q]
    losses = np.zeros(len(q))
    for i, (own, target) in enumerate(zip(q, targets, strict=True)):
        for code in codes:
            group = np.unique(codes[i] * bins + code, return_inverse=True)[1]
            mean = np.bincount(group, target) / np.bincount(group)
            losses[i] = max(losses[i], float(np.sqrt(np.mean((own - mean[group]) ** 2))))
    return losses


def _bins(values: Doubles, bins: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    low, high = np.quantile(values, [0.02, 0.98])
    return np.asarray(((values - low) / max(high - low, 1e-12) * bins).astype(np.int64).clip(0, bins - 1))


def slope_choice(intervals: Sequence[Interval]) -> int:
    """Return the number of the estimator that SLOPE uses.

    Args:
        intervals: The interval of each estimator, from the smallest bias to the smallest variance.
    """
    low, high, accepted = -np.inf, np.inf, 0
    for number, one in enumerate(intervals):
        low, high = max(low, one.low), min(high, one.high)
        if low > high:
            break
        accepted = number
    return accepted
