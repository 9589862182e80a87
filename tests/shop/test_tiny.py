"""The world `tiny`: roll-outs agree with exact values, and exact values with their limits."""

import numpy as np
import pytest
import torch
from torch import Tensor

from offrec.catalogue import Head
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.shop import Shop
from offrec.shop.solve import TabularMDP, TabularPlayer, build_mdp, state_index
from offrec.shop.worlds import WORLDS
from offrec.types import Batch

TINY = WORLDS["tiny"]
SEEDS = range(6)


@pytest.fixture(scope="module")
def mdp() -> TabularMDP:
    return build_mdp(TINY, 0)


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop(TINY, 0)


def uniform(mdp: TabularMDP) -> Tensor:
    return torch.full(mdp.shape, 1 / 6, dtype=torch.double)


def some_policy(mdp: TabularMDP, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(mdp.shape, generator=random, dtype=torch.double).softmax(1)


def test_the_states_are_all_memories(mdp: TabularMDP) -> None:
    assert mdp.shape == (1 + 6 + 36, 6)
    assert mdp.memory[0].tolist() == [6, 6]
    assert mdp.memory[3].tolist() == [2, 6]
    assert mdp.memory[7].tolist() == [0, 0]
    assert torch.equal(state_index(mdp.memory, 6), torch.arange(43))
    after = mdp.memory[mdp.following[9, 4]]  # 9 is (0, 2): the last pick was 0; then 4
    assert mdp.memory[9].tolist() == [0, 2]
    assert after.tolist() == [4, 0]


def test_rewards_and_leaving_agree_with_the_dynamics(mdp: TabularMDP) -> None:
    """One entry worked by hand: empty memory, item 3 picked."""
    items, world = mdp.dynamics.items, TINY
    match = float(items.centroid[0] @ items.taste[3])
    interest = world.match_interest * match + world.quality_interest * float(items.quality[3])

    def logistic(x: float) -> float:
        return float(torch.tensor(x, dtype=torch.double).sigmoid())

    buy = logistic(world.buy_base + interest)
    cart = (1 - buy) * logistic(world.cart_base + interest)
    assert float(mdp.reward[0, 3]) == pytest.approx(0.2 * (1 - buy - cart) + cart + buy)
    satisfaction = world.content + float(items.worth[3]) / (1 + world.carry)
    assert float(mdp.stay[0, 3]) == pytest.approx(1 - logistic(world.leave_base - world.leave_slope * satisfaction))


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_rollouts_agree_with_the_exact_value(shop: Shop, mdp: TabularMDP, gamma: float) -> None:
    tables = {
        "logging": mdp.logging(),
        "greedy": mdp.greedy(),
        "oracle": mdp.optimal().policy,
        "some": some_policy(mdp),
    }
    for name, table in tables.items():
        player = name if name != "some" else TabularPlayer(shop.dynamics, table)
        found = shop.rollout(player, 20_000, seed=3, gamma=gamma)
        exact = mdp.evaluate_policy(table, gamma).value
        error = found.discounted.std() / len(found) ** 0.5
        assert abs(found.discounted.mean() - exact) < 3.3 * error, name
        assert abs(found.discounted.mean() - 1.06 * exact) > 3.3 * error, f"{name}: a value 6 % off would pass"
        assert found.cut == 0.0


def test_the_interval_has_its_nominal_coverage(shop: Shop, mdp: TabularMDP) -> None:
    exact = mdp.evaluate_policy(mdp.logging()).value
    found = [shop.rollout("logging", 400, seed=seed).reward for seed in range(60)]
    covered = sum(one.low <= exact <= one.high for one in found)
    assert covered >= 51  # 57 expected; a binomial draw below 51 has chance .003


@pytest.mark.parametrize("seed", SEEDS)
def test_the_optimal_policy_earns_more_than_the_greedy_one(seed: int) -> None:
    mdp = build_mdp(TINY, seed)
    optimal, greedy = mdp.optimal().value, mdp.evaluate_policy(mdp.greedy()).value
    assert optimal > 2 * greedy
    assert optimal > 1.5 * mdp.evaluate_policy(mdp.logging()).value


@pytest.mark.parametrize("seed", SEEDS)
def test_no_policy_is_better_than_the_optimal_one(seed: int) -> None:
    mdp = build_mdp(TINY, seed)
    best = mdp.optimal(0.9)
    torch.testing.assert_close(mdp.evaluate_policy(best.policy, 0.9).values, best.values)
    for other in (some_policy(mdp, seed), mdp.greedy(), mdp.logging(), uniform(mdp)):
        assert (mdp.evaluate_policy(other, 0.9).values <= best.values + 1e-9).all()


def test_the_soft_optimum_lies_between_its_limits(mdp: TabularMDP) -> None:
    best = mdp.optimal(0.9)
    cold, hot = mdp.soft_optimal(1e-4, 0.9), mdp.soft_optimal(1e4, 0.9)
    torch.testing.assert_close(cold.values, best.values, atol=1e-3, rtol=0)
    assert torch.equal(cold.policy.argmax(1), best.policy.argmax(1))
    torch.testing.assert_close(hot.policy, uniform(mdp), atol=1e-3, rtol=0)
    prior = some_policy(mdp)
    torch.testing.assert_close(mdp.soft_optimal(1e4, 0.9, prior).policy, prior, atol=1e-3, rtol=0)


def test_the_soft_optimum_is_a_fixed_point(mdp: TabularMDP) -> None:
    alpha, gamma, prior = 0.3, 0.9, some_policy(mdp)
    found = mdp.soft_optimal(alpha, gamma, prior)
    torch.testing.assert_close(found.q, mdp.reward + gamma * mdp.stay * found.values[mdp.following])
    gain = found.q - alpha * (found.policy.log() - prior.log())
    torch.testing.assert_close((found.policy * gain).sum(1), found.values)
    for other in (prior, uniform(mdp), some_policy(mdp, 1)):  # no other policy has a higher soft value
        penalty = alpha * (other.log() - prior.log())
        assert ((other * (found.q - penalty)).sum(1) <= found.values + 1e-9).all()


def test_dropping_the_prior_adds_a_bonus_to_every_step(mdp: TabularMDP) -> None:
    """Dropping 1/A is equivalent to a bonus of α log A per step."""
    alpha = 0.3
    bonus = alpha * float(torch.tensor(6.0).log())
    dropped = mdp.soft_optimal(alpha, 0.9, "dropped")
    richer = TabularMDP(mdp.dynamics, mdp.memory, mdp.reward + bonus, mdp.following, mdp.stay)
    torch.testing.assert_close(dropped.values, richer.soft_optimal(alpha, 0.9, "kept").values, rtol=1e-6, atol=1e-6)
    assert dropped.value > mdp.soft_optimal(alpha, 0.9).value + bonus


class Fixed(Policy):
    """A policy whose scores depend only on the last item."""

    name, stochastic = "fixed", True

    def __init__(self, scores: Tensor, ids: list[int]) -> None:
        super().__init__(Vocabulary(np.array(ids)), 4, torch.device("cpu"))
        self.scores = scores  # [ids, ids + 1]

    def head(self, batch: Batch) -> Head:
        return Head(torch.nn.functional.one_hot(batch.recent[:, 0], len(self.scores) + 1).float(), self.scores)


@pytest.mark.parametrize("play", ["topk", "sample"])
def test_rollouts_of_a_policy_agree_with_its_table(shop: Shop, mdp: TabularMDP, play: str) -> None:
    """The policy numbers items differently from the shop and lacks item 3."""
    ids = [5, 0, 4, 2, 1]
    scores = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    policy = Fixed(scores, ids)
    table = mdp.policy_table(policy, play)  # type: ignore[arg-type]
    assert (table[:, 3] == 0).all()
    first = scores[:, 5].softmax(0) if play == "sample" else torch.eye(5)[scores[:, 5].argmax()]
    torch.testing.assert_close(table[0, ids], first.double())
    exact = mdp.evaluate_policy(table).value
    found = shop.rollout(policy, 20_000, play, seed=1)  # type: ignore[arg-type]
    assert abs(found.reward.mean - exact) < 3.3 * found.rewards.std() / 20_000**0.5
    assert found.play == play
    assert found.policy == "fixed"


def test_other_worlds_are_refused() -> None:
    with pytest.raises(InputError, match=r"'demo' cannot be solved exactly.*use the world 'tiny'"):
        build_mdp(WORLDS["demo"], 0)
