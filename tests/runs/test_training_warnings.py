"""Warnings that `train` prints before the first epoch, about the log of a run."""

from pathlib import Path
from typing import Any

import pytest
from small_runs import fast

from offrec.console import Console
from offrec.runs.train import train

SESSIONS = [[n % 7, (n + 1) % 7, (n + 2) % 7] for n in range(40)]
LISTS = [[(place, [item, (item + 3) % 7], 0.5, place) for place, item in enumerate(one)] for one in SESSIONS]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    printed: list[str] = []
    monkeypatch.setattr(Console, "line", lambda self, text: printed.append(text))
    return printed


def warnings(lines: list[str], dataset: Any, out: Path, algorithm: str, **options: Any) -> list[str]:
    lines.clear()
    train(dataset, out, algorithm=algorithm, settings=fast(algorithm), device="cpu", **options)
    return [line for line in lines if line.startswith("Warning: ")]


def test_a_user_model_without_lists_says_what_it_lacks(tmp_path: Path, make_dataset: Any, lines: list[str]) -> None:
    picks = make_dataset(tmp_path, SESSIONS, splits=(30, 5, 5))
    (sentence,) = warnings(lines, picks, tmp_path / "picks", "user-model")
    assert "contains no lists" in sentence
    assert "--format decisions or --format served (docs/how-to/your-log.md)." in sentence
    assert not any("contains no lists" in one for one in warnings(lines, picks, tmp_path / "sl", "sl"))
    lists = make_dataset(tmp_path, SESSIONS, splits=(30, 5, 5), decisions=LISTS)
    assert warnings(lines, lists, tmp_path / "lists", "user-model") == []
