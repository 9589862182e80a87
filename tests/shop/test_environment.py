"""The Gymnasium environment: Gymnasium's checker, and agreement with exact values."""

import warnings

import numpy as np
import pytest

from offrec.shop import Shop
from offrec.shop.solve import build_mdp
from offrec.shop.worlds import WORLDS

gymnasium = pytest.importorskip("gymnasium")


@pytest.mark.parametrize("world", ["tiny", "demo"])
def test_gymnasiums_checker_accepts_the_environment(world: str) -> None:
    from gymnasium.utils.env_checker import check_env

    import offrec.shop.environment  # noqa: F401, registers

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("offrec/Shop-v0", shop=world, seed=0).unwrapped)


def test_episodes_earn_the_exact_value() -> None:
    from offrec.shop.environment import ShopEnvironment

    environment = ShopEnvironment(Shop.open("tiny", 0))
    earned = []
    for episode in range(400):
        environment.reset(seed=episode)
        total, over = 0.0, False
        while not over:
            _, reward, over, _, _ = environment.step(2)
            total += float(reward)
        earned.append(total)
    mdp = build_mdp(WORLDS["tiny"], 0)
    always = np.zeros(mdp.shape)
    always[:, 2] = 1.0
    import torch

    exact = mdp.evaluate_policy(torch.tensor(always)).value
    assert abs(np.mean(earned) - exact) < 3.3 * np.std(earned) / 20


def test_observations_are_the_last_picks() -> None:
    from offrec.shop.environment import ShopEnvironment

    environment = ShopEnvironment(Shop.open("demo", 0), history=3)
    seen, _ = environment.reset(seed=1)
    assert seen.tolist() == [1000] * 3
    expected = [1000] * 3
    for _ in range(50):
        seen, reward, over, cut, info = environment.step(np.array([7, 7, 7, 7, 7]))
        if info["behaviour"] != "none":
            expected = [7, *expected[:-1]]
        assert seen.tolist() == expected
        assert (reward > 0) == (info["behaviour"] != "none")
        assert not cut
        if over:
            break
    assert over
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.step(np.zeros(5, dtype=int))


def test_a_repeated_item_is_offered_once() -> None:
    from offrec.shop.environment import ShopEnvironment

    picked = {}
    for name, action in (("once", [7, 7, 7, 7, 7]), ("five", [7, 8, 9, 10, 11])):
        environment = ShopEnvironment(Shop.open("demo", 0))
        count = 0
        for seed in range(300):
            environment.reset(seed=seed)
            count += environment.step(np.array(action))[4]["behaviour"] != "none"
        picked[name] = count
    assert picked["once"] < 0.7 * picked["five"]
