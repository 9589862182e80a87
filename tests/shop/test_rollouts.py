"""Roll-outs: ordering of policies, common random numbers, and error messages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from offrec.baselines import baseline
from offrec.catalogue import Head, reference
from offrec.data.prepare import prepare
from offrec.data.replay import batch_from_histories
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.policy import Policy, batch_of_recent
from offrec.shop import WORLDS, Rollout, Shop, World, get_world, paired_difference, write_log
from offrec.shop.oracle import Oracle
from offrec.shop.players import Greedy, PolicyPlayer
from offrec.shop.randomness import outcome_uniforms
from offrec.shop.visitors import Visitors
from offrec.types import Batch


class Constant(Policy):
    """A policy with the same scores for every history."""

    name, stochastic = "constant", True

    def __init__(self, ids: "list[int] | list[str]", history: int = 3) -> None:
        words = Vocabulary(np.array(ids) if isinstance(ids[0], int) else ids)  # type: ignore[arg-type]
        super().__init__(words, history, torch.device("cpu"))
        self.scores = torch.linspace(1, 0, len(ids))
        self.seen: list[Batch] = []

    def head(self, batch: Batch) -> Head:
        self.seen.append(batch)
        return Head(torch.zeros(len(batch), 0), torch.zeros(self.n_items, 0), self.scores)


@pytest.mark.parametrize(("world", "sessions"), [("demo", 1000), ("medium", 300)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_oracle_earns_more_than_the_other_policies(world: str, sessions: int, seed: int) -> None:
    shop = Shop.open(world, seed)
    found = {name: shop.rollout(name, sessions, seed=4) for name in ("random", "logging", "greedy", "oracle")}
    assert found["random"].reward.low > 0
    assert paired_difference(found["logging"], found["random"]).low > 0
    for other in ("logging", "greedy"):
        assert paired_difference(found["oracle"], found[other]).low > 0
        assert 2 < found["oracle"].reward.mean / found[other].reward.mean < 6.5  # 5 and what chance may add
    assert 0.7 < found["greedy"].reward.mean / found["logging"].reward.mean < 1.4
    assert found["oracle"].purchases.mean > 3 * found["logging"].purchases.mean


def test_equal_seeds_give_the_same_visitors_and_random_numbers() -> None:
    shop = Shop.open("demo", 0)
    first, second = (shop.dynamics.arrive(50, seed=3) for _ in range(2))
    assert torch.equal(first.taste, second.taste)
    assert torch.equal(first.haste, second.haste)
    assert not torch.equal(first.taste, shop.dynamics.arrive(50, seed=4).taste)
    double = torch.double
    one, same, later = (outcome_uniforms(3, step, 50, torch.device("cpu"), double) for step in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, later)
    a, b = (shop.rollout("logging", 300, seed=5) for _ in range(2))
    assert (a.rewards == b.rewards).all()
    assert paired_difference(a, b).high == 0.0
    assert not (a.rewards == shop.rollout("logging", 300, seed=6).rewards).all()


def test_common_random_numbers_narrow_the_interval_of_a_difference() -> None:
    shop = Shop.open("demo", 0)
    greedy, logging = (shop.rollout(name, 3000, seed=1) for name in ("greedy", "logging"))
    difference = paired_difference(greedy, logging)
    apart = np.hypot(*(one.reward.high - one.reward.mean for one in (greedy, logging)))
    assert difference.high - difference.mean < 0.8 * apart
    with pytest.raises(InputError, match="have different visitors"):
        paired_difference(greedy, shop.rollout("logging", 3000, seed=2))


def test_greedy_is_the_dense_argmax_of_utility() -> None:
    shop = Shop.open("demo", 0)
    state = shop.dynamics.arrive(20, 0)
    random = torch.Generator().manual_seed(0)
    state = Visitors(state.taste, state.haste, torch.randint(0, 1001, state.memory.shape, generator=random))
    utility = shop.dynamics.utility(state, torch.arange(1000).expand(20, -1))
    greedy = Greedy(shop.dynamics)
    torch.testing.assert_close(reference.logits(greedy.head(state)), utility, atol=1e-5, rtol=1e-5)
    lists = greedy.offer(state, torch.arange(20), 0)
    assert torch.equal(lists, utility.topk(5, 1).indices)


def test_the_oracle_chooses_the_best_list_of_its_candidates() -> None:
    """Compare with all pairs of a few candidates, using the oracle's own estimate of the return of each pick."""
    shop = Shop(replace(WORLDS["demo"], k=2))
    random = torch.Generator().manual_seed(0)
    utility, earns, nothing = (torch.rand(n, generator=random) for n in ((30, 7), (30, 7), (30,)))
    oracle = Oracle(shop.dynamics)
    chosen = oracle._best(2 * utility + 2, earns, nothing)

    def value(lists: torch.Tensor) -> torch.Tensor:
        weight = torch.cat([torch.full((30, 1), 2.8), (2 * utility + 2).gather(1, lists)], 1).softmax(1)
        return (weight * torch.cat([nothing[:, None], earns.gather(1, lists)], 1)).sum(1)

    pairs = [value(torch.tensor([[i, j]]).expand(30, -1)) for i in range(7) for j in range(i)]
    torch.testing.assert_close(value(chosen), torch.stack(pairs).amax(0))


