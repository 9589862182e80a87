"""Sessions without an event (lists were shown, nothing was picked) do not change anything that reads events."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import QUIET, trained

from offrec.baselines import BASELINES, baseline
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.data.transitions import transitions
from offrec.evaluation import evaluate
from offrec.logging_policy import fitting
from offrec.logging_policy.cache import FitSpec
from offrec.models.network import NetworkOptions
from offrec.training.loop import TrainingOptions
from small_datasets import write_dataset

SESSIONS = [[n % 7, (n + 1) % 7, (n + 2) % 7][: 1 + n % 3] for n in range(40)]
EMPTY = (0, 1, 9, 30, 31, 34, 39, 40)  # an empty session is inserted before each of these


def with_empty() -> tuple[list[list[int]], tuple[int, int, int]]:
    """The sessions with empty ones at the start, at the end and in between, in every split."""
    sessions: list[list[int]] = []
    for number, session in enumerate(SESSIONS):
        sessions += [[]] * EMPTY.count(number) + [session]
    return [*sessions, []], (33, 8, 7)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Dataset, Dataset]:
    """Two datasets with the same events, without and with empty sessions; times decrease."""
    sessions, splits = with_empty()
    ignored: list[list[Any]] = [[(0, [0, 1], 0.5, None)] for _ in sessions]
    plain = write_dataset(tmp_path, SESSIONS, splits=(30, 5, 5), items=8)
    padded = write_dataset(tmp_path, sessions, splits=splits, items=8, decisions=ignored)
    times = np.arange(len(plain.sessions.items))[::-1].astype(np.int64)
    plain, padded = replace(plain, times=times), replace(padded, times=times)
    assert [plain.split(name).events for name in ("train", "validation", "test")] == [
        padded.split(name).events for name in ("train", "validation", "test")
    ]
    return plain, padded


def test_training_and_evaluation_do_not_change(pair: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    runs = [trained(dataset.path, tmp_path / str(n), algorithm="sl") for n, dataset in enumerate(pair)]
    figures = [evaluate(policy, dataset, "test").metrics for policy, dataset in zip(runs, pair, strict=True)]
    assert figures[0] == figures[1]
    assert figures[0]["all"].events == 10
    first, second = (sorted(policy.agent.state_dict().items()) for policy in runs)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first, second, strict=True))


@pytest.mark.parametrize("name", sorted(name for name in BASELINES if BASELINES[name].needs_only_events))
def test_baselines_do_not_change(pair: tuple[Dataset, Dataset], name: str) -> None:
    plain, padded = (evaluate(baseline(name, dataset), dataset, "test") for dataset in pair)
    assert plain.metrics == padded.metrics
    assert plain.ranks.rank.tolist() == padded.ranks.rank.tolist()


def test_rewards_and_returns_do_not_change(pair: tuple[Dataset, Dataset]) -> None:
    for split in ("train", "validation", "test"):
        plain, padded = (transitions(dataset.split(split), event_rewards(dataset, {}), 0.5) for dataset in pair)
        for name in ("reward", "discount", "return_to_go"):
            assert getattr(plain, name).tolist() == getattr(padded, name).tolist()


def test_the_folds_of_the_logging_policy_do_not_change(pair: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    training = TrainingOptions(epochs=1, batch_size=40, learning_rate=0.01)
    values = []
    for number, dataset in enumerate(pair):
        root = tmp_path / f"root-{number}"
        root.mkdir()
        spec = FitSpec(dataset, NetworkOptions(width=8, history=6, repeat="off"), training, seed=0, folds=3)
        fitting.fit_logging_policy(spec, ["log_b"], root, torch.device("cpu"), QUIET)
        values.append(np.load(spec.folder(root, "log_b") / "log_b.npy"))
    train = pair[0].split("train").events
    assert np.isfinite(values[0][:train]).all()
    assert values[0][:train].tolist() == values[1][:train].tolist()
