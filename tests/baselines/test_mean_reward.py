"""Scores of the mean-reward baseline, worked by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch

from offrec.baselines import baseline
from offrec.baselines.mean_reward import MeanReward, shrunk_means
from offrec.catalogue import reference
from offrec.data.replay import batch_from_histories
from offrec.errors import InputError

CPU = torch.device("cpu")
SESSIONS = [[0, 1], [0, 2], [1, 0], [2, 1], [3, 3], [3, 3]]
# The last two sessions are for validation and test: item 3 has no training events.
C, B = "click", "buy"
BEHAVIOURS = [[C, B], [C, C], [B, B], [C, C], [B, B], [B, B]]


@pytest.fixture
def dataset(make_dataset: Any, tmp_path: Path) -> Any:
    return make_dataset(tmp_path, SESSIONS, BEHAVIOURS)


def test_means_are_shrunk_towards_the_mean_of_all_training_events(dataset: Any) -> None:
    # Rewards: item 0: .2, .2, 1; item 1: 1, 1, .2; item 2: .2, .2. Mean of all eight events: 4 / 8 = .5.
    means = shrunk_means(dataset, {}, pseudo_events=2.0)
    assert means.tolist() == pytest.approx([(1.4 + 1) / 5, (2.2 + 1) / 5, (0.4 + 1) / 4, 0.5])


def test_test_sessions_are_not_read(dataset: Any) -> None:
    # All events of item 3 are purchases, and all of them lie outside the train split.
    assert shrunk_means(dataset, {}, pseudo_events=20.0)[3] == pytest.approx(0.5)


def test_a_reward_can_be_given_per_behaviour(dataset: Any) -> None:
    means = shrunk_means(dataset, {"click": 0.0, "buy": 3.0}, pseudo_events=0.0 + 1e-12)
    assert means[:3].tolist() == pytest.approx([1.0, 2.0, 0.0])


def test_the_last_picks_are_ranked_last_in_their_order(dataset: Any) -> None:
    policy = MeanReward(dataset, 50, CPU, pseudo_events=2.0, skip_recent=2)
    # By score: 1 (.64), 3 (.5), 0 (.48), 2 (.35); ids are 100 + index.
    assert policy.recommend([], k=4).items == [101, 103, 100, 102]
    assert policy.recommend([101], k=4).items == [103, 100, 102, 101]
    assert policy.recommend([102, 101, 101], k=4).items == [103, 100, 102, 101]
    assert policy.recommend([103, 101, 102], k=4).items == [103, 100, 101, 102]


def test_a_repeated_pick_is_lowered_once(dataset: Any) -> None:
    policy = MeanReward(dataset, 50, CPU)
    head = policy.head(batch_from_histories([[1, 1, 1], [1]], 4, 50, CPU))
    scores = reference.logits(head)
    assert scores[0].tolist() == pytest.approx(scores[1].tolist())


def test_equal_rewards_leave_the_order_to_popularity(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [[0, 1, 1], [1, 2, 2], [1, 2], [0], [0]])
    assert baseline("mean-reward", dataset).recommend([], k=3).items == [101, 102, 100]


def test_a_behaviour_without_a_reward_is_refused(dataset: Any) -> None:
    with pytest.raises(InputError, match="reward"):
        MeanReward(dataset, 50, CPU, {"like": 1.0})
