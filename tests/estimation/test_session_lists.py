"""Policies that learn from lists: what they would have shown in a log, and estimates from their own blended log."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.prepare import prepare
from offrec.estimation.collect import collect_trajectories
from offrec.estimation.estimate import estimate
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import EstimateOptions
from offrec.estimation.session_lists import best_lists, served_log
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.train import train
from offrec.shop import Shop, write_log
from offrec.shop.exploration import Exploration
from offrec.shop.log import ServedPolicy
from offrec.shop.worlds import get_world

SHARE = 0.3
# A weak prior of item vectors lets the lists of this small model depend on what a visitor saw.
SETTINGS: dict[str, Any] = {
    "training.epochs": 4,
    "algorithm.types": 8,
    "algorithm.width": 4,
    "algorithm.vector_precision": 1.0,
    "algorithm.choice": "logit",
}


@pytest.fixture(scope="module", params=["joint", "separate"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[NetworkPolicy, Dataset, Shop]:
    """A user model, and the log of its blend with the logging policy."""
    home = tmp_path_factory.mktemp("served")
    world = replace(get_world("demo", k=2), items=40, categories=4)
    write_log(Shop(world, seed=3), 150, home / "log", seed=1)
    data = prepare(home / "log/full.parquet", format="decisions", out=home / "data")
    settings = SETTINGS | {"algorithm.item_prior": request.param}
    policy = train(
        data, home / "run", algorithm="user-model", settings=settings, device="cpu", console=Console(quiet=True)
    )
    blend = ServedPolicy(policy, Exploration("blend", share=SHARE))
    shop = Shop(world, seed=3, max_steps=4)  # in longer sessions, the largest weights are missing from a small log
    write_log(shop, 400, home / "log-1", seed=2, served=blend)
    options = {"catalogue": str(home / "run"), "keep_new_items": True}
    log = prepare(home / "log-1/full.parquet", format="decisions", out=home / "data-1", **options)  # type: ignore[arg-type]
    assert log.vocabulary == data.vocabulary
    return policy, log, shop


def test_the_lists_that_a_policy_served_are_found_again(served: tuple[NetworkPolicy, Dataset, Shop]) -> None:
    """Only a replay with lists finds them: from the picks alone, many best lists are different."""
    policy, log, _ = served
    decisions = LoggedDecisions.load(log, "all")
    best = best_lists(policy, decisions, decisions.k).numpy()
    is_own = (best == decisions.lists).all(1)
    propensity = np.exp(decisions.log_propensity)
    assert (propensity[is_own] >= 1 - SHARE - 1e-6).all()
    assert (propensity[~is_own] <= SHARE).all()
    assert is_own.mean() == pytest.approx(1 - SHARE, abs=0.06)
    assert served_log(policy, decisions)
    replay = decisions.replay(decisions.transitions(None, 0.0), policy.history, "exact", torch.device("cpu"))
    heads = [(policy.head(batch), batch.event - decisions.first) for batch in replay.batches(1024)]
    by_picks = np.zeros_like(best)
    for head, row in heads:
        by_picks[row.numpy()] = head.at(torch.arange(head.n_items).expand(head.n_rows, -1)).topk(decisions.k)[1].numpy()
    assert (by_picks == decisions.lists).all(1).mean() < is_own.mean() - 0.05


def test_a_policy_is_estimated_by_weights_from_its_own_blended_log(
    served: tuple[NetworkPolicy, Dataset, Shop],
) -> None:
    policy, log, shop = served
    result = estimate(policy, log, EstimateOptions())
    (one,) = result.policies
    assert result.split == "all"
    assert list(one.assessments) == ["self_normalised"]
    interval = one.assessments["self_normalised"].interval
    truth = shop.rollout(policy, 300, seed=9).reward
    assert interval.low <= truth.high
    assert interval.high >= truth.low


def test_other_policies_that_show_their_best_items_still_need_q(served: tuple[NetworkPolicy, Dataset, Shop]) -> None:
    policy, log, _ = served
    decisions = LoggedDecisions.load(log, "all")
    policy.agent.attractiveness.data.neg_()
    try:
        assert not served_log(policy, decisions)
        rewards = np.zeros(len(log.sessions.items), np.float32)
        other = collect_trajectories(ListPolicy(policy, "topk", decisions.k), decisions, rewards, None)
        assert other.log_pi is None
    finally:
        policy.agent.attractiveness.data.neg_()
