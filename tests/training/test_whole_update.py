"""The plain DC update of benchmarks/update.py as a reference for a whole update."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield __import__("update")
    for name in ("update", "scale"):
        sys.modules.pop(name, None)


@pytest.fixture
def shared(benchmark: Any, tmp_path: Path, make_dataset: Any) -> Any:
    random = np.random.default_rng(0)
    sessions = [[int(item) for item in random.integers(0, 60, random.integers(2, 7))] for _ in range(120)]
    return benchmark.SharedData(make_dataset(tmp_path, sessions, splits=(110, 5, 5), items=60))


def test_two_updates_equal_the_plain_ones(benchmark: Any, shared: Any, tmp_path: Path) -> None:
    """Losses of the first update test the equations; those of the second test gradients, Adam and the target."""
    flat = {"network.width": 8, "training.batch_size": 64, "device": "cpu"}
    plain, exact, narrow = benchmark.compare(shared, flat, 2, tmp_path)
    assert plain["ms"] > 0
    assert max(exact["loss_difference"]) < 1e-4
    assert max(narrow["loss_difference"]) < 0.05
    assert plain["first"][0] != plain["first"][1]


def test_epochs_of_learners(benchmark: Any, shared: Any, tmp_path: Path) -> None:
    events = shared.dataset.split("train").events
    for name in ("sl", "pg", "dc"):
        row = benchmark.epoch(shared, {"algorithm.name": name, "network.width": 8, "device": "cpu"}, tmp_path)
        assert (row["learner"], row["batch_size"]) == (name, 64)
        assert abs(row["updates"] - events / 64) < 2
        assert row["seconds"] > 0
