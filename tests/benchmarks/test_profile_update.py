"""benchmarks/profile_update.py: kinds of kernels, and the time in which at least one runs."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield __import__("profile_update")
    for name in {"profile_update", "update", "scale", "catalogue", "evidence"} - before:
        sys.modules.pop(name, None)


def test_overlapping_kernels_count_once(script: ModuleType) -> None:
    events = [("forward", 0.0, 10.0), ("backward_table", 4.0, 3.0), ("combine", 20.0, 5.0), ("gather", 22.0, 9.0)]
    assert script.busy(events) == 10 + 11


def test_rows_are_times_per_update(script: ModuleType) -> None:
    events = [("forward", 0.0, 10.0), ("forward", 5.0, 20.0), ("void at::native::multi_tensor_apply", 40.0, 4.0)]
    rows = {row["part"]: (row["kernels"], row["microseconds"]) for row in script.summary(events, 2, 0.03)}
    assert rows == {
        "passes over the catalogue": (1, 15),
        "Adam, target network and norms": (0.5, 2),
        "all kernels": (1.5, 17),
        "at least one kernel runs": (None, 14.5),
        "an update, without the profiler": (None, 30),
    }
