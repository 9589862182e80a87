"""Values of policies in logs whose exact values can be worked out by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixed_policies import Fixed

from offrec.console import Console
from offrec.data.rewards import event_rewards
from offrec.errors import InputError
from offrec.estimation import fitted_q, value_at_5
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.evaluation import ScoredEvents
from offrec.models.critic import CriticOptions
from offrec.models.network import NetworkOptions
from small_datasets import write_dataset

QUIET = Console(quiet=True)
SMALL = ValueOptions(
    network=NetworkOptions(width=8, dropout=0.0, history=5),
    critic=CriticOptions(ground=0, target_rate=0.05),
    updates=250,
    learning_rate=0.01,
    batch_size=128,
)
OFTEN = [0.0, math.log(3.0)]  # 1/4, 3/4


@pytest.fixture(scope="module")
def coins(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two picks per session, each from two equally likely items: item 0 is viewed, item 1 is bought."""
    draws = np.random.default_rng(0).integers(2, size=(400, 2)).tolist()
    words = [[("view", "buy")[item] for item in session] for session in draws]
    return write_dataset(tmp_path_factory.mktemp("coins"), draws, words, (300, 50, 50))


def values(dataset: Any, list_policy: ListPolicy, gamma: float, options: ValueOptions = SMALL) -> fitted_q.PolicyValues:
    rewards = event_rewards(dataset, {})
    critic = fitted_q.fit_q(list_policy, dataset, rewards, gamma, options, QUIET)
    return critic.values(LoggedDecisions.load(dataset, "test"))


def test_values_of_two_steps(coins: Any) -> None:
    """V of the last step is the expected reward of a pick, 0.8; V of the first adds the discounted second one."""
    for gamma, first in ((1.0, 1.6), (0.5, 1.2)):
        found = values(coins, ListPolicy(Fixed(coins, OFTEN)), gamma)
        assert found.v[0::2] == pytest.approx(first, abs=0.1)
        assert found.v[1::2] == pytest.approx(0.8, abs=0.1)
        items = np.asarray(coins.split("test").items)[-100:]
        assert found.q[1::2] == pytest.approx(np.where(items[1::2] == 1, 1.0, 0.2), abs=0.1)


def test_values_of_the_top_items(coins: Any) -> None:
    found = values(coins, ListPolicy(Fixed(coins, OFTEN), "topk"), 1.0)
    assert found.v[0::2] == pytest.approx(2.0, abs=0.15)
    both = values(coins, ListPolicy(Fixed(coins, OFTEN), "topk", 2), 1.0)
    assert both.v[0::2] == pytest.approx(1.2, abs=0.15)  # the mean of both items


def test_the_same_seed_gives_the_same_values(coins: Any) -> None:
    few = replace(SMALL, updates=20)
    one, two = (values(coins, ListPolicy(Fixed(coins, OFTEN)), 1.0, few) for _ in range(2))
    assert np.array_equal(one.q, two.q)
    other = values(coins, ListPolicy(Fixed(coins, OFTEN)), 1.0, replace(few, seed=1))
    assert not np.array_equal(one.q, other.q)


def served_dataset(path: Path) -> Any:
    """Lists of one item: item 0 is always ignored, item 1 always bought; half of the visitors leave after a list."""
    random, sessions, decisions = np.random.default_rng(1), [], []
    for _ in range(500):
        picks, lists, continues = [], [], True
        while continues:
            item = int(random.integers(2))
            lists.append((len(picks), [item], 0.5, len(picks) if item else None))
            picks += [item] if item else []
            continues = random.random() < 0.5
        sessions.append(picks)
        decisions.append(lists)
    words = [["buy"] * len(session) for session in sessions]
    return write_dataset(path, sessions, words, (400, 50, 50), items=2, decisions=decisions)


def test_ignored_lists_are_steps(tmp_path: Path) -> None:
    """A list earns 3/4 and half of the sessions continue, so V = (3/4) / (1 − 1/2) in every state."""
    dataset = served_dataset(tmp_path)
    found = values(dataset, ListPolicy(Fixed(dataset, OFTEN)), 1.0)
    assert found.v.mean() == pytest.approx(1.5, abs=0.2)
    shown = LoggedDecisions.load(dataset, "test").lists[:, 0]
    assert found.q[shown == 1].mean() - found.q[shown == 0].mean() == pytest.approx(1.0, abs=0.2)


def informed_log(path: Path) -> Any:
    """One decision per session. Visitors buy only the one of two items that they like.

    The logging policy knows which one that is and shows it with probability 0.9.
    """
    random = np.random.default_rng(3)
    likes = random.random(1000) < 0.25  # item 1
    right = random.random(1000) < 0.9
    shown = np.where(right, likes, ~likes).astype(int)
    decisions = [
        [(0, [int(item)], 0.9 if well else 0.1, 0 if well else None)] for item, well in zip(shown, right, strict=True)
    ]
    sessions = [[int(item)] if well else [] for item, well in zip(shown, right, strict=True)]
    words = [["buy"] * len(session) for session in sessions]
    return write_dataset(path, sessions, words, (900, 50, 50), items=2, decisions=decisions)


