"""`--select value`: keep the checkpoint with the largest value@5."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixed_policies import Fixed

from offrec.catalogue import Head
from offrec.console import Console
from offrec.data.rewards import event_rewards
from offrec.errors import InputError
from offrec.estimation import value_at_5
from offrec.estimation.decision_values import ValueOptions
from offrec.evaluation import ScoredEvents
from offrec.models.critic import CriticOptions
from offrec.models.network import NetworkOptions
from offrec.runs.train import train
from offrec.training.checkpoint import load
from offrec.types import Batch
from small_datasets import write_dataset

QUIET = Console(quiet=True)
SMALL = {"network.width": 8, "network.history": 5, "training.epochs": 3, "device": "cpu"}


def log(path: Path, word: str = "buy", train: int = 60) -> Any:
    random = np.random.default_rng(0)
    sessions = [random.integers(12, size=3).tolist() for _ in range(train + 20)]
    words = [[word if item < 4 else "view" for item in session] for session in sessions]
    return write_dataset(path, sessions, words, (train, 10, 10), items=12)


def test_the_selected_epoch_has_the_largest_value(tmp_path: Path) -> None:
    dataset = log(tmp_path)
    train(dataset, tmp_path / "run", algorithm="dqn", settings={**SMALL, "select": "value"}, console=QUIET)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    values = [line["validation"]["value@5"] for line in lines]
    progress = load(tmp_path / "run" / "best.safetensors")[1]["progress"]
    assert progress["best_epoch"] == int(np.argmax(values))
    assert progress["best"] == max(values)


def test_value_at_5_prefers_items_that_were_bought(tmp_path: Path) -> None:
    """Four of the top five were bought, each worth 0.8 more than a view: 0.64 more on average.

    With grounding, each item counts as ignored as often as it was picked, which halves the difference.
    """
    dataset, cpu = log(tmp_path, train=300), torch.device("cpu")
    buying, viewing = (Fixed(dataset, [sign * item for item in range(12)]) for sign in (-1.0, 1.0))
    for ground, gap in ((0, 0.64), (8, 0.32)):
        options = ValueOptions(NetworkOptions(width=8, history=5), CriticOptions(ground=ground), 300, 0.01, 32)
        logged = value_at_5.load_or_fit(dataset, event_rewards(dataset, {}), 0.9, options, cpu, QUIET)
        score = value_at_5.scorer(logged, ScoredEvents(dataset, "validation", 5, cpu))
        assert score(buying) - score(viewing) == pytest.approx(gap, abs=0.15)


class Restricted(Fixed):
    """A policy that may choose only the first `allowed` items."""

    allowed = 2

    def head(self, batch: Batch) -> Head:
        return super().head(batch).mask(torch.arange(self.allowed, self.n_items).expand(len(batch), -1))


def test_masked_items_do_not_count_in_value_at_5(tmp_path: Path) -> None:
    dataset, cpu = log(tmp_path), torch.device("cpu")
    options = ValueOptions(NetworkOptions(width=8, history=5), updates=30)
    logged = value_at_5.load_or_fit(dataset, event_rewards(dataset, {}), 0.9, options, cpu, QUIET)
    events = ScoredEvents(dataset, "validation", 5, cpu)
    with torch.no_grad():
        values = torch.cat(
            [logged.critic(batch).at(torch.tensor([[1, 0]]).expand(len(batch), -1)) for batch in events.batches()]
        )
    value = value_at_5.scorer(logged, events)(Restricted(dataset, [float(item) for item in range(12)]))
    assert value == pytest.approx(float(values.mean()) * logged.unit)


def test_states_have_the_history_length_of_the_policy(tmp_path: Path) -> None:
    dataset, options = log(tmp_path), ValueOptions(NetworkOptions(width=8, history=7), updates=5)
    policy = Fixed(dataset, [0.0] * 12)
    score = value_at_5.scorer_for(dataset, "validation", event_rewards(dataset, {}), options, policy, QUIET)
    assert score is not None
    (about,) = (dataset.path / "values").glob("*/about.json")
    assert json.loads(about.read_text())["options"]["network"]["history"] == policy.history == 5


def test_runs_that_select_by_another_metric_do_not_fit_values(tmp_path: Path) -> None:
    dataset = log(tmp_path)
    train(dataset, tmp_path / "run", settings=SMALL, console=QUIET)
    assert not (dataset.path / "values").exists()
    assert "value@5" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_selecting_by_value_needs_rewards(tmp_path: Path) -> None:
    dataset = log(tmp_path, word="wink")
    with pytest.raises(InputError, match="behaviour 'wink' has no reward"):
        train(dataset, tmp_path / "run", settings={**SMALL, "select": "value"}, console=QUIET)
    assert not (tmp_path / "run").exists()
