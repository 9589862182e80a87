"""Interleaved runs equal runs trained alone, bit for bit; a run that fails does not affect the others."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.console import Console
from offrec.errors import InputError, Interrupted
from offrec.runs.loading import load
from offrec.runs.train import train, train_many
from offrec.training import checkpoint
from offrec.training.loop import Trainer
from offrec.training.update import Update

SMALL = {
    "network.width": 16,
    "network.history": 6,
    "network.dropout": 0.4,
    "training.batch_size": 40,
    "training.epochs": 2,
    "training.patience": 9,
    "training.learning_rate": 0.01,
    "device": "cpu",
}
RUNS: dict[str, dict[str, Any]] = {
    "zero": SMALL,
    "one": {**SMALL, "seed": 1},
    "wide": {**SMALL, "network.width": 24, "training.epochs": 3, "training.batch_size": 25},
    "dense": {**SMALL, "network.backbone": "sasrec", "catalogue": "reference"},
}


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Any:
    random = np.random.default_rng(0)
    sessions = [[(int(s) + 3 * t) % 20 for t in range(random.integers(2, 12))] for s in random.integers(0, 20, 120)]
    return make_dataset(tmp_path, sessions, splits=(90, 15, 15))


class Heard(Console):
    def __init__(self) -> None:
        super().__init__()
        self.terminal = False
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def last(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder / "last.safetensors")[0]


def assert_same(one: Path, other: Path) -> None:
    first, second = last(one), last(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()


def alone(dataset: Any, folder: Path) -> Path:
    for name, settings in RUNS.items():
        train(dataset, folder / name, settings=settings, console=Console(quiet=True), **given(settings))
    return folder


def given(settings: dict[str, Any]) -> dict[str, Any]:
    return {"seed": settings.get("seed", 0), "device": "cpu"}


def test_interleaved_runs_equal_runs_alone(dataset: Any, tmp_path: Path) -> None:
    alone(dataset, tmp_path / "alone")
    console, before = Heard(), torch.get_rng_state()
    policies = train_many(dataset, RUNS, tmp_path / "many", console=console)
    assert torch.equal(before, torch.get_rng_state())
    assert list(policies) == list(RUNS)
    for name in RUNS:
        assert_same(tmp_path / "alone" / name, tmp_path / "many" / name)
        assert policies[name].recommend([103], 3) == load(tmp_path / "alone" / name, "cpu").recommend([103], 3)
    assert "memory of the 4 concurrent runs" in console.lines[0]
    assert sum(line.startswith("wide  epoch ") for line in console.lines) == 3
    order = [line.split()[0] for line in console.lines if "epoch " in line and "best" in line]
    assert len(set(order[:3])) > 1, "turn by turn, not one after the other"


def poisoned(monkeypatch: pytest.MonkeyPatch, name: str, act: Any, after: int = 5) -> None:
    """Let `act` change the run `name` after one of its updates."""
    real_init, real_call, done = Trainer.__init__, Update.__call__, 0
    trainers: dict[Update, Trainer] = {}

    def init(self: Trainer, *arguments: Any) -> None:
        real_init(self, *arguments)
        trainers[self.update] = self

    def call(self: Update, size: Any) -> None:
        nonlocal done
        real_call(self, size)
        is_target = trainers[self].folder.name == name
        done += is_target
        if done == after and is_target:
            act(trainers[self])

    monkeypatch.setattr(Trainer, "__init__", init)
    monkeypatch.setattr(Update, "__call__", call)


def test_a_failing_run_does_not_affect_the_others(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(dataset, tmp_path / "alone")

    def spoil(trainer: Trainer) -> None:
        with torch.no_grad():
            next(trainer.task.module.parameters()).fill_(float("nan"))

    poisoned(monkeypatch, "one", spoil)
    console = Heard()
    policies = train_many(dataset, RUNS, tmp_path / "many", console=console)
    assert list(policies) == ["zero", "wide", "dense"]
    assert any(
        line.startswith("one failed: The loss 'cross_entropy' became nan in epoch 1, step 6") for line in console.lines
    )
    for name in policies:
        assert_same(tmp_path / "alone" / name, tmp_path / "many" / name)


def test_a_stop_saves_all_runs_and_they_can_be_resumed(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(dataset, tmp_path / "alone")
    with monkeypatch.context() as patch:
        poisoned(patch, "wide", lambda trainer: os.kill(os.getpid(), signal.SIGINT), after=31)
        with pytest.raises(Interrupted, match=r"Stopped .*wide; everything is saved\. Run the command with --resume"):
            train_many(dataset, RUNS, tmp_path / "many", console=Heard())
    console = Heard()
    train_many(dataset, RUNS, tmp_path / "many", resume=True, console=console)
    for name in RUNS:
        assert_same(tmp_path / "alone" / name, tmp_path / "many" / name)
    again = train_many(dataset, RUNS, tmp_path / "many", resume=True, console=console)
    assert list(again) == list(RUNS), "what is trained already is loaded"


def test_a_refused_run_writes_nothing(dataset: Any, tmp_path: Path) -> None:
    train(dataset, tmp_path / "many/one", settings=SMALL, device="cpu", console=Console(quiet=True))
    with pytest.raises(InputError, match="exists; choose another --out"):
        train_many(dataset, RUNS, tmp_path / "many", console=Heard())
    assert sorted(folder.name for folder in (tmp_path / "many").iterdir()) == ["one"]
    assert json.loads((tmp_path / "many/one/run.json").read_text())["options"]["seed"] == 0
