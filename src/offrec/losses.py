"""The paper's equations as pure functions that return one number per transition.

Tensors that the paper treats as constants are detached at the point of use. A head is a function over the catalogue
(`catalogue/head.py`). [B] is one number per row; [B, 1 + n] has one for the logged item and one for each of n unlogged
items. Equations are referred to by their labels in the paper's LaTeX source.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from offrec.catalogue import Head, Noise, gumbel_softmax, logsumexp, maximum, reduce
from offrec.catalogue.head import Linear
from offrec.catalogue.reduction import reduce_with_detached
from offrec.catalogue.shard import sum_over_batch

Prior = Head | Literal["uniform"] | None


def batch_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the weighted mean over the rows [B], or the plain mean without weights. Padding has weight 0."""
    return values.mean() if weight is None else sum_over_batch((weight * values).sum())


def negative_log_likelihood(log_pi: Tensor) -> Tensor:
    """L_S = −log π(a|s)        paper, Eq. (S); also SR's regulariser, Eq. (Rsr)"""
    return -log_pi


def add_mass(log_pi: Tensor, mass: Tensor, total: Tensor) -> Tensor:
    """log π′(a) for π′ = (π + m) / (1 + Σ m), [B]. `mass` is log m(a), `total` is log Σ m."""
    return torch.logaddexp(log_pi, mass) - torch.logaddexp(torch.zeros_like(total), total)


def weighted_likelihood(log_pi: Tensor, weight: Tensor) -> Tensor:
    """−sg[w] log π(a|s)        paper, final objective of §Policy Constraints; REINFORCE if w contains G"""
    return -weight.detach() * log_pi


def td(
    q: Tensor, rewards: Tensor, discounts: Tensor, next_value: Tensor, value_if_ignored: Tensor | None = None
) -> Tensor:
    """(Q(s,a) − sg[r + discount · V])², [B, 1 + n]        paper, Eq. (Q), (SQ); L_Q of §Q-learning

    In column 0, the logged item, V is `next_value` [B], the value of s′. In the other columns, the unlogged items, V is
    `value_if_ignored` [B], the value of s: an ignored item leaves the state unchanged.

    Unlike the paper: its soft targets omit γ although its MDP has one; here γ is part of `discount`. For random
    transitions, its message recursion has log E exp(V/α) and its squared loss has E[V]; this function uses E[V].
    """
    if not q.shape == rewards.shape == discounts.shape or next_value.shape != q.shape[:1]:
        shapes = [tuple(t.shape) for t in (q, rewards, discounts, next_value)]
        raise ValueError(f"q, rewards, discounts and next_value have shapes {shapes}; expected [B, 1 + n] × 3 and [B]")
    values = next_value[:, None]
    if value_if_ignored is not None:
        values = torch.cat([values, value_if_ignored[:, None].expand(-1, q.shape[1] - 1)], 1)
    return (q - (rewards + discounts * values).detach()).square()


def mix_logged_return(next_value: Tensor, next_return_to_go: Tensor, share: float) -> Tensor:
    """(1 − λ) V(s′) + λ G′ [B], the value in the target of `td`. G′ is the logged return after the step.

    Unlike the paper: its targets contain only V, whose errors accumulate. The logged return estimates the value of the
    logging policy without such errors and anchors the critic to the log. The paper has λ = 0.
    """
    return next_value if share == 0 else (1 - share) * next_value + share * next_return_to_go


def grounded(errors: Tensor, weight: float) -> Tensor:
    """error(logged) + weight · mean error(unlogged): [B, 1 + n] → [B].

    Unlike the paper: its critic is never trained on an unlogged item, so maximising Q over the catalogue maximises
    noise. The paper has n = 0.
    """
    return errors[:, 0] if errors.shape[1] == 1 else errors[:, 0] + weight * errors[:, 1:].mean(1)


@dataclass(frozen=True)
class Sample:
    """A Gumbel-softmax sample that replaces the exact E_π."""

    noise: Noise
    temperature: float = 1.0
    hard: bool = False  # straight-through: the value of the sampled item, the gradient of the soft sample


def expectation(pi: Head, linear: Linear, sample: Sample | None, prior: Head | None) -> tuple[Tensor, Tensor, Tensor]:
    """E_π[Σ cᵢ zᵢ(a)], log Σ exp z_π and the detached log Σ exp z_prior (0 without a prior), [B] each.

    Unlike the paper: its Gumbel-softmax formula takes the logarithm of a logit; here the noise is added to the
    log-probabilities.
    """
    if sample is None:
        exact, detached = reduce_with_detached(pi, linear, normalised=prior)
        return exact.mean, exact.lse, detached.lse
    mean = gumbel_softmax(pi, linear, temperature=sample.temperature, noise=sample.noise, hard=sample.hard)
    return mean, logsumexp(pi), torch.zeros_like(mean) if prior is None else logsumexp(prior.detach())


def soft_value(pi: Head, q: Head, alpha: float, prior: Prior = None, sample: Sample | None = None) -> Tensor:
    """V(s) = E_π[Q(s,a) − α (log π(a|s) − log prior(a|s))]        paper, Eq. (Q), (DC); −V/α: Eq. (pi), (DCPi)

    This is the value in the critic's target and the actor's objective. The head of a prior is detached.

    Unlike the paper: its SDAC drops the uniform prior (`prior=None`), so every step earns up to α log|A| for its
    entropy alone. `prior="uniform"` removes that bonus.
    """
    mean, lse, prior_lse = expectation(pi, _soft_terms(pi, q, alpha, prior), sample, _detached_head(prior))
    return mean + alpha * lse - alpha * _log_normaliser(prior, prior_lse, pi)


