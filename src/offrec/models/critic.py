"""The critic: its options, samples of unlogged items, its target network, and ranking by its values."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from offrec.catalogue import Head, Noise, logsumexp, maximum
from offrec.catalogue.head import Support
from offrec.models.network import Network, NetworkOptions
from offrec.plugins import option

LARGE = 1 << 14  # tensors with at least this many numbers are launched separately when the target network follows
ROUNDING = 1e-4  # tolerance of log π̂_b, above the rounding differences between implementations


@dataclass(frozen=True)
class CriticOptions:
    """Options of the critic, for learners that have one. Unset shape options default to those of the actor."""

    backbone: str | None = None
    """Backbone from history to state; `offrec options` lists them."""
    width: int | None = option(None, minimum=1, maximum=65_536)
    """Width of states and item vectors."""
    layers: int | None = option(None, minimum=1, maximum=1_000)
    """Layers of the backbone."""
    dropout: float | None = option(None, minimum=0.0, below=1.0)
    """Dropout rate of the input vectors, of the states and inside the backbone."""
    repeat: Literal["instead", "bonus", "off"] = "bonus"
    """How the learned value of items in the history is used: instead of the item table's value, or added to it."""
    ground: int = option(8, minimum=0, maximum=10_000)
    """Number of unlogged items per transition that the critic is trained on as ignored; 0 as in the paper."""
    ground_draw: Literal["uniform", "popular", "logging"] = "uniform"
    """How unlogged items are sampled: uniformly, by count in the log, or from π̂_b (one catalogue pass per item)."""
    ground_reward: float = 0.0
    """Reward of an ignored item."""
    ground_weight: float = option(1.0, minimum=0.0)
    """Total weight of the unlogged items of a transition, relative to the logged item."""
    returns: float = option(0.0, minimum=0.0, maximum=1.0)
    """Share of the logged return in the critic's target; the rest is the value of the learned policy. The paper
    uses 0; with 1, the critic learns the value of the logging policy."""
    target: Literal["soft", "periodic"] = "soft"
    """Move the target network towards the critic in each update (soft), or copy the critic periodically."""
    target_rate: float = option(0.005, above=0.0, maximum=1.0)
    """soft: fraction of the difference by which the target network moves per update."""
    target_every: int = option(500, minimum=1)
    """periodic: updates between two copies."""

    def network(self, actor: NetworkOptions) -> NetworkOptions:
        """Return the shape of the critic, given that of the actor."""
        own = {name: getattr(self, name) for name in ("backbone", "width", "layers", "dropout")}
        return replace(actor, repeat=self.repeat, **{name: value for name, value in own.items() if value is not None})


def sample_unlogged(action: Tensor, n: int, n_items: int) -> Tensor:
    """Sample items other than the row's action uniformly: [B, n]."""
    items = torch.randint(n_items - 1, (len(action), n), device=action.device)
    return items + (items >= action[:, None])


def sample_unlogged_by_count(action: Tensor, n: int, cumulative: Tensor) -> Tensor:
    """Sample items other than the row's action in proportion to their counts: [B, n].

    `cumulative` [A] (float64) contains cumulative counts. The action's interval is skipped, so no sample is rejected.
    """
    below = torch.where(action > 0, cumulative[action - 1], 0.0)[:, None]
    width = cumulative[action][:, None] - below
    point = torch.rand(len(action), n, dtype=torch.double, device=action.device) * (cumulative[-1] - width)
    point = point + torch.where(point >= below, width, 0.0)
    return torch.searchsorted(cumulative, point, right=True).clamp(max=len(cumulative) - 1)


def sample_unlogged_from(b: Head, action: Tensor, n: int) -> Tensor:
    """Sample items other than the row's action from π̂_b: [B, n]."""
    others = b.mask(action[:, None])
    return torch.stack([maximum(others, random_noise(action.device))[1] for _ in range(n)], 1)


def random_noise(device: torch.device) -> Noise:
    """Return noise seeded by torch's generator on the device, whose state is part of checkpoints."""
    return Noise(torch.randint(1 << 62, (), device=device))


class Target(nn.Module):
    """Q̄: a copy of the critic that tracks it. It never synchronises with the host, so updates can be captured.

    Args:
        network: The copy.
        options: Options of the critic, including how the copy is updated.
    """

    updates: Tensor

    def __init__(self, network: Network, options: CriticOptions) -> None:
        super().__init__()
        self.network, self.options = network, options
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def follow(self, critic: nn.Module) -> None:
        """Move towards the critic, once per update."""
        own: list[Tensor] = list(self.network.parameters())
        others: list[Tensor] = list(critic.parameters())
        if self.options.target == "soft":
            # One launch for all small tensors. Large ones would not fill a GPU together with others.
            small = [number for number, one in enumerate(own) if one.numel() < LARGE]
            torch._foreach_lerp_([own[i] for i in small], [others[i] for i in small], self.options.target_rate)
            for one, other in zip(own, others, strict=True):
                if one.numel() >= LARGE:
                    one.lerp_(other, self.options.target_rate)
            return
        self.updates += 1
        due = (self.updates % self.options.target_every == 0).to(own[0].dtype)
        for parameter, other in zip(own, others, strict=True):
            parameter.lerp_(other, due)


def within_support(head: Head, b: Head, delta: float) -> Head:
    """Restrict a head to items with π̂_b ≥ δ or, if none qualifies, to the likeliest item        paper, start of §SC

    An item at the bound must be inside the support whether its value is computed for a few items, a tile or a single
    row, although these round differently. On a GPU they can differ by more than `ROUNDING`: a pass over the catalogue
    may use mantissas of 10 or 7 bits, and a read of a few items uses 24. The likeliest item therefore gets a larger
    tolerance.
    """
    value, item = maximum(b)
    likeliest = torch.minimum(value, b.at(item[:, None])[:, 0]) - _tolerance(b, item)
    bound = torch.minimum(logsumexp(b) + math.log(delta), likeliest)
    return replace(head, support=Support(b, bound - ROUNDING))


def _tolerance(head: Head, item: Tensor) -> Tensor:
    """Return the largest error [B] of a pass over the catalogue, at one item [B] per row."""
    return head.product_error * (head.state.to(head.dtype) * head.rows(item).to(head.dtype)).abs().sum(1)


def product(one: Head, other: Head) -> Head:
    """Return the sum of two heads; its softmax is π̂_b exp(Q/α). This copies both tables."""
    one, other = _with_additive_corrections(one), _with_additive_corrections(other)
    bias = other.bias if one.bias is None else one.bias if other.bias is None else one.bias + other.bias
    table = torch.cat([one.table, other.table], 1)
    total = Head(torch.cat([one.state, other.state], 1), table, bias, shard=one.shard)
    for head in (one, other):
        if head.items is not None and head.values is not None:
            total = total.with_corrections(head.items, head.values)
    return total


def _with_additive_corrections(head: Head) -> Head:
    """Return an equal head whose corrections are added to the base instead of replacing it."""
    if not head.replaces_base or head.items is None or head.values is None:
        return head
    same = head.items[:, :, None] == head.items[:, None, :]
    first = ~same.tril(-1).any(2)  # equal items add up, so the base is subtracted once
    base = head.base_at(head.items.clamp(max=head.n_items - 1))
    return replace(head, values=head.values - torch.where(first, base, 0.0), replaces_base=False)
