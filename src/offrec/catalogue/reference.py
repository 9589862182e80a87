"""The dense, obvious version of every function over a head. Tests compare the others with it; nothing else uses it."""

import torch
from torch import Tensor

from offrec.catalogue.head import Head


def logits(head: Head) -> Tensor:
    """[B, A], written out."""
    z = head.state @ head.table.T
    if head.bias is not None:
        z = z + head.bias
    if head.items is not None and head.values is not None:
        room = torch.cat([z, z.new_zeros(len(z), 1)], 1)  # one more column takes the padding
        if head.instead:
            room = room.scatter(1, head.items.clamp(max=head.n_items), 0.0)
        z = room.scatter_add(1, head.items.clamp(max=head.n_items), head.values)[:, :-1]
    return z


def logsumexp(head: Head) -> Tensor:
    return torch.logsumexp(logits(head), 1)


def log_prob(head: Head, actions: Tensor) -> Tensor:
    return torch.log_softmax(logits(head), 1).gather(1, actions)


def rank(head: Head, target: Tensor) -> Tensor:
    z = logits(head)
    return (~(z < z.gather(1, target[:, None]))).sum(1)


def top_k(head: Head, k: int) -> tuple[Tensor, Tensor]:
    z, items = logits(head).sort(dim=1, descending=True, stable=True)
    return z[:, :k], items[:, :k]
