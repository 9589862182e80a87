"""Compare updates of sharded agents with those of one process. Each check runs on every rank."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from small_agents import ITEMS, NETWORK_LEARNERS, OPTIONS, batch, facts, sessions
from torch import Tensor

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.catalogue import rank_and_top_k
from offrec.catalogue.shard import Shard
from offrec.data.neighbours import count_neighbours
from offrec.models.agent import Agent, LogFacts
from offrec.models.critic import CriticOptions
from offrec.models.item_features import ItemFeatures
from offrec.models.neighbours import STEPS
from offrec.models.network import Network, NetworkOptions, sharded_rows
from offrec.training.optimiser import Optimiser
from small_datasets import small_properties

NEIGHBOURS, UPDATES = 4, 2
NETWORK = replace(OPTIONS, width=6, dropout=0.2)  # dropout: all ranks must draw the same masks
VARIANTS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    *((name, {}, {}, {}) for name in NETWORK_LEARNERS),
    ("sl", {"neighbours": NEIGHBOURS, "weight": "reward"}, {"tied": False}, {}),
    ("dqn", {"double": True, "delta": 0.05}, {}, {"target": "periodic", "target_every": 2}),
    ("pg", {"logging": "own", "self_normalised": True}, {}, {}),
    ("sr", {"adaptive": True}, {"repeat": "off"}, {"repeat": "instead"}),
    ("dc", {"expectation": "gumbel", "start": "supervised"}, {}, {"ground_draw": "logging"}),
    ("sdac", {"ranks": "critic", "expectation": "gumbel", "straight_through": True}, {}, {"ground_draw": "popular"}),
    ("dc", {"ranks": "critic"}, {"features": "auto"}, {"width": 5}),
    *(("sl", {}, {"backbone": name, "heads": 1}, {}) for name in BACKBONES if name != "gru"),
]


def make_agent(variant: tuple[Any, ...], shard: Shard | None) -> Agent:
    """Build an agent from a seed; `features` builds one with item features."""
    name, learner, network, critic = variant
    torch.manual_seed(1)
    options: NetworkOptions = replace(NETWORK, **network)
    features = None
    if "features" in network:
        features = ItemFeatures(small_properties(ITEMS), np.arange(ITEMS) != 3, shard)
    near = count_neighbours(sessions(), ITEMS, NEIGHBOURS, STEPS)
    if shard is not None:
        rows = shard.rows(1)
        near = replace(near, items=near.items[rows], shares=near.shares[rows], totals=near.totals[rows])
    given: LogFacts = facts(neighbours=near)
    prior = Network(ITEMS, options, features=features, shard=shard)
    return Agent(
        ITEMS,
        LEARNERS[name].learner(**learner),
        options,
        CriticOptions(**{"ground": 3, **critic}),
        given,
        prior,
        features=features,
        shard=shard,
    )


def train(agent: Agent, updates: int, table_state: Any = "full") -> tuple[list[float], Optimiser]:
    """Run updates on the whole log as one batch; return the losses."""
    agent.train()
    tables = [table for name, table in agent.named_parameters() if name.split(".")[-1] in ("items_in", "items_out")]
    optimiser = Optimiser(agent, 0.01, [one for one in tables if one.requires_grad], table_state)
    data, losses = batch(), []
    weight = torch.linspace(1.0, 2.0, len(data), dtype=torch.double)
    data = data.with_columns(weight=(weight / weight.sum()).to(next(agent.parameters()).dtype))
    torch.manual_seed(2)
    for _ in range(updates):
        terms = agent.loss(data)
        means = [(data.weight * term).sum() for name, term in terms.items() if name[0] != "~"]
        optimiser.zero_grad()
        loss = torch.stack(means).sum()
        loss.backward()
        optimiser.step()
        agent.after_update()
        losses.append(float(loss.detach()))
    return losses, optimiser


@torch.no_grad()
def figures(agent: Agent) -> dict[str, Tensor]:
    """Return ranks, lists and diagnostics."""
    data = batch()
    agent.eval()
    position, _, items = rank_and_top_k(agent(data), data.action, 5)
    torch.manual_seed(3)
    more = agent.diagnostics(data)
    return {"rank": position, "items": items, **more}


def check_agent(variant: tuple[Any, ...], rank: int, world: int, dtype: torch.dtype) -> dict[str, float]:
    """Return the largest errors of losses, weights and figures after some updates, and how many weights differ."""
    torch.set_default_dtype(dtype)
    try:
        return _check_agent(variant, Shard(ITEMS, rank, world))
    finally:
        torch.set_default_dtype(torch.float)


def _check_agent(variant: tuple[Any, ...], shard: Shard) -> dict[str, float]:
    whole, own = make_agent(variant, None), make_agent(variant, shard)
    rows = sharded_rows(own)

    def errors(value: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
        worst = 0.0
        for name, tensor in value.items():
            other = expected[name][rows[name]] if name in rows else expected[name]
            if tensor.numel():
                size = 1.0 + other.abs().double()
                worst = max(worst, float(((tensor.double() - other.double()).abs() / size).max()))
        return worst

    start = errors(own.state_dict(), whole.state_dict())
    expected, _ = train(whole, UPDATES)
    losses, _ = train(own, UPDATES)
    replicated = [one.flatten() for name, one in own.state_dict().items() if name not in rows and one.numel()]
    flat = torch.cat([one.double() for one in replicated])
    everywhere = shard.gather(flat)
    before, after = figures(whole), figures(own)
    return {
        "start": start,
        "loss": max(abs(a - b) / (1.0 + abs(b)) for a, b in zip(losses, expected, strict=True)),
        "weights": errors(own.state_dict(), whole.state_dict()),
        "ranks": float((after["rank"] != before["rank"]).sum() + (after["items"] != before["items"]).sum()),
        "diagnostics": max(errors({name: after[name]}, before) for name in after if name[0] == "~"),
        "replicated": float((everywhere != everywhere[0]).sum()),
    }


def check_agents(rank: int, world: int, numbers: Any) -> dict[str, dict[str, float]]:
    """Return the errors of some variants, by number and learner."""
    results = {}
    for number in numbers:
        variant = VARIANTS[number]
        dtype = torch.float if number == 0 or "features" in variant[2] else torch.double
        errors = check_agent(variant, rank, world, dtype)
        results[f"{number} {variant[0]}"] = errors | {"dtype": 32.0 if dtype == torch.float else 64.0}
        dist.barrier()
    return results