def test_a_policy_gets_no_credit_for_what_only_the_logging_policy_knew(tmp_path: Path) -> None:
    """Of all visitors 1/4 buy item 1 and 3/4 buy item 0; of those who were shown it, 3/4 and 27/28.

    A policy that shows item 1 three times as often as item 0 sells to 3/8 of the visitors.
    """
    dataset = informed_log(tmp_path)
    found = values(dataset, ListPolicy(Fixed(dataset, OFTEN)), 1.0)
    assert found.v == pytest.approx(0.375, abs=0.08)


def test_exposure_weights_by_hand(tmp_path: Path) -> None:
    lists = [[(0, [0], 0.5, None), (0, [0], 0.25, None)], [(0, [1], 0.5, None), (0, [0], 1.0, None)]]
    one = write_dataset(tmp_path, [[], []], [[], []], (2, 0, 0), items=3, decisions=lists)
    ratio, log = np.array([0.75 / 0.5, 0.75 / 0.25, 0.25 / 0.5, 0.75]), LoggedDecisions.load(one, "train")
    assert log.exposure_weights(earlier=False) == pytest.approx(ratio / ratio.mean())
    product = np.array([1.5, 1.5 * 3, 0.5, 0.5 * 0.75])
    assert log.exposure_weights() == pytest.approx(product / product.mean())
    capped = np.minimum(product / product.mean(), 2.0)
    assert log.exposure_weights(cap=2.0) == pytest.approx(capped / capped.mean())
    two = [[(0, [0, 1], 0.5, None)], [(0, [1, 2], 0.5, None)]]
    longer = write_dataset(tmp_path, [[], []], [[], []], (2, 0, 0), items=3, decisions=two)
    assert LoggedDecisions.load(longer, "train").exposure_weights() is None


def test_exposure_weights_expect_recent_picks_again(tmp_path: Path) -> None:
    """Three of four sessions are shown their pick again; overall shares would explain one.

    The mixture therefore has the weight (3 − 1) / (4 − 1) on recent picks.
    """
    first, second = [0, 1, 2, 3], [0, 1, 2, 0]
    lists = [[(0, [a], 0.5, 0), (1, [b], 0.5, None)] for a, b in zip(first, second, strict=True)]
    sessions, words = [[item] for item in first], [["view"]] * 4
    dataset = write_dataset(tmp_path, sessions, words, (4, 0, 0), items=4, decisions=lists)
    overall = np.array([3, 2, 2, 1]) / 8
    again = [2 / 3, 2 / 3, 2 / 3, 0]
    ratio = np.stack([overall[first], overall[second] / 3 + again], 1).flatten()
    weights = LoggedDecisions.load(dataset, "train").exposure_weights(earlier=False)
    assert weights == pytest.approx(ratio / ratio.mean())


def test_an_ignored_list_leaves_the_state_unchanged(tmp_path: Path) -> None:
    dataset = served_dataset(tmp_path)
    decisions, list_policy = LoggedDecisions.load(dataset, "train"), ListPolicy(Fixed(dataset, OFTEN, again=2.0))
    torch.manual_seed(0)
    critic = fitted_q.FittedQ(list_policy, decisions, SMALL, 1.0, 1.0).eval()
    mdp = decisions.transitions(event_rewards(dataset, {}), 1.0)
    batch = decisions.replay(mdp, 5, "sessions", torch.device("cpu")).batch(np.arange(40))
    next_value, value_if_ignored = critic._target_values(batch)
    ignored = torch.from_numpy(decisions.picked_event[batch.event.numpy()] < 0)
    assert 0 < int(ignored.sum()) < 40
    assert torch.equal(next_value[ignored], value_if_ignored[ignored])
    assert (next_value[~ignored] != value_if_ignored[~ignored]).all()


def test_collected_top_lists_give_the_values_of_lists_that_are_ranked_again(tmp_path: Path) -> None:
    """Equal at every decision that is followed by another one; after the last one the discount is 0."""
    dataset = served_dataset(tmp_path)
    decisions = LoggedDecisions.load(dataset, "train")
    list_policy = ListPolicy(Fixed(dataset, OFTEN, again=-2.0), "topk")
    critic = fitted_q.FittedQ(list_policy, decisions, SMALL, 1.0, 1.0).eval()
    mdp = decisions.transitions(event_rewards(dataset, {}), 1.0)
    batch = decisions.replay(mdp, 5, "sessions", torch.device("cpu")).batch(np.arange(40))
    ranked = critic._target_values(batch)
    critic.top_lists = fitted_q.collect_top_lists(list_policy, decisions)
    collected = critic._target_values(batch)
    goes_on = batch.discount > 0
    assert 0 < int(goes_on.sum()) < 40
    assert len(critic.top_lists.unique()) == 2, "the top item depends on the state"
    torch.testing.assert_close(collected[0][goes_on], ranked[0][goes_on])
    torch.testing.assert_close(collected[1], ranked[1])


