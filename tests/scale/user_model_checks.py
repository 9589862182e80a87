"""Compare updates and plans of a sharded user model with those of one process. Each check runs on every rank."""

from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from offrec.algorithms.user_model import UserModel, leaving_log_likelihood
from offrec.catalogue import rank_and_top_k
from offrec.catalogue.shard import Shard, batch_group
from offrec.data.list_log import ListBatch, ListLog
from offrec.models import planner
from offrec.models.item_features import ItemFeatures
from offrec.models.joint_prior import shrink_item_effects
from offrec.models.log_shape import LogShape
from offrec.models.network import NetworkOptions, sharded_rows
from offrec.models.user_agent import UserModelAgent, build_user_agent
from offrec.training.optimiser import Optimiser
from small_datasets import small_properties

ITEMS, LISTS, SESSIONS, K, MEMORY, UPDATES, TYPES = 11, 40, 12, 3, 2, 2, 3
# Options of the learner, whether items have features, whether they have rewards, the number of items.
VARIANTS: list[tuple[dict[str, Any], bool, bool, int]] = [
    ({"choice": "logit"}, False, False, ITEMS),
    ({"choice": "cascade"}, True, False, ITEMS),
    ({"choice": "logit", "exposure": "off"}, False, True, ITEMS),
    ({"choice": "logit", "horizon": 0}, False, False, 3),  # fewer items than ranks
    ({"negatives": K - 1}, False, False, ITEMS),  # a log without lists
]
NUMBERS = {1: (0,), 2: range(len(VARIANTS)), 3: (0,), 4: (3,)}


def make_log(items: int, has_lists: bool) -> ListLog:
    random = np.random.default_rng(0)
    session = np.sort(np.concatenate([np.arange(SESSIONS), random.integers(0, SESSIONS, LISTS - SESSIONS)]))
    offered = np.array([random.permutation(items)[:K] for _ in range(LISTS)])
    offered = offered if has_lists else offered[:, :1]
    place = random.integers(0 if has_lists else 1, offered.shape[1] + 1, LISTS)
    columns = {
        "offered": offered,
        "place": place,
        "behaviour": np.where(place > 0, random.integers(0, 2, LISTS), 0),
        "memory": random.integers(0, items + 1, (LISTS, MEMORY)),
        "picks": random.integers(0, 4, LISTS),
        "leaves": np.append(session[1:] != session[:-1], True),
        "session": session,
    }
    rows = ListBatch(**{name: torch.from_numpy(one) for name, one in columns.items()}, weight=torch.zeros(0))
    first = torch.from_numpy(np.append(np.flatnonzero(np.append(True, session[1:] != session[:-1])), LISTS))
    popularity = torch.arange(1, items + 1, dtype=torch.double).cumsum(0)
    return ListLog(rows, first, items) if has_lists else ListLog(rows, first, items, K - 1, popularity)


def make_agent(variant: tuple[Any, ...], log: ListLog, shard: Shard | None) -> UserModelAgent:
    options, has_features, has_rewards, items = variant
    torch.manual_seed(1)
    features = ItemFeatures(small_properties(items), np.ones(items, bool), shard) if has_features else None
    learner = UserModel(types=TYPES, width=4, memory=MEMORY, candidates_per_type=2, candidate_types=2, **options)
    shape = LogShape(2, 0 if log.sampled else K)
    agent = build_user_agent(items, learner, NetworkOptions(history=4), shape, features, shard)
    for name, one in sorted(agent.named_parameters()):
        if name not in agent.item_rows:
            one.data += 0.3 * torch.randn_like(one)
    rewards = torch.linspace(0.1, 1.0, 2 * items).reshape(items, 2) if has_rewards else torch.tensor([0.2, 1.0])
    part = slice(None) if shard is None or not has_rewards else shard.rows()
    agent.start(log, rewards[part])
    return agent.to(torch.get_default_dtype())


def train(agent: UserModelAgent, log: ListLog) -> list[float]:
    """Run updates on the whole log as one batch, and shrink the effects of items; return the losses."""
    optimiser, losses = Optimiser(agent, 0.05), []
    torch.manual_seed(2)
    for _ in range(UPDATES):
        batch = log.batch(torch.arange(log.sessions))
        terms = agent.loss(batch)
        optimiser.zero_grad()
        loss = torch.stack([(batch.weight.to(term) * term).sum() for term in terms.values()]).sum()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    agent.validate(log, False, 0)
    shrink_item_effects(agent, log)
    return losses


