"""The cache of fitted Q: a second estimate fits nothing, other lists or options do, and damage is detected."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.baselines import baseline
from offrec.console import Console
from offrec.data.rewards import event_rewards
from offrec.errors import InputError
from offrec.estimation import passes
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.fitted_q import PolicyValues
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import EstimateOptions
from small_datasets import write_dataset

QUIET = Console(quiet=True)
FAST = EstimateOptions(play="topk", k=2, values=ValueOptions(updates=2))


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    sessions = [[0, 1], [2], [1, 1, 3], [0, 2]] * 3
    return write_dataset(tmp_path, sessions, splits=(8, 1, 3), items=4)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the fits so far."""
    numbers: list[int] = []
    original = passes.fit_number

    def count(*arguments: Any) -> Any:
        numbers.append(arguments[5])
        return original(*arguments)

    monkeypatch.setattr(passes, "fit_number", count)
    return numbers


def values(dataset: Any, name: str = "popular", options: EstimateOptions = FAST, count: int = 2) -> list[PolicyValues]:
    list_policy = ListPolicy(baseline(name, dataset, device=torch.device("cpu")), "topk", 2)
    decisions, rewards = LoggedDecisions.load(dataset, "test"), event_rewards(dataset, {})
    return passes.LocalPasses().fitted_values(name, list_policy, decisions, rewards, options, count, QUIET)


def test_a_second_estimate_reads_what_the_first_one_fitted(dataset: Any, fits: list[int]) -> None:
    first, second = values(dataset), values(dataset)
    assert fits == [0, 1]
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.q, other.q)
        assert np.array_equal(one.v, other.v)
    values(dataset, count=3)  # a further refit
    assert fits == [0, 1, 2]


def test_other_lists_and_other_options_are_fitted(dataset: Any, fits: list[int]) -> None:
    values(dataset, count=1)
    values(dataset, "recent", count=1)
    values(dataset, options=EstimateOptions(play="topk", k=2, gamma=0.5, values=ValueOptions(updates=2)), count=1)
    values(dataset, options=EstimateOptions(play="topk", k=2, values=ValueOptions(updates=3)), count=1)
    assert fits == [0, 0, 0, 0]


def test_damaged_values_are_refused(dataset: Any) -> None:
    values(dataset, count=1)
    (folder,) = (one.parent for one in (dataset.path / "values").glob("*/about.json"))
    array = np.load(folder / "v.npy")
    np.save(folder / "v.npy", array + 1)
    with pytest.raises(InputError, match=r"cannot be read .*; remove the folder to fit Q again\."):
        values(dataset, count=1)
