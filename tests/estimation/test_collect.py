"""What an estimate is made from, against numbers worked by hand."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from fixed_policies import Fixed

from made_datasets import write_dataset
from offrec.catalogue import Head
from offrec.data.transitions import reward_vector
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.estimation.collect import LoggingModel, collect_trajectories, load_logging_model
from offrec.estimation.list_policy import ListPolicy, log_prob_of_lists
from offrec.estimation.logged_decisions import LoggedDecisions

LOGITS = [0.0, math.log(2.0), math.log(5.0)]  # 1/8, 2/8, 5/8
PICKS = [[0, 1], [2, 2, 1], [1], [0, 2, 1]]
DONE = [["view", "buy"], ["view", "view", "view"], ["buy"], ["view", "view", "buy"]]


def shown(shares: list[float]) -> LoggingModel:
    return LoggingModel(None, torch.tensor(shares).log(), {})


def test_picks_are_decisions_of_one_item(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, PICKS, DONE, (1, 1, 2))
    steps = collect_trajectories(
        ListPolicy(Fixed(dataset, LOGITS)), dataset, "test", reward_vector(dataset.behaviours, {}), None
    )
    assert steps.offsets.tolist() == [0, 1, 4]
    assert steps.reward == pytest.approx([1.0, 0.2, 0.2, 1.0])
    assert steps.by["buy"] == pytest.approx([1.0, 0.0, 0.0, 1.0])
    assert np.exp(steps.log_pi) == pytest.approx([2 / 8, 1 / 8, 5 / 8, 2 / 8])
    assert steps.log_b is None


def test_the_state_is_the_picks_before(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, PICKS, DONE, (1, 1, 2))
    policy = Fixed(dataset, LOGITS, again=math.log(3.0))  # the item seen last is three times as likely
    steps = collect_trajectories(
        ListPolicy(policy), dataset, "test", reward_vector(dataset.behaviours, {}), None, batch_size=1
    )
    assert np.exp(steps.log_pi) == pytest.approx([2 / 8, 1 / 8, 5 / 10, 2 / 18])


def test_a_temperature_sharpens(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, PICKS, DONE, (1, 1, 2))
    played = ListPolicy(Fixed(dataset, LOGITS), temperature=0.5)
    steps = collect_trajectories(played, dataset, "test", reward_vector(dataset.behaviours, {}), None)
    assert np.exp(steps.log_pi) == pytest.approx([4 / 30, 1 / 30, 25 / 30, 4 / 30])


def test_a_blend_leaves_the_other_decisions_to_the_log(tmp_path: Path) -> None:
    decisions = [[(0, [0], 0.5, 0)], [(0, [2], 0.25, 0)], [(0, [1], 0.1, 0)], [(0, [2], 0.2, None), (0, [0], 0.4, 0)]]
    dataset = write_dataset(tmp_path, [[0], [2], [1], [0]], splits=(1, 1, 2), decisions=decisions)
    policy, rewards = Fixed(dataset, LOGITS), reward_vector(dataset.behaviours, {})
    alone, blended = (
        collect_trajectories(ListPolicy(policy, blend=blend), dataset, "test", rewards, shown([0.5, 0.5, 1e-9]))
        for blend in (1.0, 0.2)
    )
    assert np.exp(alone.log_pi) == pytest.approx([2 / 8, 5 / 8, 1 / 8])
    assert np.exp(blended.log_pi) == pytest.approx([0.05 + 0.08, 0.125 + 0.16, 0.025 + 0.32])
    assert np.exp(blended.log_b) == pytest.approx([0.1, 0.2, 0.4])
    assert blended.rare == pytest.approx(0.2 * alone.rare)
    assert alone.rare == pytest.approx(5 / 8)


def test_what_cannot_be_blended(tmp_path: Path) -> None:
    policy = Fixed(write_dataset(tmp_path, PICKS, DONE, (1, 1, 2)), LOGITS)
    for options, words in (({"blend": 0.0}, "The blend is 0.0"), ({"blend": 0.5, "play": "topk"}, "no blend of it")):
        with pytest.raises(InputError, match=words):
            ListPolicy(policy, **options)


def test_lists_that_were_served_and_ignored(tmp_path: Path) -> None:
    decisions = [
        [(0, [0, 1], 0.3, 0)],
        [],
        [(0, [2, 1], 0.2, None), (0, [1, 2], 0.1, 0), (1, [0], 0.5, None)],
        [(0, [1, 0], 0.25, None)],
    ]
    dataset = write_dataset(
        tmp_path, [[0], [], [1], []], [["view"], [], ["buy"], []], (1, 0, 3), items=3, decisions=decisions
    )
    steps = collect_trajectories(
        ListPolicy(Fixed(dataset, LOGITS), k=2), dataset, "test", reward_vector(dataset.behaviours, {}), None
    )
    assert steps.offsets.tolist() == [0, 0, 3, 4]  # a session without a decision counts
    assert steps.reward == pytest.approx([0.0, 1.0, 0.0, 0.0])
    assert np.exp(steps.log_b) == pytest.approx([0.2, 0.1, 0.5, 0.25])
    expected = [5 / 8 * 2 / 3, 2 / 8 * 5 / 6, 1 / 8, 2 / 8 * 1 / 6]
    assert np.exp(steps.log_pi) == pytest.approx(expected)


def test_a_state_after_a_pick_from_a_list(tmp_path: Path) -> None:
    decisions = [[(0, [0], 0.5, 0), (1, [0], 0.5, None), (1, [2], 0.5, 1)]] * 3
    dataset = write_dataset(tmp_path, [[0, 2]] * 3, items=3, decisions=decisions)
    policy = Fixed(dataset, LOGITS, again=math.log(3.0))
    steps = collect_trajectories(ListPolicy(policy), dataset, "test", reward_vector(dataset.behaviours, {}), None)
    assert np.exp(steps.log_pi) == pytest.approx([1 / 8, 3 / 10, 5 / 10])


def test_orders_of_all_lists_sum_to_one_even_where_little_is_left() -> None:
    for sharp in (1.0, 14.0, 40.0):
        logits = torch.tensor([[0.0, 1.0, 0.3, -0.5]]) * sharp
        lists = torch.tensor(list(itertools.permutations(range(4), 3)))
        head = Head(torch.zeros(len(lists), 0), torch.zeros(4, 0), logits[0])
        found = log_prob_of_lists(head, lists)
        assert float(found.exp().sum()) == pytest.approx(1.0, abs=1e-6)
        exact = torch.zeros(len(lists), dtype=torch.double)
        for row, items in enumerate(lists.tolist()):
            left = logits[0].double().clone()
            for item in items:
                exact[row] += left[item] - left.logsumexp(0)
                left[item] = -torch.inf
        assert torch.allclose(found, exact, atol=1e-4)


def test_mass_on_what_the_log_hardly_shows(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, PICKS, DONE, (1, 1, 2))
    rewards, logging = reward_vector(dataset.behaviours, {}), shown([0.5, 0.49999, 0.00001])
    steps = collect_trajectories(ListPolicy(Fixed(dataset, LOGITS)), dataset, "test", rewards, logging)
    assert steps.rare == pytest.approx([5 / 8] * 4)
    best = collect_trajectories(ListPolicy(Fixed(dataset, LOGITS), "topk", 2), dataset, "test", rewards, logging)
    assert best.rare == pytest.approx([0.5] * 4)
    assert best.log_pi is None


def test_what_a_log_of_lists_shows_is_counted(tmp_path: Path) -> None:
    decisions = [[(0, [0, 1], 0.3, 0)], [(0, [0, 2], 0.3, None)], [(0, [0, 1], 0.3, 0)], [(0, [0, 1], 0.3, 0)]]
    dataset = write_dataset(tmp_path, [[0], [], [0], [0]], splits=(2, 1, 1), items=4, decisions=decisions)
    found = load_logging_model(dataset, None, None, torch.device("cpu"), None)  # type: ignore[arg-type]
    assert found.shown is not None
    assert found.shown.exp().tolist() == pytest.approx([0.5, 0.25, 0.25, 0.0], abs=1e-6)


def test_a_resample_repeats_whole_sessions(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, [[0, 1], [2], [1, 1, 1], [0, 2]] * 3, splits=(10, 1, 1))
    decisions = LoggedDecisions.load(dataset, "train")
    mdp = decisions.mdp(reward_vector(dataset.behaviours, {}), 0.5)
    replay = decisions.resampled(decisions.replay(mdp, 5, "sessions", torch.device("cpu")), 3)
    drawn = np.bincount(np.random.default_rng(3).integers(10, size=10), minlength=10)
    seen = np.concatenate([batch.event.numpy() for batch in replay.batches(4)])
    expected = np.repeat(np.arange(len(mdp.reward)), np.repeat(drawn, np.diff(decisions.sessions.offsets)))
    assert sorted(seen.tolist()) == expected.tolist()


def test_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, PICKS, DONE, (1, 1, 2))
    policy = Fixed(dataset, LOGITS)
    for wrong, words in (
        ({"play": "greedy"}, "cannot be played by 'greedy'"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"play": "topk", "temperature": 2.0}, "does not change"),
        ({"k": 4}, "Lists of 4 items"),
    ):
        with pytest.raises(InputError, match=words):
            ListPolicy(policy, **wrong)  # type: ignore[arg-type]
    policy.stochastic = False
    with pytest.raises(InputError, match="cannot be sampled"):
        ListPolicy(policy)
    policy.data_hash = "another"
    collect_trajectories(
        ListPolicy(policy, "topk"), dataset, "test", reward_vector(dataset.behaviours, {}), None
    )  # another log, the same items
    policy.vocabulary = Vocabulary([f"item {n}" for n in range(dataset.n_items)])
    with pytest.raises(InputError, match="knows other items"):
        collect_trajectories(ListPolicy(policy, "topk"), dataset, "test", reward_vector(dataset.behaviours, {}), None)
