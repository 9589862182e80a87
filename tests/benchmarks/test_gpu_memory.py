"""benchmarks/gpu_memory.py: its goals, and its code on a CPU."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield __import__("gpu_memory")
    for name in ("gpu_memory", "evidence"):
        sys.modules.pop(name, None)


def rows(**changes: Any) -> list[dict[str, Any]]:
    """Three runs that meet every goal, followed by eight concurrent ones; changes apply to the second run."""
    one = {"concurrent_runs": 1, "reserved_after": 100, "peak_reserved": 900, "peak_in_use": 700, "expected": 1000}
    together = {"concurrent_runs": 8, "reserved_after": 100, "peak_reserved": 7000, "peak_in_use": 5600}
    return [one, {**one, **changes}, one, {**together, "expected": 8000}]


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, None),
        ({"reserved_after": 110}, 0),
        ({"peak_in_use": 500}, 1),
        ({"expected": 600}, 2),
        ({"expected": 1300}, 2),
    ],
)
def test_each_goal_is_checked(gpu_memory: ModuleType, change: dict[str, int], missed: int | None) -> None:
    met = list(gpu_memory.check_goals(rows(**change)).values())
    assert met == [number != missed for number in range(4)]


def test_eight_trainings_must_fit_into_a_card(gpu_memory: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "CARD", 6999)
    assert list(gpu_memory.check_goals(rows()).values()) == [True, True, True, False]


def test_runs_alone_and_concurrent_runs_are_measured(gpu_memory: ModuleType, tmp_path: Path) -> None:
    dataset = gpu_memory.random_log(tmp_path, 60, 20)
    settings = {"algorithm.name": "sl", "training.epochs": 1, "network.width": 4}
    measured = gpu_memory.measure(dataset, 2, 2, torch.device("cpu"), settings, tmp_path)
    assert [row["concurrent_runs"] for row in measured] == [1, 1, 2]
    assert measured[0]["expected"] < measured[2]["expected"] < 2 * measured[0]["expected"]
