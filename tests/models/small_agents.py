"""A small log, a batch of it, and agents for it."""

from typing import Any

import numpy as np
import torch

from offrec.algorithms import LEARNERS
from offrec.data.replay import Replay
from offrec.data.transitions import transitions
from offrec.models.agent import Agent, LogFacts
from offrec.models.critic import CriticOptions
from offrec.models.network import Network, NetworkOptions
from offrec.types import Batch, Sessions

ITEMS, HISTORY, GAMMA = 12, 8, 0.9
OPTIONS = NetworkOptions(width=8, history=HISTORY, dropout=0.0)
CPU = torch.device("cpu")
NETWORK_LEARNERS = [name for name in LEARNERS if LEARNERS[name].family != "planner"]  # planners have another agent
SEEN_AGAIN = [4, 4, 4, 2]  # so that counts in the repeat term have something to learn from


def sessions(seed: int = 0, count: int = 12) -> Sessions:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 7, count)
    lengths[0] = len(SEEN_AGAIN)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    items = random.integers(0, ITEMS, offsets[-1])
    items[: lengths[0]] = SEEN_AGAIN
    return Sessions(items.astype(np.int32), random.integers(0, 2, offsets[-1]).astype(np.uint8), offsets)


def batch(reward_scale: float = 1.0, how: Any = "sessions", device: torch.device = CPU) -> Batch:
    """The whole log as one batch."""
    log = sessions()
    mdp = transitions(log, np.array([0.2, 1.0], dtype=np.float32)[log.behaviours] * np.float32(reward_scale), GAMMA)
    replay = Replay(log, mdp, ITEMS, HISTORY, how, device)
    return replay.batch(np.arange(len(replay.segments)))


def facts(**given: Any) -> LogFacts:
    events = sessions().events
    log_b = torch.linspace(-3.0, -1.0, events)
    return LogFacts(**{"discount_if_ignored": GAMMA, "counts": torch.arange(1, ITEMS + 1), "log_b": log_b, **given})


def prior(options: NetworkOptions = OPTIONS) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(99)
        return Network(ITEMS, options)


def agent(
    name: str,
    network: NetworkOptions = OPTIONS,
    critic: CriticOptions | None = None,
    given: LogFacts | None = None,
    **options: Any,
) -> Agent:
    torch.manual_seed(1)
    learner = LEARNERS[name].learner(**options)
    return Agent(ITEMS, learner, network, critic or CriticOptions(ground=3), given or facts(), prior(network))


def total(agent: Agent, batch: Batch) -> torch.Tensor:
    terms = agent.loss(batch)
    return torch.stack([(batch.weight * term).sum() for name, term in terms.items() if name[0] != "~"]).sum()


def update(agent: Agent, batch: Batch, optimiser: torch.optim.Optimizer) -> float:
    optimiser.zero_grad()
    loss = total(agent, batch)
    loss.backward()
    optimiser.step()
    agent.after_update()
    return loss.item()


def optimiser(agent: Agent, rate: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in agent.parameters() if p.requires_grad], lr=rate)
