"""Batches that are ranked apart give the metrics of one machine."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import InProcess

from offrec.baselines import baseline
from offrec.data.dataset import Dataset
from offrec.evaluation import evaluate
from offrec.evaluation.partitioned import evaluate_on
from offrec.policy import Policy


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    from small_datasets import write_dataset

    rng = np.random.default_rng(0)
    sessions = [rng.integers(0, 40, rng.integers(1, 12)).tolist() for _ in range(200)]
    behaviours = [["buy" if item % 7 == 0 else "view" for item in session] for session in sessions]
    return write_dataset(tmp_path_factory.mktemp("data"), sessions, behaviours, (120, 20, 60))


def load_markov(dataset: Dataset) -> Policy:
    return baseline("markov", dataset, history=5)


@pytest.mark.parametrize("slots", [1, 3, 50])
@pytest.mark.parametrize("protocol", [{}, {"exclude_seen": True, "score_first": False}, {"skip_recent": 2}])
def test_metrics_equal_those_of_one_machine(dataset: Dataset, slots: int, protocol: dict[str, Any]) -> None:
    scored = dataset.with_protocol(**protocol)
    policy = load_markov(dataset)
    one = evaluate(policy, scored, reward={"buy": 2.0}, batch_size=16)
    calls: list[tuple[int, int]] = []
    several = evaluate_on(
        InProcess(slots),
        load_markov,
        policy,
        scored,
        reward={"buy": 2.0},
        batch_size=16,
        progress=lambda *at: calls.append(at),
    )
    assert several.as_json() == one.as_json()
    assert several.ranks.rank.tolist() == one.ranks.rank.tolist()
    assert calls[-1] == (len(one.ranks.rank),) * 2


def test_another_log_is_evaluated_by_item_ids(dataset: Dataset, tmp_path: Path) -> None:
    from small_datasets import write_dataset

    later = write_dataset(tmp_path, [[1, 2, 3], [39, 0, 5], [4, 4]] * 9, None, (9, 9, 9))
    load = partial(_load_counted, dataset.path)
    policy = load(later)
    one = evaluate(policy, later, "all", batch_size=4)
    assert evaluate_on(InProcess(), load, policy, later, "all", batch_size=4).as_json() == one.as_json()


def _load_counted(path: Path, dataset: Dataset) -> Policy:
    return baseline("popular", Dataset.open(path))
