"""What is particular to a critic: its options, the unlogged items that tie it down, its target network, and ranking by
it.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from offrec.catalogue import Head, Noise, logsumexp, maximum
from offrec.catalogue.head import Support
from offrec.models.network import Network, NetworkOptions
from offrec.plugins import option

ROUNDING = 1e-4  # of log π̂_b: more than two ways of computing it differ by


@dataclass(frozen=True)
class CriticOptions:
    """The critic, for learners that have one. Where its shape is left open, it is the actor's."""

    backbone: str | None = None
    """gru, cfn, caser, nextitnet or sasrec."""
    width: int | None = option(None, minimum=1, maximum=65_536)
    """Width of states and item vectors."""
    layers: int | None = option(None, minimum=1, maximum=1_000)
    """Layers of cells or of attention."""
    dropout: float | None = option(None, minimum=0.0, below=1.0)
    """On item vectors going in, on states coming out, and inside the backbone."""
    repeat: Literal["instead", "bonus", "off"] = "bonus"
    """A value of its own for the items of the history, instead of the item table's, or as a bonus on top of it."""
    ground: int = option(8, minimum=0)
    """So many unlogged items a transition are taken to be ignored, which ties the critic down; 0 is the paper."""
    ground_draw: Literal["uniform", "popular", "logging"] = "uniform"
    """How they are drawn: all alike, as often as the log has them, or from π̂_b (a pass over the catalogue for each)."""
    ground_reward: float = 0.0
    """What an ignored item earns."""
    ground_weight: float = option(1.0, minimum=0.0)
    """Weight of the unlogged items, together, against the logged one."""
    returns: float = option(0.0, minimum=0.0, maximum=1.0)
    """Share of the discounted return that the log has after a step in the value that the critic backs up; the rest is
    the value of the policy that is learned. 0 is the paper, 1 the value of the logging policy."""
    target: Literal["soft", "periodic"] = "soft"
    """The target network follows the critic a little in each update, or jumps to it now and then."""
    target_rate: float = option(0.005, above=0.0, maximum=1.0)
    """Soft: how far it moves, as a share of the distance."""
    target_every: int = option(500, minimum=1)
    """Periodic: updates between two jumps."""

    def network(self, actor: NetworkOptions) -> NetworkOptions:
        own = {name: getattr(self, name) for name in ("backbone", "width", "layers", "dropout")}
        return replace(actor, repeat=self.repeat, **{name: value for name, value in own.items() if value is not None})


def unlogged(action: Tensor, n: int, n_items: int) -> Tensor:
    """[B, n] items other than the row's own, all alike."""
    items = torch.randint(n_items - 1, (len(action), n), device=action.device)
    return items + (items >= action[:, None])


def unlogged_popular(action: Tensor, n: int, cumulative: Tensor) -> Tensor:
    """[B, n] items other than the row's own, in proportion to their counts; `cumulative` [A], float64, sums those.

    The row's own stretch is cut out of the line on which the draw falls, so nothing has to be drawn again.
    """
    below = torch.where(action > 0, cumulative[action - 1], 0.0)[:, None]
    width = cumulative[action][:, None] - below
    place = torch.rand(len(action), n, dtype=torch.double, device=action.device) * (cumulative[-1] - width)
    place = place + torch.where(place >= below, width, 0.0)
    return torch.searchsorted(cumulative, place, right=True).clamp(max=len(cumulative) - 1)


def unlogged_from(b: Head, action: Tensor, n: int) -> Tensor:
    """[B, n] draws from π̂_b other than the row's own item."""
    others = b.mask(action[:, None])
    return torch.stack([maximum(others, random_noise(action.device))[1] for _ in range(n)], 1)


def random_noise(device: torch.device) -> Noise:
    """Noise from torch's generator on the device, whose state is part of a checkpoint."""
    return Noise(torch.randint(1 << 62, (), device=device))


class Target(nn.Module):
    """Q̄: a copy of a network that follows it. All on the device, so that an update can be replayed as one graph."""

    updates: Tensor

    def __init__(self, network: Network, options: CriticOptions) -> None:
        super().__init__()
        self.network, self.options = network, options
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def follow(self, critic: nn.Module) -> None:
        own: list[Tensor] = list(self.network.parameters())
        others: list[Tensor] = list(critic.parameters())
        if self.options.target == "soft":
            torch._foreach_lerp_(own, others, self.options.target_rate)
            return
        self.updates += 1
        due = (self.updates % self.options.target_every == 0).to(own[0].dtype)
        for mine, other in zip(own, others, strict=True):
            mine.lerp_(other, due)


def within_support(head: Head, b: Head, delta: float) -> Head:
    """Only items with π̂_b ≥ δ and, where there is none, the likeliest        paper, the policy that §SC starts from

    An item at the bound, as the likeliest is at its own, is within whoever asks: asked of a few items, of a tile or of
    a row alone, its value rounds differently. On a GPU by far more than `ROUNDING`: a pass over the catalogue may
    multiply with ten bits, or seven, and a read of a few items with all. So the likeliest has as much room as that.
    """
    value, item = maximum(b)
    likeliest = torch.minimum(value, b.at(item[:, None])[:, 0]) - _room(b, item)
    bound = torch.minimum(logsumexp(b) + math.log(delta), likeliest)
    return replace(head, support=Support(b, bound - ROUNDING))


def _room(head: Head, item: Tensor) -> Tensor:
    """[B] what a pass over the catalogue may be off by at an item of each row [B]."""
    return head.product_error * (head.state.to(head.dtype) * head.table[item].to(head.dtype)).abs().sum(1)


def product(one: Head, other: Head) -> Head:
    """The head whose values are two heads' sums, so that its softmax is π̂_b exp(Q/α). Copies both tables."""
    one, other = _on_top(one), _on_top(other)
    bias = other.bias if one.bias is None else one.bias if other.bias is None else one.bias + other.bias
    both = Head(torch.cat([one.state, other.state], 1), torch.cat([one.table, other.table], 1), bias)
    for head in (one, other):
        if head.items is not None and head.values is not None:
            both = both.with_corrections(head.items, head.values)
    return both


def _on_top(head: Head) -> Head:
    """The same values, with corrections on top of the base, not instead of it."""
    if not head.replaces_base or head.items is None or head.values is None:
        return head
    same = head.items[:, :, None] == head.items[:, None, :]
    first = ~same.tril(-1).any(2)  # equal items add up: the base is taken off once
    base = head.base_at(head.items.clamp(max=head.n_items - 1))
    return replace(head, values=head.values - torch.where(first, base, 0.0), replaces_base=False)
