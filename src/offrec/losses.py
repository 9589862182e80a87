"""The paper's equations: pure functions, one number per transition. What the paper holds fixed is detached here, at
the point of use.
"""

from torch import Tensor


def negative_log_likelihood(log_pi: Tensor) -> Tensor:
    """L_S = −log π(a|s)        paper, Eq. (S)"""
    return -log_pi
