"""A log with a known answer: one item has a high reward, and all items are logged equally often."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_agents import CPU, GAMMA, ITEMS, optimiser, update
from small_agents import OPTIONS as USUAL

from offrec.algorithms import LEARNERS
from offrec.catalogue import top_k
from offrec.data.replay import Replay, batch_from_histories
from offrec.data.transitions import transitions
from offrec.models.agent import Agent, LogFacts, return_spread
from offrec.models.critic import CriticOptions
from offrec.models.network import Network
from offrec.types import Sessions

GOOD = 7
OPTIONS = replace(USUAL, repeat="off")  # nobody comes back to anything here
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {}, "pg": {}, "sdac": {}, "sc": {"beta": 0.1}, "sr": {"beta": 0.1}, "pc": {"beta": 0.1}, "dc": {}, "re": {},
}  # fmt: skip


def log() -> Sessions:
    random = np.random.default_rng(0)
    items = random.integers(0, ITEMS, 600)
    return Sessions(items.astype(np.int32), (items == GOOD).astype(np.uint8), np.arange(0, 601, 4))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_item_that_earns_comes_first(name: str) -> None:
    mdp = transitions(log(), np.array([0.05, 1.0], dtype=np.float32)[log().behaviours], GAMMA)
    replay = Replay(log(), mdp, ITEMS, OPTIONS.history, "sessions", CPU)
    rows = replay.batch(np.arange(len(replay.segments)))
    torch.manual_seed(0)
    prior = Network(ITEMS, OPTIONS)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.zero_()  # all items alike, which they are
    facts = LogFacts(GAMMA, return_spread(rows.return_to_go), log_b=torch.full((len(mdp.reward),), -np.log(ITEMS)))
    made = Agent(
        ITEMS, LEARNERS[name].learner(**SETTINGS[name]), OPTIONS, CriticOptions(ground=2, repeat="off"), facts, prior
    )
    adam = optimiser(made, 0.02)
    for _ in range(30):
        update(made, rows, adam)
    with torch.no_grad():
        best = top_k(made.eval()(batch_from_histories([[], [3], [1, 5], [2, 0, 4]], ITEMS, OPTIONS.history, CPU)), 1)[1]
    assert (best == GOOD).all()