@torch.no_grad()
def figures(agent: UserModelAgent, log: ListLog) -> dict[str, Tensor]:
    """Return validation figures, the calibration of the planner, plans, ranks and lists."""
    torch.manual_seed(3)
    validation = agent.validate(log, True, 0)
    posterior = agent.planner().after_picks(log.rows.memory)
    patience = agent.planner().patience_after_picks(log.rows.memory)
    head = agent.planned_head(posterior, log.rows.memory, log.rows.picks, patience=patience)
    position, _, items = rank_and_top_k(head, log.rows.offered[:, 0], 3)
    numbers = torch.tensor([*validation.values(), *agent.statistics.tolist(), float(agent.best)], dtype=torch.double)
    return {"numbers": numbers, "posterior": posterior, "patience": patience, "rank": position, "items": items}


def check_user_model(variant: tuple[Any, ...], shard_of: Any, dtype: torch.dtype) -> dict[str, float]:
    """Return the largest errors of losses, weights and figures after some updates, and how many weights differ."""
    torch.set_default_dtype(dtype)
    try:
        return _check(variant, shard_of(variant[3]))
    finally:
        torch.set_default_dtype(torch.float)


def _check(variant: tuple[Any, ...], shard: Shard) -> dict[str, float]:
    log = make_log(variant[3], has_lists="negatives" not in variant[0])
    whole, own = make_agent(variant, log, None), make_agent(variant, log, shard)
    rows = sharded_rows(own)

    def errors(value: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
        worst = 0.0
        for name, tensor in value.items():
            other = expected[name][rows[name]] if name in rows else expected[name]
            if tensor.numel():
                size = 1.0 + other.double().abs()
                worst = max(worst, float(((tensor.double() - other.double()).abs() / size).max()))
        return worst

    start = errors(own.state_dict(), whole.state_dict())
    expected, losses = train(whole, log), train(own, log)
    weights = errors(own.state_dict(), whole.state_dict())
    before, after = figures(whole, log), figures(own, log)
    replicated = [one.flatten().double() for name, one in own.state_dict().items() if name not in rows]
    everywhere = shard.gather(torch.cat(replicated))
    return {
        "selected": max(selections(one, log) for one in (own, whole)),
        "start": start,
        "loss": max(abs(a - b) / (1.0 + abs(b)) for a, b in zip(losses, expected, strict=True)),
        "weights": weights,
        "ranks": float((after["rank"] != before["rank"]).sum() + (after["items"] != before["items"]).sum()),
        "diagnostics": errors({name: after[name] for name in ("numbers", "posterior", "patience")}, before),
        "replicated": float((everywhere != everywhere[0]).sum()),
    }


@torch.no_grad()
def selections(agent: UserModelAgent, log: ListLog) -> float:
    """Return how many ranks select another model of leaving than rank 0, if the best one differs on each rank.

    On a GPU that can happen by rounding. A model without a shard is trained by ranks that read different sessions.
    """

    def likelihood(*parts: Any) -> Tensor:
        outcome = leaving_log_likelihood(*parts)
        outcome[:, dist.get_rank()] += 10.0
        return outcome

    group = dist.group.WORLD if agent.shard is None else None
    with patch("offrec.models.user_agent.leaving_log_likelihood", likelihood), batch_group(group):
        agent._select_leaving(log)
    selected = [torch.empty_like(agent.best) for _ in range(dist.get_world_size())]
    dist.all_gather(selected, agent.best)
    return float(sum(one != selected[0] for one in selected))


def check_user_models(rank: int, world: int) -> dict[str, dict[str, float]]:
    """Return the errors of the variants that are checked in a world of this size."""
    results = {}
    planner.SIMULATED_LISTS = 1  # each list takes about 20 messages
    for number in NUMBERS[world]:
        dtype = torch.float if number == 1 else torch.double
        errors = check_user_model(VARIANTS[number], lambda items: Shard(items, rank, world), dtype)
        results[f"user-model {number}"] = errors | {"dtype": 32.0 if dtype == torch.float else 64.0}
    return results
