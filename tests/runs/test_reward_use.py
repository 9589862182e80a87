"""Everything that uses rewards reads the reward column: training, baselines, metrics and estimates."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import trained

from offrec.baselines import baseline
from offrec.baselines.mean_reward import MeanReward, TotalReward
from offrec.baselines.pick_rate import GAMMA, PickReturn
from offrec.cli import main
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.estimation.collect import reward_trajectories
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.evaluation import evaluate
from offrec.runs.options import resolve_options
from offrec.runs.plan import plan_run
from offrec.runs.shared_data import SharedData
from offrec.studies.design import resolve_settings

CPU = torch.device("cpu")
NONE = float("nan")
SESSIONS = [[0, 1], [1, 2], [2, 0], [0, 2]] * 3
# Item 0 costs 10, item 1 costs −2; events with item 2 have the reward of a view.
PRICES = [[10.0, -2.0], [-2.0, NONE], [NONE, 10.0], [10.0, NONE]] * 3


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Dataset:
    priced: Dataset = make_dataset(tmp_path, SESSIONS, rewards=PRICES, splits=(8, 2, 2))
    return priced


def test_training_batches_contain_the_column(dataset: Dataset) -> None:
    options = resolve_options({"algorithm.name": "dqn", "gamma": 0.5}, "events")
    batch = plan_run(SharedData(dataset), options, CPU).epochs.replay.batch(np.arange(8))
    price = {0: 10.0, 1: -2.0, 2: 0.2}
    assert batch.reward.tolist() == pytest.approx([price[item] for item in batch.action.tolist()])
    assert batch.return_to_go.max() == pytest.approx(10 + 0.5 * 0.2)


def test_a_critic_learns_the_column(tmp_path: Path, make_dataset: Any) -> None:
    """Without look-ahead, Q ranks items by their own prices, although all events have the same behaviour."""
    random = np.random.default_rng(0)
    sessions = [random.integers(0, 4, 5).tolist() for _ in range(120)]
    prices = [[float(item) for item in session] for session in sessions]
    dataset = make_dataset(tmp_path, sessions, rewards=prices, splits=(100, 10, 10))
    settings = {"gamma": 0.0, "training.epochs": 12, "select": "last", "training.batch_size": 64}
    policy = trained(dataset, tmp_path / "run", algorithm="dqn", settings=settings)
    items = policy.recommend([], 4).items
    assert (items[0], items[-1]) == (103, 100)


def test_baselines_read_the_column(dataset: Dataset, tmp_path: Path, make_dataset: Any) -> None:
    assert TotalReward(dataset, 50, CPU).bias.tolist() == pytest.approx([60.0, -8.0, 1.2], abs=1e-5)
    means = MeanReward(dataset, 50, CPU, pseudo_events=1e-9).bias.tolist()
    assert means == pytest.approx([10.0, -2.0, 0.2], abs=1e-5)
    lists = [[(0, [0, 1], 0.5, 0), (1, [1, 2], 0.5, 1)]] * 3
    shown = make_dataset(tmp_path, [[0, 1]] * 3, rewards=[[10.0, -2.0]] * 3, items=3, decisions=lists)
    total, count = PickReturn(shown, 50, CPU).totals(shown, {})
    assert total.tolist() == pytest.approx([10 - 2 * GAMMA, -2.0, 0.0], rel=1e-6)
    assert count.tolist() == [1, 1, 0]


def test_reward_at_k_weights_events_by_the_column(dataset: Dataset) -> None:
    """Total reward ranks 0, 2, 1. Test sessions: item 2, 0, 0, 2 with rewards 0.2, 10, 10, 0.2 and ranks 2, 1, 1, 2."""
    metrics = evaluate(baseline("total-reward", dataset), dataset, ks=(1, 2)).metrics["all"]
    assert metrics["reward@1"] == pytest.approx(20 / 20.4)
    assert metrics["reward@2"] == pytest.approx((20 + 0.4 / np.log2(3)) / 20.4)
    other = evaluate(baseline("total-reward", dataset), dataset, ks=(1,), reward={"view": 5.0}).metrics["all"]
    assert other["reward@1"] == pytest.approx(20 / 30)


def test_estimates_read_the_column(tmp_path: Path, make_dataset: Any) -> None:
    lists = [[(0, [0, 1], 0.5, 0), (1, [1, 2], 0.5, None), (1, [2, 1], 0.5, 1)]] * 6
    kinds, prices = [["view", "buy"]] * 6, [[10.0, -2.0]] * 6
    dataset = make_dataset(tmp_path, [[0, 1]] * 6, kinds, (2, 2, 2), items=3, rewards=prices, decisions=lists)
    decisions, rewards = LoggedDecisions.load(dataset, "test"), event_rewards(dataset, {})
    trajectories = reward_trajectories(decisions, rewards)
    assert trajectories.reward.tolist() == [10.0, 0.0, -2.0] * 2
    assert trajectories.reward_by_behaviour["buy"].tolist() == [0.0, 0.0, -2.0] * 2
    assert decisions.transitions(rewards, 0.5).return_to_go.tolist() == [9.5, -1.0, -2.0] * 2


def test_the_user_model_plans_with_the_mean_reward_of_each_item(dataset: Dataset, tmp_path: Path) -> None:
    policy = trained(dataset, tmp_path / "run", algorithm="user-model", settings={"training.epochs": 1})
    means = (policy.agent.reward + policy.agent.item_reward)[:, 0].tolist()
    train = dataset.split("train")
    rewards = event_rewards(dataset, {})[: int(train.offsets[-1])]
    items = np.asarray(train.items[: int(train.offsets[-1])])
    for item in range(3):
        own = rewards[items == item]
        assert means[item] == pytest.approx((own.sum() + 5 * rewards.mean()) / (len(own) + 5), rel=1e-5)
    assert policy.recommend([], 3).items[0] == 100  # the item that costs 10
    assert resolve_settings(dataset, "user-model", {})["algorithm.name"] == "user-model"


def test_the_commands_as_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offrec(*words: str | Path) -> str:
        monkeypatch.setattr("sys.argv", ["offrec", *map(str, words)])
        main()
        return capsys.readouterr().out

    rows = [f"v{n // 3},p{n % 5},{n},{'buy' if n % 2 else 'view'},{n % 5 + 1}.50" for n in range(90)]
    log = tmp_path / "log.csv"
    log.write_text("session,item,time,behaviour,price\n" + "\n".join(rows) + "\n")
    data = tmp_path / "data"
    out = offrec("prepare", log, "--reward", "price", "--reward-behaviours", "buy", "--out", data)
    assert "reward column: buy" in out
    assert "100.0% of events, mean 3.5, 1.5 to 5.5" in out
    (evaluated,) = json.loads(offrec("evaluate", "--baselines", "mean-reward", "--dataset", data, "--json"))["policies"]
    metrics = evaluated["metrics"]
    assert 0 < metrics["buy"]["reward@5"] <= 1
