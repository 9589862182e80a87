"""Symbols made of small heads without networks. Every tensor requires a gradient."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from offrec.algorithms import LEARNERS, Symbols
from offrec.algorithms.symbols import NeighbourMasses
from offrec.catalogue import Head, Noise

ROWS, ITEMS, SEEN = 6, 9, 3
BY_SYMBOLS = [name for name in LEARNERS if LEARNERS[name].family != "planner"]  # planners read other symbols
HEADS = ("pi", "q", "next_pi", "next_q", "target_q", "next_online_q", "b", "next_b")


def random_head(width: int = 4, size: float = 1.0, rows: int = ROWS, items: int = ITEMS) -> Head:
    """A head with a bias and corrections; every tensor is a leaf that requires a gradient."""

    def leaf(*shape: int) -> Tensor:
        return (size * torch.randn(*shape, dtype=torch.double)).requires_grad_()

    seen = torch.stack([torch.randperm(items)[:SEEN] for _ in range(rows)])
    return Head(leaf(rows, width), leaf(items, width), leaf(items), seen, leaf(rows, SEEN))


def symbols(unlogged: int = 2, seed: int = 0, **given: Any) -> Symbols:
    """Random symbols; `given` replaces some of them."""
    torch.manual_seed(seed)
    heads = {name: random_head(width=3 + number % 3) for number, name in enumerate(HEADS)}
    action = torch.randint(ITEMS, (ROWS, 1))
    others = (action + 1 + torch.randint(ITEMS - 1, (ROWS, unlogged))) % ITEMS
    discounts = torch.full((ROWS, 1 + unlogged), 0.9, dtype=torch.double)
    discounts[::3, 0] = 0.0
    rewards = torch.zeros(ROWS, 1 + unlogged, dtype=torch.double)
    rewards[:, 0] = torch.rand(ROWS, dtype=torch.double)
    weight = torch.rand(ROWS, dtype=torch.double)
    weight[-1] = 0.0
    x = Symbols(
        **heads,
        actions=torch.cat([action, others], 1),
        rewards=rewards,
        discounts=discounts,
        return_to_go=rewards[:, 0] + torch.rand(ROWS, dtype=torch.double),
        next_return_to_go=torch.rand(ROWS, dtype=torch.double),
        weight=weight / weight.sum(),
        log_b=torch.randn(ROWS, dtype=torch.double).sub(2.0).requires_grad_(),
        noise=Noise(torch.tensor(11)),
        next_noise=Noise(torch.tensor(12)),
        multiplier=torch.tensor(0.7, dtype=torch.double).requires_grad_(),
        updates=torch.tensor(5),
        neighbours=NeighbourMasses(*(torch.randn(ROWS, dtype=torch.double).requires_grad_() for _ in range(2))),
        ground_weight=0.8,
        returns=0.3,
    )
    return replace(x, **given)


def leaves(head: Head) -> dict[str, Tensor]:
    found = {"state": head.state, "table": head.table, "bias": head.bias, "values": head.values}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def total(terms: dict[str, Tensor], x: Symbols) -> Tensor:
    """The sum that an update minimises."""
    return torch.stack([(x.weight * term).sum() for name, term in terms.items() if not name.startswith("~")]).sum()


def gradients(loss: Tensor, x: Symbols) -> dict[str, Tensor]:
    """The gradient of every tensor in x, by name; zeros if the loss does not depend on it."""
    tensors = {f"{name}.{part}": tensor for name in HEADS for part, tensor in leaves(getattr(x, name)).items()}
    tensors |= {"log_b": x.log_b, "multiplier": x.multiplier}
    found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(tensor) if gradient is None else gradient
        for (name, tensor), gradient in zip(tensors.items(), found, strict=True)
    }
