"""Dense reference implementations of all functions over a head. Tests compare the other backends with them."""

import torch
from torch import Tensor

from offrec.catalogue.head import MASKED, Head, Linear, UpperBound
from offrec.catalogue.noise import Noise, gumbel_noise, precise_gumbel_noise


def logits(head: Head) -> Tensor:
    """Materialise z: [B, A]."""
    z = head.state.to(head.dtype) @ head.table.to(head.dtype).T
    if head.bias is not None:
        z = z + head.bias
    if head.items is not None and head.values is not None:
        padded = torch.cat([z, z.new_zeros(len(z), 1)], 1)  # an extra column for the padding
        if head.replaces_base:
            padded = padded.scatter(1, head.items.clamp(max=head.n_items), 0.0)
        z = padded.scatter_add(1, head.items.clamp(max=head.n_items), head.values.to(z.dtype))[:, :-1]
    if head.support is not None:
        z = z.masked_fill(logits(head.support.head) < head.support.bound[:, None], MASKED)
    return z


def logsumexp(head: Head) -> Tensor:
    """Dense `offrec.catalogue.logsumexp`."""
    return torch.logsumexp(logits(head), 1)


def log_prob(head: Head, actions: Tensor) -> Tensor:
    """Dense `offrec.catalogue.log_prob`."""
    return torch.log_softmax(logits(head), 1).gather(1, actions)


def reduce(pi: Head, linear: Linear = (), below: UpperBound | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Dense `offrec.catalogue.reduce`: lse, mean and mass, [B] each."""
    z = logits(pi)
    probabilities = torch.softmax(z, 1)
    is_below = logits(below[0]) <= below[1][:, None] if below else torch.zeros_like(z)
    mean = (probabilities * _linear_combination(z, linear)).sum(1)
    return torch.logsumexp(z, 1), mean, (probabilities * is_below).sum(1)


def gumbel_softmax(pi: Head, linear: Linear, *, temperature: float, noise: Noise, hard: bool = False) -> Tensor:
    """Dense `offrec.catalogue.gumbel_softmax`."""
    z = logits(pi)
    noisy = z + _noise_like(z, noise)
    y = torch.softmax(noisy / temperature, 1)
    if hard:
        one_hot = torch.zeros_like(y).scatter(1, noisy.argmax(1, keepdim=True), 1.0)
        y = one_hot + y - y.detach()
    return (y * _linear_combination(z, linear)).sum(1)


@torch.no_grad()
def maximum(head: Head, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
    """Dense `offrec.catalogue.maximum`."""
    z = logits(head)
    values, items = (z if noise is None else z + _noise_like(z, noise)).max(1)
    return values, items


def rank(head: Head, target: Tensor) -> Tensor:
    """Dense `offrec.catalogue.rank`."""
    z = logits(head)
    return (~(z < z.gather(1, target[:, None]))).sum(1)


def top_k(head: Head, k: int) -> tuple[Tensor, Tensor]:
    """Dense `offrec.catalogue.top_k`."""
    z, items = logits(head).sort(dim=1, descending=True, stable=True)
    return z[:, :k], items[:, :k]


def rank_and_top_k(head: Head, target: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Dense `offrec.catalogue.rank_and_top_k`."""
    return rank(head, target), *top_k(head, k)


def sample_k(head: Head, k: int, generator: torch.Generator) -> Tensor:
    """Dense `offrec.catalogue.sample_k`."""
    z, noise = logits(head).double(), Noise(torch.randint(1 << 62, (), generator=generator))
    rows, items = (torch.arange(n, device=z.device) for n in z.shape)
    noisy = z + precise_gumbel_noise(noise, rows[:, None], items)
    return noisy.sort(dim=1, descending=True, stable=True).indices[:, :k]


def _linear_combination(like: Tensor, linear: Linear) -> Tensor:
    """Σ c z [B, A], without gradients to the coefficients."""
    total = torch.zeros_like(like)
    for coefficient, head in linear:
        constant = coefficient.detach() if isinstance(coefficient, Tensor) else coefficient
        total = total + constant * logits(head)
    return total


def _noise_like(z: Tensor, noise: Noise) -> Tensor:
    rows, items = (torch.arange(n, device=z.device) for n in z.shape)
    return gumbel_noise(noise, rows[:, None], items)