def soft_values(pi: Head, q: Head, target_q: Head, alpha: float, prior: Prior = None) -> tuple[Tensor, Tensor]:
    """Compute `soft_value` of `q` and the detached `soft_value` of `target_q` in one pass over the catalogue."""
    linear, target_linear = _soft_terms(pi, q, alpha, prior), _soft_terms(pi, target_q, alpha, prior)
    sums, detached = reduce_with_detached(pi, linear, target_linear, _detached_head(prior))
    normaliser, prior_normaliser = alpha * sums.lse, alpha * _log_normaliser(prior, detached.lse, pi)
    return sums.mean + normaliser - prior_normaliser, detached.mean + normaliser.detach() - prior_normaliser


def _soft_terms(pi: Head, q: Head, alpha: float, prior: Prior) -> list[tuple[float, Head]]:
    """Return the terms of Q − α (z_π − z_prior)."""
    terms = [(1.0, q), (-alpha, pi)]
    return [*terms, (alpha, prior.detach())] if isinstance(prior, Head) else terms


def _detached_head(prior: Prior) -> Head | None:
    return prior.detach() if isinstance(prior, Head) else None


def _log_normaliser(prior: Prior, lse: Tensor, pi: Head) -> Tensor | float:
    return lse if isinstance(prior, Head) else math.log(pi.n_items) if prior == "uniform" else 0.0


def greedy_value(q: Head, chosen_by: Head | None = None) -> Tensor:
    """max_a Q̄(s,a)        paper, y of §Q-learning; with `chosen_by`, Q̄ at the argmax of that head (double Q)"""
    if chosen_by is None:
        return maximum(q)[0]
    return q.at(maximum(chosen_by)[1][:, None])[:, 0]


def outside_support(pi: Head, b: Head, delta: float) -> Tensor:
    """Σ_{a: π̂_b(a|s) ≤ δ} π(a|s)        paper, Eq. (SC)

    Unlike the paper: the penalty is added; the paper's minus sign would reward leaving the support. The comparison uses
    logarithms because probabilities underflow.
    """
    return reduce(pi, below=(b, (logsumexp(b) + math.log(delta)).detach())).mass


def forward_kl(log_pi: Tensor, log_b: Tensor | None = None) -> Tensor:
    """Contribution of one transition to KL(π_b‖π) = E_b[log π_b − log π]        paper, Eq. (ac)

    Without `log_b`, the entropy of π_b is assumed to be 0, as in the paper, which uses L_S as the KL. The result is
    then an upper bound that never falls below a small ε.
    Unlike the paper: with `log_b`, the result estimates the KL itself.
    """
    return -log_pi if log_b is None else log_b.detach() - log_pi


def dual_step(multiplier: Tensor, constraint: Tensor, bound: float, rate: float) -> Tensor:
    """β ← max(0, β + η (KL − ε))        paper, the min–max of §Supervised Regularization

    Unlike the paper: it prints −β(KL − ε); maximising that over β does not enforce KL ≤ ε.
    """
    return (multiplier + rate * (constraint - bound)).clamp(min=0.0)


def exponential_weight(q: Tensor, beta: float, cap: float, baseline: Tensor | None = None) -> Tensor:
    """min(exp((Q(s,a) − V(s)) / β), cap)        paper, −w_t of §Policy Constraints, without V and cap

    Unlike the paper: the weight is capped, because one large Q would dominate the batch. V(s) is an optional baseline
    that replaces the normaliser E_b[exp(Q/β)] of each state, which the paper drops.
    """
    advantage = q if baseline is None else q - baseline
    return (advantage / beta).clamp(max=math.log(cap)).exp().detach()


def importance_weight(log_pi: Tensor, log_b: Tensor, cap: float) -> Tensor:
    """min(π(a|s) / π̂_b(a|s), c)        Chen et al. 2019, Eq. (5) and §4.3"""
    return (log_pi - log_b).clamp(max=math.log(cap)).exp().detach()


def advantage(q: Tensor) -> Tensor:
    """Q(s,a) − mean of Q over the logged item a and the unlogged ones: [B, 1 + n] → [B]        Xin et al. 2022"""
    return (q[:, 0] - q.mean(1)).detach()


def smooth_importance(log_pi: Tensor, log_b: Tensor, exponent: float) -> Tensor:
    """clip(π(a|s) / π̂_b(a|s), .1, 10)^exponent        Xin et al. 2022, smoothed off-policy correction"""
    limit = math.log(10.0)
    return (exponent * (log_pi - log_b).clamp(-limit, limit)).exp().detach()


def divide_by_mean(weights: Tensor, share: Tensor | None) -> Tensor:
    """Divide weights [B] by their mean size over the batch, for the self-normalised estimate."""
    return weights / batch_mean(weights.abs(), share).clamp(min=torch.finfo(weights.dtype).tiny)


def top_k_factor(log_pi: Tensor, k: int) -> Tensor:
    """K (1 − π)^(K−1) = d/dπ P(a is among K samples) = d/dπ [1 − (1 − π)^K]        Chen et al. 2019, Eq. (8)"""
    return (k * (1 - log_pi.exp().clamp(max=1.0)).pow(k - 1)).detach()


def extrapolated_reward(rewards: Tensor, log_b: Tensor, alpha: float) -> Tensor:
    """r̂ = r + α log π̂_b(a|s)        paper, §Reward Extrapolation"""
    return rewards + alpha * log_b.detach()
