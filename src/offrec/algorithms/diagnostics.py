"""Diagnostics that are the same for all learners: one number per transition."""

import math

import torch
from torch import Tensor

from offrec.algorithms.symbols import LossTerms
from offrec.catalogue import Head, log_prob, logsumexp, reduce, top_k
from offrec.catalogue.head import ALL_MASKED

RARE = 1e-4  # the log has too little data on items with a lower probability under the logging policy
SHOWN = 10  # items that stand for a ranking that is not a distribution


@torch.no_grad()
def of_critic(q: Head, logged: Tensor, others: Tensor) -> LossTerms:
    """Q of the logged items [B, 1] and of random items [B, n]. Q above the logged returns is an over-estimate."""
    return {"~q_logged": q.at(logged)[:, 0], "~q_random": q.at(others).mean(1)}


@torch.no_grad()
def of_policy(pi: Head, b: Head | None) -> LossTerms:
    """Entropy of π and, if π̂_b is given, KL(π‖π̂_b) and the mass of π on items with π̂_b < 10⁻⁴."""
    if b is None:
        found = reduce(pi, [(1.0, pi)])
        return {"~entropy": found.lse - found.mean}
    log_b = logsumexp(b)
    found = reduce(pi, [(1.0, pi)], below=(b, log_b + math.log(RARE)))
    across = reduce(pi, [(1.0, b)]).mean - log_b
    entropy = found.lse - found.mean
    return {"~entropy": entropy, "~kl_to_logging": -entropy - across, "~rare": found.mass}


@torch.no_grad()
def of_ranking(ranked: Head, b: Head) -> LossTerms:
    """The same for a ranking that is not a distribution: for the uniform policy over its top ten items.

    The policy has fewer items if fewer may be ranked.
    """
    values, items = top_k(ranked, min(SHOWN, ranked.n_items))
    allowed = (values > ALL_MASKED).to(values.dtype)
    shown = allowed.sum(1)
    log_b = log_prob(b, items)
    across = (allowed * log_b).sum(1) / shown
    rare = (allowed * (log_b <= math.log(RARE))).sum(1) / shown
    return {"~entropy": shown.log(), "~kl_to_logging": -shown.log() - across, "~rare": rare}