@pytest.mark.parametrize("backbone", ["gru", "caser"])
def test_target_values_of_picks_are_those_of_each_state(tmp_path: Path, backbone: str) -> None:
    """Also where a long session continues in another segment. After the last decision the discount is 0."""
    random = np.random.default_rng(0)
    sessions = [random.integers(0, 6, length).tolist() for length in (1, 14, 3, 9, 2)]
    dataset = write_dataset(tmp_path, sessions, splits=(5, 0, 0), items=6)
    decisions, list_policy = LoggedDecisions.load(dataset, "train"), ListPolicy(Fixed(dataset, [0.0] * 6), "topk", 2)
    torch.manual_seed(0)
    options = replace(SMALL, network=replace(SMALL.network, backbone=backbone, history=5), critic=CriticOptions())
    critic = fitted_q.FittedQ(list_policy, decisions, options, 1.0, 1.0).eval()
    critic.top_lists = torch.from_numpy(random.integers(0, 6, (len(decisions), 2)))
    replay = decisions.replay(decisions.transitions(None, 0.9), 5, "sessions", torch.device("cpu"))
    batch = replay.batch(np.arange(len(replay.segments)))
    expected = critic._target_values(batch)
    found = critic._target_values_of_picks(batch, critic.top_lists, critic.unique_recent(batch))
    ends_segment = torch.cat([batch.segment[1:] != batch.segment[:-1], torch.ones(1, dtype=torch.bool)])
    goes_on = batch.discount > 0
    assert int((ends_segment & goes_on).sum()) == 3, "segments that end before their session"
    torch.testing.assert_close(found[0][goes_on], expected[0][goes_on])
    torch.testing.assert_close(found[1], expected[1])


def test_unlogged_items_are_assumed_to_be_ignored(tmp_path: Path) -> None:
    """No visitor ever picks item 2, so its grounded value is `patience` times the value of the state."""
    random = np.random.default_rng(2)
    draws = [random.integers(2, size=2).tolist() for _ in range(400)]
    words = [[("view", "buy")[item] for item in session] for session in draws]
    dataset = write_dataset(tmp_path, draws, words, (300, 50, 50), items=3)
    never = ListPolicy(Fixed(dataset, [0.0, 0.0, 20.0]))
    options = replace(SMALL, critic=replace(SMALL.critic, ground=2), patience=0.5)
    ignored = values(dataset, never, 1.0, options)
    assert ignored.v.mean() == pytest.approx(0.0, abs=0.1)  # V = V / 2
    rewards, cpu = event_rewards(dataset, {}), torch.device("cpu")
    logged = value_at_5.load_or_fit(dataset, rewards, 1.0, replace(options, batch_size=16), cpu, QUIET)
    batch = next(iter(ScoredEvents(dataset, "validation", 5, cpu).batches()))
    value = logged.critic(batch).at(torch.full((len(batch), 1), 2))[:, 0].detach() * logged.unit
    assert float(value[batch.position == 0].mean()) == pytest.approx(1.2 / 2, abs=0.15)  # a session earns 1.2


def test_the_logging_policys_q_is_the_return_that_followed(coins: Any) -> None:
    """A purchase is worth 0.8 more than a view. Q is fitted once and then loaded from the cache."""
    rewards, options = event_rewards(coins, {}), replace(SMALL, batch_size=16, updates=300)
    logged = value_at_5.load_or_fit(coins, rewards, 1.0, options, torch.device("cpu"), QUIET)
    batch = next(iter(ScoredEvents(coins, "validation", 5, torch.device("cpu")).batches()))
    q = logged.critic(batch).at(torch.tensor([[0, 1]]).expand(len(batch), 2)).detach() * logged.unit
    assert float((q[:, 1] - q[:, 0]).mean()) == pytest.approx(0.8, abs=0.15)
    (about,) = (coins.path / "values").glob("*/about.json")
    before = about.stat().st_mtime_ns
    again = value_at_5.load_or_fit(coins, rewards, 1.0, options, torch.device("cpu"), QUIET)
    assert about.stat().st_mtime_ns == before
    assert torch.equal(again.critic.bias, logged.critic.bias)
    value_at_5.load_or_fit(coins, rewards, 0.5, options, torch.device("cpu"), QUIET)
    assert len(list((coins.path / "values").glob("*/about.json"))) == 2
    (about.parent / "network.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="remove the folder to fit the values again"):
        value_at_5.load_or_fit(coins, rewards, 1.0, options, torch.device("cpu"), QUIET)