def test_a_policy_sees_known_picks_most_recent_first() -> None:
    shop = Shop.open("tiny", 0)
    policy = Constant([4, 2, 0], history=3)
    player = PolicyPlayer(shop.dynamics, policy, "topk")
    player.begin(2, seed=0)
    rows = torch.tensor([0, 1])
    for items in ([2, 5], [3, 0], [6, 6], [0, 4], [4, 4], [2, 1]):  # 1, 3 and 5 are unknown, 6 is no pick
        player.observe(rows, torch.tensor(items))
    lists = player.offer(shop.dynamics.arrive(2, 0), rows, 0)
    assert lists.tolist() == [[4], [4]]
    expected = batch_from_histories([[1, 2, 0, 1], [2, 0, 0]], 3, 3, torch.device("cpu"))
    assert player.states.recent.tolist() == expected.recent.tolist() == [[1, 0, 2], [0, 0, 2]]
    for name in ("tokens", "segment", "position", "recent"):
        assert torch.equal(getattr(policy.seen[0], name), getattr(expected, name)), name


def test_batch_of_recent_agrees_with_batch_from_histories() -> None:
    histories = [[], [3], [1, 2, 0], [4, 4, 4, 4]]
    expected = batch_from_histories(histories, 5, 4, torch.device("cpu"))
    found = batch_of_recent(expected.recent, 5)
    for name in ("tokens", "segment", "position", "recent", "action"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    nobody = batch_of_recent(torch.full((2, 4), 5), 5)
    assert nobody.tokens.tolist() == [[5], [5]]


def test_sampled_lists_differ_from_the_best_items() -> None:
    shop = Shop.open("demo", 0)
    policy = Constant(list(range(0, 1000, 2)))
    top, sampled = (shop.rollout(policy, 200, play) for play in ("topk", "sample"))  # type: ignore[arg-type]
    assert (top.play, sampled.play) == ("topk", "sample")
    again = shop.rollout(policy, 200, "sample")
    assert (again.rewards == sampled.rewards).all()
    assert not (top.rewards == sampled.rewards).all()


def test_recent_picks_are_not_shown_again_while_others_are_left() -> None:
    shop = Shop.open("demo", 0)
    policy = Constant(list(range(1000)), history=8)
    plain, skipping = (shop.player(policy, skip_recent=picks) for picks in (0, 2))
    for player in (plain, skipping):
        player.begin(1, seed=0)
        for item in (1, 3, 0):
            player.observe(torch.tensor([0]), torch.tensor([item]))
    visitors, row = shop.dynamics.arrive(1, 0), torch.tensor([0])
    assert plain.offer(visitors, row, 0).tolist() == [[0, 1, 2, 3, 4]]
    assert skipping.offer(visitors, row, 0).tolist() == [[1, 2, 4, 5, 6]]
    earned = [shop.rollout(policy, 100, skip_recent=picks) for picks in (0, 2)]
    assert [one.as_json()["skip_recent"] for one in earned] == [0, 2]
    assert not (earned[0].rewards == earned[1].rewards).all()


@pytest.mark.parametrize("policy", ["logging", "greedy", "informed"])
def test_the_first_visitors_are_those_of_a_larger_rollout(policy: str) -> None:
    shop = Shop.open("demo", 0)
    some = shop.rollout(policy, 60, first=20, seed=2, max_steps=3)
    assert (len(some), some.as_json()["population"], some.as_json()["sessions"]) == (20, 60, 20)
    if policy == "greedy":  # the lists of the other two are random numbers of all current visitors
        assert (some.rewards == shop.rollout(policy, 60, seed=2, max_steps=3).rewards[:20]).all()
    with pytest.raises(InputError, match="have different visitors"):
        paired_difference(some, shop.rollout(policy, 20, seed=2, max_steps=3))
    with pytest.raises(InputError, match="first must be between 1 and the 60 sessions; got 61"):
        shop.rollout(policy, 60, first=61)


def test_the_json_describes_the_rollout() -> None:
    found = Shop.open("demo", 3).rollout("greedy", 50, seed=2, gamma=0.9).as_json()
    assert {key: found[key] for key in ("policy", "play", "world", "seed", "k", "sessions")} == {
        "policy": "greedy", "play": "topk", "world": "demo", "seed": 3, "k": 5, "sessions": 50,
    }  # fmt: skip
    for name in ("reward", "length", "purchases", "steps", "discounted"):
        assert found[name]["low"] <= found[name]["mean"] <= found[name]["high"]
    assert found["discounted"]["mean"] < found["reward"]["mean"]


def test_long_sessions_are_cut_off() -> None:
    found = Shop.open("demo", 0).rollout("logging", 200, max_steps=1)
    assert (found.steps == 1).all()
    assert 0.5 < found.cut < 1


def test_a_baseline_of_the_log_can_be_simulated(tmp_path: Path) -> None:
    shop = Shop.open("demo", 0)
    write_log(shop, 300, tmp_path / "log")
    dataset = prepare(tmp_path / "log" / "events.parquet", out=tmp_path / "dataset", filter=("item=2",))
    policy = baseline("recent", dataset)
    assert policy.n_items < 1000
    found = shop.rollout(policy, 50)
    assert isinstance(found, Rollout)
    assert found.policy == "recent"
    assert found.reward.mean > 0
    with pytest.raises(InputError, match="recent has scores but no probabilities"):
        shop.rollout(policy, 50, "sample")


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="no world 'mars'; the worlds are tiny, demo, medium, large"):
        get_world("mars")
    with pytest.raises(InputError, match="k must be between 1 and 6, the number of items"):
        Shop.open("tiny", k=7)
    with pytest.raises(InputError, match="seed of a shop must be at least 0; got -1"):
        Shop.open("tiny", seed=-1)
    with pytest.raises(InputError, match="log_noise"):
        World("silent", log_noise=0)
    shop = Shop.open("tiny")
    with pytest.raises(InputError, match="no policy 'wise'; its policies are logging, greedy, oracle, random"):
        shop.rollout("wise")
    with pytest.raises(InputError, match="sessions must be at least 1; got 0"):
        shop.rollout("greedy", 0)
    with pytest.raises(InputError, match="another catalogue: it has the item 6, but the items of this shop are 0 to 5"):
        shop.rollout(Constant([0, 6]))
    with pytest.raises(InputError, match="another catalogue: it has the item '2'"):
        shop.rollout(Constant(["2", "3"]))
    with pytest.raises(InputError, match="constant knows only 3 items, but a list has 5"):
        Shop.open("demo").rollout(Constant([1, 2, 3]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_shop() -> None:
    here, there = Shop.open("demo", 0), Shop.open("demo", 0, device="cuda")
    torch.testing.assert_close(there.dynamics.items.taste.cpu(), here.dynamics.items.taste)
    for name in ("logging", "greedy", "oracle", "random"):
        a, b = (shop.rollout(name, 300, seed=1) for shop in (here, there))
        assert (a.rewards == b.rewards).mean() > 0.95, name  # rounding may tip a draw, then sessions part
    policy = Constant(list(range(1000)))
    assert (here.rollout(policy, 100).rewards == there.rollout(policy, 100).rewards).mean() > 0.95
