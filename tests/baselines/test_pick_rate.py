"""The baselines pick-rate and pick-return: hand-worked scores, and logs without lists."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.baselines import PickRate, PickReturn, baseline
from offrec.baselines.pick_rate import pick_rates
from offrec.catalogue import reference
from offrec.data.replay import batch_from_histories
from offrec.errors import InputError

CPU = torch.device("cpu")
# Two training sessions. Items 0, 1 and 2 are shown 3, 4 and 1 times and picked 1, 2 and 0 times.
SESSIONS = [[0, 1], [1], [0], [2]]
BEHAVIOURS = [["view", "buy"], ["view"], ["view"], ["buy"]]
LISTS = [
    [(0, (0, 1), 0.5, 0), (1, (1, 0), 0.5, 1)],
    [(0, (1, 0), 0.5, None), (0, (1, 2), 0.5, 0)],
    [(0, (2, 0), 0.5, 0)],
    [(0, (2,), 0.5, 0)],
]


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Any:
    return make_dataset(tmp_path, SESSIONS, BEHAVIOURS, splits=(2, 1, 1), decisions=LISTS)


def test_rates_count_training_lists_only(dataset: Any) -> None:
    assert pick_rates(dataset, 0.0).tolist() == [1 / 3, 2 / 4, 0.0]


def test_rates_are_shrunk_towards_the_mean_rate(dataset: Any) -> None:
    """3 picks in 8 shows; with 8 pseudo-shows item 2 has (0 + 8 · 3/8) / (1 + 8)."""
    assert pick_rates(dataset, 8.0)[2] == pytest.approx(3 / 9)


def test_scores_are_worked_by_hand(dataset: Any) -> None:
    """A pick of item 0 earned .2, those of item 1 earned 1 and .2, and the mean is 1.4/3. Item 2 was not picked."""
    policy = PickRate(dataset, 50, CPU, pseudo_events=1e-9)
    expected = [(0.2 - 1.4 / 3) / 3, (0.6 - 1.4 / 3) / 2, 0.0]
    for row in reference.logits(policy.head(batch_from_histories([[], [1]], 3, 50, CPU))):  # equal for every history
        np.testing.assert_allclose(row.numpy(), expected, atol=2e-6)


def test_an_item_that_is_never_picked_ranks_below_a_rewarding_and_above_a_poor_one(dataset: Any) -> None:
    assert baseline("pick-rate", dataset).recommend([], 3).items == [101, 102, 100]


def test_returns_are_worked_by_hand(dataset: Any) -> None:
    """Returns: .2 + .9 · 1 = 1.1 for item 0; 1 and .2 for item 1; their mean is 2.3/3."""
    policy = PickReturn(dataset, 50, CPU, pseudo_events=1e-9)
    expected = [(1.1 - 2.3 / 3) / 3, (0.6 - 2.3 / 3) / 2, 0.0]
    found = reference.logits(policy.head(batch_from_histories([[]], 3, 50, CPU)))[0]
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)


@pytest.mark.parametrize("name", ["pick-rate", "pick-return"])
def test_a_log_without_lists_is_rejected_in_one_sentence(tmp_path: Path, make_dataset: Any, name: str) -> None:
    plain = make_dataset(tmp_path, SESSIONS, BEHAVIOURS, splits=(2, 1, 1))
    with pytest.raises(InputError, match=r"contains no served lists.*choose another baseline\.$"):
        baseline(name, plain)
