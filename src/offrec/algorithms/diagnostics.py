"""Diagnostics that all learners share: one number per transition."""

import math

import torch
from torch import Tensor

from offrec.algorithms.symbols import LossTerms
from offrec.catalogue import Head, log_prob, logsumexp, reduce, top_k
from offrec.catalogue.head import ALL_MASKED

RARE = 1e-4  # items with a lower probability under the logging policy have too little data in the log
LIST_LENGTH = 10  # a ranking that is not a distribution is represented by its first items


@torch.no_grad()
def critic_diagnostics(q: Head, logged: Tensor, others: Tensor) -> LossTerms:
    """Return Q of the logged items [B, 1] and of random items [B, n]. Q above the logged returns is overestimated."""
    return {"~q_logged": q.at(logged)[:, 0], "~q_random": q.at(others).mean(1)}


@torch.no_grad()
def policy_diagnostics(pi: Head, b: Head | None) -> LossTerms:
    """Return the entropy of π and, if π̂_b is given, KL(π‖π̂_b) and the mass of π on items with π̂_b < 10⁻⁴."""
    if b is None:
        sums = reduce(pi, [(1.0, pi)])
        return {"~entropy": sums.lse - sums.mean}
    log_b = logsumexp(b)
    sums = reduce(pi, [(1.0, pi)], below=(b, log_b + math.log(RARE)))
    mean_log_b = reduce(pi, [(1.0, b)]).mean - log_b
    entropy = sums.lse - sums.mean
    return {"~entropy": entropy, "~kl_to_logging": -entropy - mean_log_b, "~rare": sums.mass}


@torch.no_grad()
def ranking_diagnostics(ranking: Head, b: Head) -> LossTerms:
    """Return the diagnostics of `policy_diagnostics` for a ranking that is not a distribution.

    They are those of the uniform policy over its first ten items, or over all unmasked items if there are fewer.
    """
    values, items = top_k(ranking, min(LIST_LENGTH, ranking.n_items))
    allowed = (values > ALL_MASKED).to(values.dtype)
    length = allowed.sum(1)
    log_b = log_prob(b, items)
    mean_log_b = (allowed * log_b).sum(1) / length
    rare = (allowed * (log_b <= math.log(RARE))).sum(1) / length
    return {"~entropy": length.log(), "~kl_to_logging": -length.log() - mean_log_b, "~rare": rare}
