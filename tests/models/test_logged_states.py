"""Heads of logged rows for fits on a CPU: those of `Network.forward`, with the same random numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from offrec.backbones.gru import GRU
from offrec.data.replay import Replay
from offrec.data.transitions import transitions
from offrec.models.network import Network, NetworkOptions
from offrec.types import Batch
from small_datasets import write_dataset

HISTORY = 4
OPTIONS = NetworkOptions(width=8, history=HISTORY, dropout=0.5, window=2, repeat="bonus")


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    """Sessions of 1 to 11 events; those with more than five are cut into several segments."""
    random = np.random.default_rng(0)
    sessions = [random.integers(0, 6, length).tolist() for length in (1, 3, 11, 2, 5, 8, 1)]
    train = write_dataset(tmp_path, sessions, splits=(7, 0, 0), items=6).split("train")
    replay = Replay(train, transitions(train, None, 0.5), 6, HISTORY, "sessions", torch.device("cpu"))
    return replay.batch(np.random.default_rng(1).permutation(len(replay.segments)))


@pytest.mark.parametrize("backbone", ["gru", "sasrec", "caser", "nextitnet", "cfn"])
@pytest.mark.parametrize("is_fast", [False, True])
def test_heads_and_gradients_of_logged_rows(batch: Batch, backbone: str, is_fast: bool) -> None:
    torch.manual_seed(0)
    network = Network(6, replace(OPTIONS, backbone=backbone)).double()
    items, results = torch.arange(6).expand(len(batch), 6), []
    for head in (network.forward, network.logged_head):
        if isinstance(network.backbone, GRU):
            network.backbone.is_fast_on_cpu = is_fast and head is not network.forward
        torch.manual_seed(1)
        values = head(batch).at(items)
        network.zero_grad()
        values.square().sum().backward()
        gradients = [one.grad for one in network.parameters() if one.grad is not None]
        results.append([values.detach(), *gradients])
    assert len(results[0]) > 5
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("backbone", ["gru", "sasrec", "caser"])
def test_states_after_the_actions_of_some_rows(batch: Batch, backbone: str) -> None:
    torch.manual_seed(0)
    network = Network(6, replace(OPTIONS, backbone=backbone)).double().eval()
    if isinstance(network.backbone, GRU):
        network.backbone.is_fast_on_cpu = True
    rows = torch.tensor([0, 7, len(batch) - 1])
    found = network.logged_states(batch, next_of=rows)
    states, next_states = network.states_and_next(batch)
    torch.testing.assert_close(found, torch.cat([states, next_states[rows]]), atol=1e-10, rtol=1e-10)
