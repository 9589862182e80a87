"""The baseline pick-rate: hand-worked scores, the fixed point, and logs without lists."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.baselines import PickRate, baseline
from offrec.baselines.pick_rate import best_list_reward, pick_rates
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
    rate, none_share, k = pick_rates(dataset, 0.0)
    assert rate.tolist() == [1 / 3, 2 / 4, 0.0]
    assert (none_share, k) == (1 / 4, 2)


def test_rates_are_shrunk_towards_the_mean_rate(dataset: Any) -> None:
    """3 picks in 8 shows; with 8 pseudo-shows item 2 has (0 + 8 · 3/8) / (1 + 8)."""
    assert pick_rates(dataset, 8.0)[0][2] == pytest.approx(3 / 9)


def test_scores_are_worked_by_hand(dataset: Any) -> None:
    """Rewards of a pick: .2 for item 0, .6 for item 1; item 2 has none and gets the mean 1.4/3 of its pseudo-event.

    Item 1 alone would earn .5 · .6 / (.25 + .5); with item 2 as well, which is hardly ever picked, λ is about the same.
    """
    policy = PickRate(dataset, 50, CPU, pseudo_events=1e-9)
    rate, reward = np.array([1 / 3, 1 / 2, 0.0]), np.array([0.2, 0.6, 1.4 / 3])
    lists = list(combinations(range(3), 2))
    level = max((rate[list(a)] * reward[list(a)]).sum() / (0.25 + rate[list(a)].sum()) for a in lists)
    assert level == pytest.approx(0.4)
    found = reference.logits(policy.head(batch_from_histories([[], [1]], 3, 50, CPU)))
    for row in found:  # the same for every history
        np.testing.assert_allclose(row.numpy(), rate * (reward - level), atol=2e-6)


def test_the_fixed_point_is_the_best_list_of_all() -> None:
    random = np.random.default_rng(0)
    for none_share in (0.0, 0.3, 2.0):
        rate, reward = random.random(9), random.random(9)
        every = [np.array(one) for one in combinations(range(9), 3)]
        best = max(every, key=lambda a: (rate[a] * reward[a]).sum() / (none_share + rate[a].sum()))
        level = best_list_reward(rate, reward, none_share, 3)
        assert level == pytest.approx((rate[best] * reward[best]).sum() / (none_share + rate[best].sum()))
        assert set(np.argsort(-rate * (reward - level))[:3]) == set(best)


def test_a_log_without_lists_is_rejected_in_one_sentence(tmp_path: Path, make_dataset: Any) -> None:
    plain = make_dataset(tmp_path, SESSIONS, BEHAVIOURS, splits=(2, 1, 1))
    with pytest.raises(InputError, match=r"contains no served lists.*choose another baseline\.$"):
        baseline("pick-rate", plain)
