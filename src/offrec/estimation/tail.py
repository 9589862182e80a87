"""The tail of importance weights: how heavy it is, as the shape k of a generalised Pareto distribution.

    P(w − u > x | w > u) = (1 + k x / σ)^(−1/k)        for weights above a threshold u

With k ≥ 1/2 the weights have no finite variance, with k ≥ 1 no finite mean. Sums of such weights converge slowly, and
their standard errors are too small. Vehtari et al. (2024, "Pareto smoothed importance sampling") accept k < 0.7.

The fit is that of Zhang & Stephens (2009): the posterior mean over a grid of θ = −k / σ, whose k follows from θ by
maximum likelihood. A weak prior moves k towards 1/2, with the weight of ten observations, as in PSIS.
"""

import numpy as np

from offrec.types import Doubles

TAIL_SHARE = 0.2  # largest share of the weights that belongs to the tail
MIN_TAIL = 5  # weights above the threshold; with fewer the shape is unknown
ROUNDING = 1e-4  # relative distance within which weights are equal
PRIOR_SHAPE, PRIOR_WEIGHT = 0.5, 10.0


def tail_shape(weights: Doubles, min_spread: float = 1.0) -> float | None:
    """Estimate the Pareto shape k of the largest weights.

    Args:
        weights: [S] weights of sessions, not negative.
        min_spread: Smallest ratio of the largest weight to the threshold; below it the weights count as nearly equal.

    Returns:
        The shape; None if the largest weights are nearly all equal, or if there are fewer than 25 weights.

    Example:
        >>> tail_shape(np.random.default_rng(0).pareto(2.0, 100_000))  # the shape is 1/2
        0.49...
    """
    size = int(min(TAIL_SHARE * len(weights), 3 * len(weights) ** 0.5))
    if size < MIN_TAIL:
        return None
    largest = np.sort(weights)[-size - 1 :]
    if largest[-1] < min_spread * largest[0]:
        return None
    excess = largest[1:] - largest[0]
    excess = excess[excess > ROUNDING * largest[0]]  # others equal the threshold
    if len(excess) < MIN_TAIL:
        return None
    shape = fit_pareto(excess)[0]
    return (len(excess) * shape + PRIOR_WEIGHT * PRIOR_SHAPE) / (len(excess) + PRIOR_WEIGHT)


def fit_pareto(excess: Doubles) -> tuple[float, float]:
    """Fit a generalised Pareto distribution to sorted positive values, and return its shape k and scale σ."""
    size = len(excess)
    points = 30 + int(size**0.5)
    quarter = excess[int(size / 4 + 0.5) - 1]
    theta = 1 / excess[-1] + (1 - (points / (np.arange(1, points + 1) - 0.5)) ** 0.5) / (3 * quarter)
    theta = theta[theta != 0]  # 0 / 0 below; the other points are dense enough
    shape = np.log1p(-theta[:, None] * excess).mean(1)
    log_likelihood = size * (np.log(-theta / shape) - shape - 1)
    weight = np.exp(log_likelihood - log_likelihood.max())
    mean_theta = float((theta * weight).sum() / weight.sum())
    fitted = float(np.log1p(-mean_theta * excess).mean())
    return fitted, -fitted / mean_theta
