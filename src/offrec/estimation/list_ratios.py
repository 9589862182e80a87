"""Ratios π / b of parts of a list, which vary less than the ratio of the whole list.

A visitor reacts to a list by one pick or none, and the reaction decides the reward and the next state. If the reaction
does not depend on some property of the list, the ratio may ignore it: its expectation given the rest is enough.

    lists      π(l) / b(l)                                  no assumption
    sets       Σ_σ π(σ l) / Σ_σ b(σ l) over all orders σ    the order within a list does not matter
    prefixes   π(l_1 … l_j) / b(l_1 … l_j), j the pick      visitors read from the first place and stop at their pick
                                                            (cascade; RIPS, McInerney et al. 2020); no pick: all places
    picks      c P_π(i ∈ l) / P_b(i ∈ l), i the pick        see below; no pick: c

Ratios of picks assume a reaction with the probability a_i h(l) for a pick of i and h(l) for none, as in a logit with
h(l) = 1 / (1 + Σ_{j ∈ l} a_j). This is not sufficient: they are exact if E_π[h | i ∈ l] = c E_b[h | i ∈ l] for every
item i, and E_π[h] = c E_b[h]. Policies that show an item next to more attractive ones than b does violate this. Ratios
of picks are biased even for lists of one item, where h(l) depends on the item itself.

The constant c gives the ratios of picks the mean 1 over the decisions of the log.

All lists are sampled without replacement from a softmax (Plackett–Luce). `sets` sums over the subsets of a list instead
of its orders: 2^k terms. Inclusion probabilities use exponential clocks: item i is in the list if its clock, with rate
p_i, rings before a common time τ. With Σ_i (1 − e^{−p_i τ}) = k, P(i ∈ l) ≈ 1 − e^{−p_i τ} (Rosén 1997).
For lists of two and standard normal logits, the largest relative error of 20 catalogues was 11 % with 10 items, 6 %
with 100 and 2 % with 1,000.
"""

import numpy as np
import torch
from torch import Tensor

from offrec.errors import InputError
from offrec.estimation.trajectories import MAX_LOG_WEIGHT
from offrec.types import Doubles

MAX_SET = 12  # items of a list whose orders are summed
NEWTON_STEPS = 40
TOLERANCE = 1e-6


def prefix_log_ratio(log_pi: Tensor, log_b: Tensor, place: Tensor) -> Tensor:
    """[D] log ratio of the list up to the pick.

    Args:
        log_pi: [D, k] log-probability of each item given the items before it, under π.
        log_b: [D, k] the same under b.
        place: [D] place of the pick, 0 for the first; k or −1 if nothing was picked.
    """
    k = log_pi.shape[1]
    last = torch.where((place < 0) | (place >= k), k - 1, place)
    return (log_pi - log_b).cumsum(1).gather(1, last[:, None])[:, 0]


def set_log_prob(z: Tensor, others: Tensor) -> Tensor:
    """[D] log-probability of a list in any order.

    Args:
        z: [D, k] logits of the items of the list.
        others: [D] logsumexp of the logits of all other items.

    Raises:
        InputError: If lists have more than 12 items.
    """
    k = z.shape[1]
    if k > MAX_SET:
        raise InputError(f"Ratios of sets need lists of at most {MAX_SET} items; got {k}.")
    z, others = z.double(), others.double()
    reached: list[Tensor] = [torch.zeros_like(others)] + [torch.full_like(others, -torch.inf)] * (2**k - 1)
    for members in range(2**k - 1):
        outside = [place for place in range(k) if not members >> place & 1]
        # The sum of what is left; 1 minus the sum of the members would cancel if the members have almost all of it.
        log_left = torch.cat([z[:, outside], others[:, None]], 1).logsumexp(1)
        for place in outside:
            following = reached[members] + z[:, place] - log_left
            reached[members | 1 << place] = torch.logaddexp(reached[members | 1 << place], following)
    return reached[-1]


def inclusion(logits: Tensor, k: int) -> Tensor:
    """[B, A] probability of each item to be in a list of k items sampled without replacement; approximate for k > 1.

    Args:
        logits: [B, A] logits of the softmax.
        k: Items per list.
    """
    p = logits.double().softmax(1)
    return p if k == 1 else -torch.expm1(-p * inclusion_time(p, k))


def inclusion_time(p: Tensor, k: int, tolerance: float = TOLERANCE) -> Tensor:
    """[B, 1] the time τ at which k of the clocks with the rates p [B, A] have rung, in expectation."""
    time, negative = torch.full_like(p[:, :1], float(k)), -p
    for _ in range(NEWTON_STEPS):  # the sum is concave in the time, so the steps approach the root from below
        waiting = (negative * time).exp_()
        missing = waiting.sum(1, keepdim=True) - (p.shape[1] - k)
        if bool((missing < tolerance).all()):
            break
        time = time - missing.clamp(min=0) / waiting.mul_(negative).sum(1, keepdim=True)
    return time


def pick_log_ratio(pi: Tensor, b: Tensor, pick: Tensor) -> Tensor:
    """[B] log of P_π(i ∈ l) / P_b(i ∈ l) for the pick i, 0 if nothing was picked; `with_mean_1` adds log c.

    Args:
        pi: [B, A] inclusion probabilities under π.
        b: [B, A] inclusion probabilities under b.
        pick: [B] the pick; −1 if nothing was picked.
    """
    items = pick.clamp(min=0)[:, None]
    ratio = pi.gather(1, items).log() - b.gather(1, items).log()
    return torch.where(pick >= 0, ratio[:, 0], 0.0)


def with_mean_1(log_ratio: Doubles) -> Doubles:
    """Scale ratios [D] so that their mean over the decisions of the log is 1."""
    mean = float(np.exp(np.minimum(log_ratio, MAX_LOG_WEIGHT)).mean()) if len(log_ratio) else 1.0
    return log_ratio - np.log(mean) if mean > 0 else log_ratio
