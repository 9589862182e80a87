"""Scores of the baselines mean-reward and total-reward, worked by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch

from offrec.baselines import baseline
from offrec.baselines.mean_reward import ItemReward, MeanReward, TotalReward
from offrec.errors import InputError

CPU = torch.device("cpu")
SESSIONS = [[0, 1], [0, 2], [1, 0], [2, 1], [3, 3], [3, 3]]
# The last two sessions are for validation and test: item 3 has no training events.
C, B = "click", "buy"
BEHAVIOURS = [[C, B], [C, C], [B, B], [C, C], [B, B], [B, B]]


@pytest.fixture
def dataset(make_dataset: Any, tmp_path: Path) -> Any:
    return make_dataset(tmp_path, SESSIONS, BEHAVIOURS)


def scores(policy: ItemReward) -> Any:
    return pytest.approx(policy.bias.tolist(), abs=2e-6)  # without the tie-break by popularity


def test_means_are_shrunk_towards_the_mean_of_all_training_events(dataset: Any) -> None:
    # Rewards: item 0: .2, .2, 1; item 1: 1, 1, .2; item 2: .2, .2. Mean of all eight events: 4 / 8 = .5.
    policy = MeanReward(dataset, 50, CPU, pseudo_events=2.0)
    assert scores(policy) == [(1.4 + 1) / 5, (2.2 + 1) / 5, (0.4 + 1) / 4, 0.5]


def test_totals_are_the_sums_of_rewards(dataset: Any) -> None:
    assert scores(TotalReward(dataset, 50, CPU)) == [1.4, 2.2, 0.4, 0.0]


def test_test_sessions_are_not_read(dataset: Any) -> None:
    # All events of item 3 are purchases, and all of them lie outside the train split.
    assert MeanReward(dataset, 50, CPU).bias[3].item() == pytest.approx(0.5)
    assert TotalReward(dataset, 50, CPU).bias[3].item() == 0.0


def test_a_reward_can_be_given_per_behaviour(dataset: Any) -> None:
    rewards = {"click": 0.0, "buy": 3.0}
    assert MeanReward(dataset, 50, CPU, rewards, pseudo_events=1e-12).bias[:3].tolist() == pytest.approx(
        [1.0, 2.0, 0.0], abs=2e-6
    )
    assert TotalReward(dataset, 50, CPU, rewards).bias[:3].tolist() == pytest.approx([3.0, 6.0, 0.0], abs=2e-6)


@pytest.mark.parametrize("name", ["mean-reward", "total-reward"])
def test_the_ranking_does_not_depend_on_the_history(dataset: Any, name: str) -> None:
    policy = baseline(name, dataset)
    assert policy.recommend([], k=4).items == policy.recommend([101, 101, 103], k=4).items


def test_equal_rewards_leave_the_order_to_popularity(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [[0, 1, 1], [1, 2, 2], [1, 2], [0], [0]])
    for name in ("mean-reward", "total-reward"):
        assert baseline(name, dataset).recommend([], k=3).items == [101, 102, 100]


def test_a_behaviour_without_a_reward_is_refused(dataset: Any) -> None:
    with pytest.raises(InputError, match="reward"):
        MeanReward(dataset, 50, CPU, {"like": 1.0})
