"""The decisions of a dataset: read, split."""

from pathlib import Path

import numpy as np
import pytest

from offrec.data.dataset import Dataset
from small_datasets import write_dataset

SESSIONS = [[0, 1], [], [2], [1]]
DECISIONS = [
    [(0, [0, 3], 0.5, 0), (1, [3], 0.25, None), (1, [1, 2], 0.125, 1)],
    [(0, [1, 0], 0.5, None)],
    [(0, [2, 0], 1.0, 0)],
    [(0, [1, 3], 0.75, 0), (1, [0, 1], 0.5, None)],
]


def dataset_with_decisions(path: Path) -> Dataset:
    return write_dataset(path, SESSIONS, splits=(2, 1, 1), items=4, decisions=DECISIONS)


def test_decisions_are_read_from_the_folder(tmp_path: Path) -> None:
    decisions = dataset_with_decisions(tmp_path).decisions
    assert decisions is not None
    assert (len(decisions), decisions.k) == (7, 2)
    assert decisions.offsets.tolist() == [0, 3, 4, 5, 7]
    assert decisions.positions.tolist() == [0, 1, 1, 0, 0, 0, 1]
    assert decisions.items.tolist() == [[0, 3], [3, 4], [1, 2], [1, 0], [2, 0], [1, 3], [0, 1]]
    assert np.exp(decisions.log_propensity) == pytest.approx([0.5, 0.25, 0.125, 0.5, 1.0, 0.75, 0.5])
    assert decisions.event.tolist() == [0, -1, 1, -1, 2, 3, -1]


def test_a_split_shares_the_arrays(tmp_path: Path) -> None:
    dataset = dataset_with_decisions(tmp_path)
    test = dataset.split_decisions("test")
    assert test is not None
    assert len(test) == 2
    assert test.offsets.tolist() == [5, 7]
    assert test.items[test.offsets[0]].tolist() == [1, 3]
    assert test.items is dataset.decisions.items  # type: ignore[union-attr]


def test_a_log_of_events_has_no_decisions(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, [[0], [1], [2]])
    assert dataset.decisions is None
    assert dataset.split_decisions("train") is None
