"""Trajectories of policies, compared with numbers worked out by hand."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fixed_policies import Fixed

from offrec.catalogue import Head
from offrec.data.rewards import event_rewards
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.estimation.collect import LoggingModel, collect_trajectories, load_logging_model
from offrec.estimation.list_policy import ListPolicy, log_prob_of_lists
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.trajectories import Trajectories, blended
from small_datasets import write_dataset

LOGITS = [0.0, math.log(2.0), math.log(5.0)]  # 1/8, 2/8, 5/8
PICKS = [[0, 1], [2, 2, 1], [1], [0, 2, 1]]
DONE = [["view", "buy"], ["view", "view", "view"], ["buy"], ["view", "view", "buy"]]


def logging_model(shares: list[float]) -> LoggingModel:
    return LoggingModel(None, torch.tensor(shares).log(), {})


def test_picks_are_decisions_of_one_item(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, PICKS, DONE, (1, 1, 2))
    steps = collect_trajectories(
        ListPolicy(Fixed(dataset, LOGITS)),
        LoggedDecisions.load(dataset, "test"),
        event_rewards(dataset, {}),
        None,
    )
    assert steps.offsets.tolist() == [0, 1, 4]
    assert steps.reward == pytest.approx([1.0, 0.2, 0.2, 1.0])
    assert steps.reward_by_behaviour["buy"] == pytest.approx([1.0, 0.0, 0.0, 1.0])
    assert np.exp(steps.log_pi) == pytest.approx([2 / 8, 1 / 8, 5 / 8, 2 / 8])
    assert steps.log_b is None


def test_the_state_consists_of_the_previous_picks(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, PICKS, DONE, (1, 1, 2))
    policy = Fixed(dataset, LOGITS, again=math.log(3.0))  # the last item is three times as likely
    steps = collect_trajectories(
        ListPolicy(policy),
        LoggedDecisions.load(dataset, "test"),
        event_rewards(dataset, {}),
        None,
        batch_size=1,
    )
    assert np.exp(steps.log_pi) == pytest.approx([2 / 8, 1 / 8, 5 / 10, 2 / 18])


def test_a_low_temperature_sharpens_the_policy(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, PICKS, DONE, (1, 1, 2))
    list_policy = ListPolicy(Fixed(dataset, LOGITS), temperature=0.5)
    steps = collect_trajectories(list_policy, LoggedDecisions.load(dataset, "test"), event_rewards(dataset, {}), None)
    assert np.exp(steps.log_pi) == pytest.approx([4 / 30, 1 / 30, 25 / 30, 4 / 30])


def test_a_blend_mixes_the_probabilities_of_both_policies(tmp_path: Path) -> None:
    decisions = [[(0, [0], 0.5, 0)], [(0, [2], 0.25, 0)], [(0, [1], 0.1, 0)], [(0, [2], 0.2, None), (0, [0], 0.4, 0)]]
    dataset = write_dataset(tmp_path, [[0], [2], [1], [0]], splits=(1, 1, 2), decisions=decisions)
    policy, rewards = Fixed(dataset, LOGITS), event_rewards(dataset, {})
    alone, blended = (
        collect_trajectories(
            ListPolicy(policy, blend=blend),
            LoggedDecisions.load(dataset, "test"),
            rewards,
            logging_model([0.5, 0.5, 1e-9]),
        )
        for blend in (1.0, 0.2)
    )
    assert np.exp(alone.log_pi) == pytest.approx([2 / 8, 5 / 8, 1 / 8])
    assert np.exp(blended.log_pi) == pytest.approx([0.05 + 0.08, 0.125 + 0.16, 0.025 + 0.32])
    assert np.exp(blended.log_b) == pytest.approx([0.1, 0.2, 0.4])
    assert alone.rare_mass == pytest.approx(0.0)  # all propensities are large, whatever the shares of the items are


def test_a_blend_with_top_lists_knows_its_probabilities(tmp_path: Path) -> None:
    """The policy certainly shows item 2, and the blend .2 shows it with probability .2 + .8 · .2."""
    decisions = [[(0, [0], 0.5, 0)], [(0, [2], 0.25, 0)], [(0, [1], 0.1, 0)], [(0, [2], 0.2, None), (0, [0], 0.4, 0)]]
    dataset = write_dataset(tmp_path, [[0], [2], [1], [0]], splits=(1, 1, 2), decisions=decisions)
    log, rewards = LoggedDecisions.load(dataset, "test"), event_rewards(dataset, {})
    policy = Fixed(dataset, LOGITS)
    one = collect_trajectories(ListPolicy(policy, "topk", blend=0.2), log, rewards, None)
    assert np.exp(one.log_pi) == pytest.approx([0.08, 0.2 + 0.16, 0.32])
    alone = collect_trajectories(ListPolicy(policy, "topk"), log, rewards, None, match_lists=True)
    assert alone.log_pi.tolist() == [-np.inf, 0.0, -np.inf]
    assert collect_trajectories(ListPolicy(policy, "topk"), log, rewards, None).log_pi is None
    with pytest.raises(InputError, match="top-2 lists are unknown, because the logged lists have 1 items; use -k 1"):
        collect_trajectories(ListPolicy(policy, "topk", 2, blend=0.5), log, rewards, None)


def test_blended_trajectories_mix_every_ratio() -> None:
    alone = Trajectories(
        np.array([0, 2]),
        np.ones(2),
        log_pi=np.log([0.3, 0.1]),
        log_b=np.log([0.1, 0.2]),
        q=np.ones(2),
        v=np.ones(2),
        rare_mass=np.array([0.5, 0.1]),
        log_ratios={"clusters": np.log([2.0, 0.5])},
    )
    half = blended(alone, 0.5)
    assert np.exp(half.log_pi) == pytest.approx([0.2, 0.15])
    assert np.exp(half.log_ratios["clusters"]) == pytest.approx([1.5, 0.75])
    assert half.rare_mass.tolist() == [0.25, 0.05]
    assert half.q is None
    assert blended(alone, 1.0) is alone
    for share, message in ((0.0, "must be above 0"), (1.5, "at most 1; got 1.5")):
        with pytest.raises(InputError, match=message):
            blended(alone, share)
    with pytest.raises(InputError, match="A blend needs"):
        blended(replace(alone, log_b=None), 0.5)


def test_invalid_blends_are_refused(tmp_path: Path) -> None:
    policy = Fixed(write_dataset(tmp_path, PICKS, DONE, (1, 1, 2)), LOGITS)
    with pytest.raises(InputError, match="--blend must be above 0"):
        ListPolicy(policy, blend=0.0)


def test_ignored_lists_are_decisions(tmp_path: Path) -> None:
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
        ListPolicy(Fixed(dataset, LOGITS), k=2),
        LoggedDecisions.load(dataset, "test"),
        event_rewards(dataset, {}),
        None,
    )
    assert steps.offsets.tolist() == [0, 0, 3, 4]  # a session without decisions counts
    assert steps.reward == pytest.approx([0.0, 1.0, 0.0, 0.0])
    assert np.exp(steps.log_b) == pytest.approx([0.2, 0.1, 0.5, 0.25])
    expected = [5 / 8 * 2 / 3, 2 / 8 * 5 / 6, 1 / 8, 2 / 8 * 1 / 6]
    assert np.exp(steps.log_pi) == pytest.approx(expected)


def test_the_state_changes_after_a_pick_from_a_list(tmp_path: Path) -> None:
    decisions = [[(0, [0], 0.5, 0), (1, [0], 0.5, None), (1, [2], 0.5, 1)]] * 3
    dataset = write_dataset(tmp_path, [[0, 2]] * 3, items=3, decisions=decisions)
    policy = Fixed(dataset, LOGITS, again=math.log(3.0))
    steps = collect_trajectories(
        ListPolicy(policy), LoggedDecisions.load(dataset, "test"), event_rewards(dataset, {}), None
    )
    assert np.exp(steps.log_pi) == pytest.approx([1 / 8, 3 / 10, 5 / 10])


def test_list_probabilities_sum_to_one_even_if_little_probability_remains() -> None:
    for sharp in (1.0, 14.0, 40.0):
        logits = torch.tensor([[0.0, 1.0, 0.3, -0.5]]) * sharp
        lists = torch.tensor(list(itertools.permutations(range(4), 3)))
        head = Head(torch.zeros(len(lists), 0), torch.zeros(4, 0), logits[0])
        log_p = log_prob_of_lists(head, lists)
        assert float(log_p.exp().sum()) == pytest.approx(1.0, abs=1e-6)
        exact = torch.zeros(len(lists), dtype=torch.double)
        for row, items in enumerate(lists.tolist()):
            left = logits[0].double().clone()
            for item in items:
                exact[row] += left[item] - left.logsumexp(0)
                left[item] = -torch.inf
        assert torch.allclose(log_p, exact, atol=1e-4)


def test_rare_mass_is_the_probability_of_items_that_the_log_rarely_shows(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, PICKS, DONE, (1, 1, 2))
    rewards, logging = event_rewards(dataset, {}), logging_model([0.5, 0.49999, 0.00001])
    steps = collect_trajectories(
        ListPolicy(Fixed(dataset, LOGITS)), LoggedDecisions.load(dataset, "test"), rewards, logging
    )
    assert steps.rare_mass == pytest.approx([5 / 8] * 4)
    best = collect_trajectories(
        ListPolicy(Fixed(dataset, LOGITS), "topk", 2), LoggedDecisions.load(dataset, "test"), rewards, logging
    )
    assert best.rare_mass == pytest.approx([0.5] * 4)
    assert best.log_pi is None


def test_item_shares_are_counted_in_served_lists(tmp_path: Path) -> None:
    decisions = [[(0, [0, 1], 0.3, 0)], [(0, [0, 2], 0.3, None)], [(0, [0, 1], 0.3, 0)], [(0, [0, 1], 0.3, 0)]]
    dataset = write_dataset(tmp_path, [[0], [], [0], [0]], splits=(2, 1, 1), items=4, decisions=decisions)
    model = load_logging_model(dataset, None, None, torch.device("cpu"), None)  # type: ignore[arg-type]
    assert model.log_share is not None
    assert model.log_share.exp().tolist() == pytest.approx([0.5, 0.25, 0.25, 0.0], abs=1e-6)


def test_a_resample_repeats_whole_sessions(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, [[0, 1], [2], [1, 1, 1], [0, 2]] * 3, splits=(10, 1, 1))
    decisions = LoggedDecisions.load(dataset, "train")
    mdp = decisions.transitions(event_rewards(dataset, {}), 0.5)
    replay = decisions.resample(decisions.replay(mdp, 5, "sessions", torch.device("cpu")), 3)
    count = np.bincount(np.random.default_rng(3).integers(10, size=10), minlength=10)
    seen = np.concatenate([batch.event.numpy() for batch in replay.batches(4)])
    expected = np.repeat(np.arange(len(mdp.reward)), np.repeat(count, np.diff(decisions.sessions.offsets)))
    assert sorted(seen.tolist()) == expected.tolist()


def test_invalid_list_policies_are_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, PICKS, DONE, (1, 1, 2))
    policy = Fixed(dataset, LOGITS)
    for wrong, words in (
        ({"play": "greedy"}, "play must be one of sample, topk; got 'greedy'"),
        ({"temperature": 0.0}, "--temperature must be positive; got 0.0"),
        ({"play": "topk", "temperature": 2.0}, "--temperature has no effect"),
        ({"k": 4}, "k must be between 1 and 3, the number of items"),
    ):
        with pytest.raises(InputError, match=words):
            ListPolicy(policy, **wrong)  # type: ignore[arg-type]
    policy.stochastic = False
    with pytest.raises(InputError, match="cannot be sampled"):
        ListPolicy(policy)
    policy.data_hash = "another"
    collect_trajectories(
        ListPolicy(policy, "topk"), LoggedDecisions.load(dataset, "test"), event_rewards(dataset, {}), None
    )  # another log with the same catalogue
    policy.vocabulary = Vocabulary([f"item {n}" for n in range(dataset.n_items)])
    with pytest.raises(InputError, match="has a different catalogue"):
        collect_trajectories(
            ListPolicy(policy, "topk"),
            LoggedDecisions.load(dataset, "test"),
            event_rewards(dataset, {}),
            None,
        )
