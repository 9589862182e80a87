"""The dense, obvious version of every function over a head. Tests compare the others with it; nothing else uses it."""

import torch
from torch import Tensor

from offrec.catalogue.head import MASKED, Head, Linear, UpperBound
from offrec.catalogue.noise import Noise, gumbel_noise


def logits(head: Head) -> Tensor:
    """[B, A], written out."""
    z = head.state.to(head.dtype) @ head.table.to(head.dtype).T
    if head.bias is not None:
        z = z + head.bias
    if head.items is not None and head.values is not None:
        room = torch.cat([z, z.new_zeros(len(z), 1)], 1)  # one more column takes the padding
        if head.replaces_base:
            room = room.scatter(1, head.items.clamp(max=head.n_items), 0.0)
        z = room.scatter_add(1, head.items.clamp(max=head.n_items), head.values.to(z.dtype))[:, :-1]
    if head.support is not None:
        z = z.masked_fill(logits(head.support.head) < head.support.bound[:, None], MASKED)
    return z


def logsumexp(head: Head) -> Tensor:
    return torch.logsumexp(logits(head), 1)


def log_prob(head: Head, actions: Tensor) -> Tensor:
    return torch.log_softmax(logits(head), 1).gather(1, actions)


def reduce(pi: Head, linear: Linear = (), below: UpperBound | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """log Σ exp z_π, E_π[Σ c z] and π's mass where another head is not above a bound: [B] each."""
    z = logits(pi)
    chances = torch.softmax(z, 1)
    low = logits(below[0]) <= below[1][:, None] if below else torch.zeros_like(z)
    return torch.logsumexp(z, 1), (chances * _combined(z, linear)).sum(1), (chances * low).sum(1)


def gumbel_softmax(pi: Head, linear: Linear, *, temperature: float, noise: Noise, hard: bool = False) -> Tensor:
    z = logits(pi)
    noisy = z + _noise_like(z, noise)
    y = torch.softmax(noisy / temperature, 1)
    if hard:
        one = torch.zeros_like(y).scatter(1, noisy.argmax(1, keepdim=True), 1.0)
        y = one + y - y.detach()
    return (y * _combined(z, linear)).sum(1)


@torch.no_grad()
def maximum(head: Head, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
    z = logits(head)
    values, items = (z if noise is None else z + _noise_like(z, noise)).max(1)
    return values, items


def rank(head: Head, target: Tensor) -> Tensor:
    z = logits(head)
    return (~(z < z.gather(1, target[:, None]))).sum(1)


def top_k(head: Head, k: int) -> tuple[Tensor, Tensor]:
    z, items = logits(head).sort(dim=1, descending=True, stable=True)
    return z[:, :k], items[:, :k]


def rank_and_top_k(head: Head, target: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    return rank(head, target), *top_k(head, k)


def sample_k(head: Head, k: int, generator: torch.Generator) -> Tensor:
    z = logits(head).double()
    noise = torch.empty_like(z).exponential_(generator=generator)
    return (z - noise.log()).sort(dim=1, descending=True, stable=True).indices[:, :k]


def _combined(like: Tensor, linear: Linear) -> Tensor:
    f = torch.zeros_like(like)
    for coefficient, head in linear:
        fixed = coefficient.detach() if isinstance(coefficient, Tensor) else coefficient
        f = f + fixed * logits(head)
    return f


def _noise_like(z: Tensor, noise: Noise) -> Tensor:
    rows, items = (torch.arange(n, device=z.device) for n in z.shape)
    return gumbel_noise(noise, rows[:, None], items)
