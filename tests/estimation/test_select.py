"""--select value: the checkpoint whose best five were worth most to the log's visitors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixed_policies import Fixed

from made_datasets import write_dataset
from offrec.catalogue import Head
from offrec.console import Console
from offrec.data.transitions import reward_vector
from offrec.errors import InputError
from offrec.estimation import value_at_5
from offrec.estimation.decision_values import ValueOptions
from offrec.evaluation import ScoredEvents
from offrec.models.critic import CriticOptions
from offrec.models.network import NetworkOptions
from offrec.runs.train import train
from offrec.training.checkpoint import load
from offrec.types import Batch

QUIET = Console(quiet=True)
SMALL = {"network.width": 8, "network.history": 5, "training.epochs": 3, "device": "cpu"}


def log(path: Path, word: str = "buy", train: int = 60) -> Any:
    random = np.random.default_rng(0)
    sessions = [random.integers(12, size=3).tolist() for _ in range(train + 20)]
    words = [[word if item < 4 else "view" for item in session] for session in sessions]
    return write_dataset(path, sessions, words, (train, 10, 10), items=12)


def test_the_kept_epoch_has_the_largest_value(tmp_path: Path) -> None:
    dataset = log(tmp_path)
    train(dataset, tmp_path / "run", algorithm="dqn", settings={**SMALL, "select": "value"}, console=QUIET)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    figures = [line["validation"]["value@5"] for line in lines]
    place = load(tmp_path / "run" / "best.safetensors")[1]["place"]
    assert place["best_epoch"] == int(np.argmax(figures))
    assert place["best"] == max(figures)


def test_it_prefers_what_was_bought(tmp_path: Path) -> None:
    """Four of five were bought, for 0.8 more than a view: 0.64 more. Grounded, an item counts as ignored as often as it
    was taken, here: half of that.
    """
    dataset, cpu = log(tmp_path, train=300), torch.device("cpu")
    bought, seen = (Fixed(dataset, [sign * item for item in range(12)]) for sign in (-1.0, 1.0))
    for ground, gap in ((0, 0.64), (8, 0.32)):
        options = ValueOptions(NetworkOptions(width=8, history=5), CriticOptions(ground=ground), 300, 0.01, 32)
        logged = value_at_5.load_or_fit(dataset, reward_vector(dataset.behaviours, {}), 0.9, options, cpu, QUIET)
        judge = value_at_5.scorer(logged, ScoredEvents(dataset, "validation", 5, cpu))
        assert judge(bought) - judge(seen) == pytest.approx(gap, abs=0.15)


class Narrow(Fixed):
    """Of its items only the first `left` of a state may be chosen."""

    left = 2

    def head(self, batch: Batch) -> Head:
        return super().head(batch).mask(torch.arange(self.left, self.n_items).expand(len(batch), -1))


def test_items_that_a_policy_may_not_choose_are_none_of_its_best(tmp_path: Path) -> None:
    dataset, cpu = log(tmp_path), torch.device("cpu")
    options = ValueOptions(NetworkOptions(width=8, history=5), updates=30)
    logged = value_at_5.load_or_fit(dataset, reward_vector(dataset.behaviours, {}), 0.9, options, cpu, QUIET)
    events = ScoredEvents(dataset, "validation", 5, cpu)
    with torch.no_grad():
        worth = torch.cat(
            [logged.critic(batch).at(torch.tensor([[1, 0]]).expand(len(batch), -1)) for batch in events.batches()]
        )
    found = value_at_5.scorer(logged, events)(Narrow(dataset, [float(item) for item in range(12)]))
    assert found == pytest.approx(float(worth.mean()) * logged.unit)


def test_states_are_as_long_as_the_policy_s(tmp_path: Path) -> None:
    dataset, options = log(tmp_path), ValueOptions(NetworkOptions(width=8, history=7), updates=5)
    policy = Fixed(dataset, [0.0] * 12)
    judge = value_at_5.scorer_for(dataset, "validation", reward_vector(dataset.behaviours, {}), options, policy, QUIET)
    assert judge is not None
    (about,) = (dataset.path / "values").glob("*/about.json")
    assert json.loads(about.read_text())["options"]["network"]["history"] == policy.history == 5


def test_nobody_else_pays_for_it(tmp_path: Path) -> None:
    dataset = log(tmp_path)
    train(dataset, tmp_path / "run", settings=SMALL, console=QUIET)
    assert not (dataset.path / "values").exists()
    assert "value@5" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_it_needs_rewards(tmp_path: Path) -> None:
    dataset = log(tmp_path, word="wink")
    with pytest.raises(InputError, match="No reward is known for the behaviour 'wink'"):
        train(dataset, tmp_path / "run", settings={**SMALL, "select": "value"}, console=QUIET)
    assert not (tmp_path / "run").exists()
