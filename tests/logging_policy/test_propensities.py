"""Logged propensities in place of π̂_b: which logs have them, and that PG reads them."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from offrec.console import Console
from offrec.errors import InputError
from offrec.logging_policy.propensities import logged_propensities
from offrec.runs.train import train

SESSIONS = [[0, 1], [2, 0], [1], [2]]
# Each item was shown alone; in the first session one more item was ignored.
LISTS: list[list[Any]] = [
    [(0, (0,), 0.5, 0), (1, (2,), 0.9, None), (1, (1,), 0.25, 1)],
    [(0, (2,), 0.125, 0), (1, (0,), 0.5, 1)],
    [(0, (1,), 0.75, 0)],
    [(0, (2,), 0.75, 0)],
]


def made(make_dataset: Any, tmp_path: Path, lists: Any) -> Any:
    return make_dataset(tmp_path, SESSIONS, splits=(2, 1, 1), items=3, decisions=lists)


def test_each_training_event_has_the_propensity_of_its_list(make_dataset: Any, tmp_path: Path) -> None:
    found = logged_propensities(made(make_dataset, tmp_path, LISTS))
    assert found[:4].exp().tolist() == pytest.approx([0.5, 0.25, 0.125, 0.5])
    assert found[4:].isnan().all(), "validation and test are not read"


LONGER = [[(0, (0, 1), 0.5, 0), *LISTS[0][1:]], *LISTS[1:]]
MISSING = [LISTS[0][1:], *LISTS[1:]]


@pytest.mark.parametrize(
    ("lists", "message"),
    [(None, "contains no served lists"), (LONGER, "have up to 2 items"), (MISSING, "1 events of .* belong to no list")],
)
def test_other_logs_are_rejected_before_training(make_dataset: Any, tmp_path: Path, lists: Any, message: str) -> None:
    settings = {"algorithm.logging": "logged"}
    with pytest.raises(
        InputError, match=f"^algorithm.logging=logged needs .*{message}.*; use algorithm.logging=fitted"
    ):
        train(made(make_dataset, tmp_path, lists), tmp_path / "run", algorithm="pg", settings=settings)
    assert not (tmp_path / "run").exists()


def test_pg_divides_by_the_logged_propensity_and_fits_no_logging_policy(make_dataset: Any, tmp_path: Path) -> None:
    """Item 0 is right and common in both logs. The log whose propensities are smaller gives it larger weights."""
    losses = []
    for propensity in (1.0, 0.5):
        lists = [[(at, (item,), propensity, at) for at, item in enumerate(session)] for session in SESSIONS]
        dataset = made(make_dataset, tmp_path, lists)
        settings = {"algorithm.logging": "logged", "diagnostics": "some", "training.epochs": 1, "network.width": 4}
        out = tmp_path / f"run-{propensity}"
        policy = train(dataset, out, algorithm="pg", settings=settings, device="cpu", console=Console(quiet=True))
        assert not (dataset.path / "logging").exists()
        torch.testing.assert_close(policy.agent.log_b[:4], torch.full((4,), math.log(propensity)))
        lines = (out / "metrics.jsonl").read_text()
        losses.append(float(lines.partition('"actor": ')[2].partition("}")[0]))
    assert losses[1] == pytest.approx(2 * losses[0], rel=1e-4)
