"""Impossible arguments give one sentence."""

import json
from pathlib import Path

import gymnasium
import pytest

import offrec
from offrec.errors import InputError
from offrec.shop import Shop, write_log
from offrec.shop.environment import ShopEnvironment
from offrec.shop.solve import build_mdp
from offrec.shop.worlds import WORLDS


def test_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    shop = Shop.open("tiny")
    with pytest.raises(InputError, match="must be at least 0; got -1"):
        shop.rollout("logging", 5, seed=-1)
    with pytest.raises(InputError, match="must be at least 0; got -1"):
        write_log(shop, 5, tmp_path / "log", seed=-1)
    for gamma in (2.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="gamma must be between 0 and 1"):
            shop.rollout("logging", 5, gamma=gamma)
        with pytest.raises(InputError, match="gamma must be between 0 and 1"):
            build_mdp(WORLDS["tiny"], 0).optimal(gamma)
    with pytest.raises(InputError, match="alpha must be positive; got 0"):
        build_mdp(WORLDS["tiny"], 0).soft_optimal(0.0)
    with pytest.raises(InputError, match="play must be one of topk, sample; got 'smaple'"):
        shop.rollout("logging", 5, play="smaple")  # type: ignore[arg-type]


def test_a_single_session_has_no_interval() -> None:
    found = Shop.open("tiny").rollout("logging", 1).as_json()
    assert found["reward"]["low"] is None
    json.dumps(found, allow_nan=False)


def test_a_policy_of_another_shop_is_refused(tmp_path: Path) -> None:
    """Equal item ids are not enough: a shop with another seed has other items with the same ids."""
    home = Shop.open("demo", 0)
    write_log(home, 200, tmp_path / "log")
    dataset = offrec.prepare(tmp_path / "log/events.parquet", out=tmp_path / "data")
    policy = offrec.baseline("popular", dataset)
    assert home.rollout(policy, 20).reward.mean > 0
    with pytest.raises(InputError, match="simulate the policy in the shop that wrote its log"):
        Shop.open("demo", 7).rollout(policy, 20)


def test_the_environment_accepts_only_lists_of_items() -> None:
    environment = ShopEnvironment(shop="demo", seed=0)
    environment.reset(seed=0)
    for action in ([1000, 1, 2, 3, 4], [-1, 1, 2, 3, 4], [1], 3):
        with pytest.raises(gymnasium.error.InvalidAction):
            environment.step(action)
