"""The equations of docs/explanation/shop.md with numbers worked by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from offrec.shop.items import Items, make_items
from offrec.shop.logging_policy import draw_lists, mixture, propensities
from offrec.shop.visitors import Dynamics, Visitors, sample_index
from offrec.shop.worlds import WORLDS, World

CPU = torch.device("cpu")
WORLD = replace(
    WORLDS["demo"], name="hand", items=4, k=2, dimensions=2, categories=2, memory=3, drift=0.5, carry=0.5,
    appeal=2.0, fatigue=0.25, none_utility=1.0, content=0.1, sameness=0.6, idle=0.5, leave_base=-1.0, leave_slope=2.0,
)  # fmt: skip


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def hand(world: World = WORLD) -> Dynamics:
    """Four items: 0 and 1 of category 0 along the first axis, 2 and 3 of category 1 along the second."""
    taste = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1], [0, 0]], dtype=torch.double)
    popularity = double(0.4, 0.1, 0.3, 0.2)
    items = Items(
        taste=taste,
        category=torch.tensor([0, 0, 1, 1, 2]),
        attractiveness=double(0.5, 2.0, 0.0, 1.0, 0.0),
        quality=double(1.0, -1.0, 0.5, 0.0, 0.0),
        worth=double(1.0, -2.5, 0.5, -0.5, 0.0),
        centroid=torch.eye(2, dtype=torch.double),
        popularity=popularity,
        within=double(0.8, 0.2, 0.6, 0.4),
        category_popularity=double(0.5, 0.5),
        order=torch.arange(4),
        edge=torch.tensor([0, 2, 4]),
        cumulative=popularity.cumsum(0),
    )
    return Dynamics(world, items)


def visitor(*memory: int, haste: float = 0.0) -> Visitors:
    return Visitors(double(1.0, 0.0)[None], double(haste), torch.tensor([memory]))


def test_taste_follows_the_picks() -> None:
    """w = .5, .25, .125: a visitor of the first axis picks 2, then 0."""
    assert hand().taste(visitor(4, 4, 4)).tolist() == [[1.0, 0.0]]
    assert hand().taste(visitor(2, 4, 4)).tolist() == [[0.5, 0.5]]
    assert hand().taste(visitor(0, 2, 4)).tolist() == [[0.75, 0.25]]


def test_satisfaction_by_hand() -> None:
    """ω = 4/7, 2/7, 1/7. The second pick of a category is a repeat: a third of the memory."""
    assert float(hand().satisfaction(visitor(4, 4, 4).memory)) == pytest.approx(0.1)
    assert float(hand().satisfaction(visitor(1, 2, 4).memory)) == pytest.approx(0.1 - 2.5 * 4 / 7 + 0.5 * 2 / 7)
    assert float(hand().satisfaction(visitor(0, 0, 2).memory)) == pytest.approx(0.1 + 6 / 7 + 0.5 / 7 - 0.6 / 3)
    assert hand().repeats(torch.tensor([[0, 1, 0], [0, 2, 1], [2, 4, 4]])).tolist() == pytest.approx([2 / 3, 1 / 3, 0])


def test_leaving_probability_by_hand() -> None:
    picked = torch.tensor([True])
    calm, hasty = visitor(0, 4, 4), visitor(0, 4, 4, haste=0.7)
    odds = -1 - 2 * (0.1 + 4 / 7)
    assert float(hand().leaving(calm, picked).logit()) == pytest.approx(odds)
    assert float(hand().leaving(hasty, picked).logit()) == pytest.approx(odds + 0.7)
    assert float(hand().leaving(calm, ~picked).logit()) == pytest.approx(odds + 2 * 0.5)


def test_choice_by_hand() -> None:
    """u = (.75, .25) after 2 and 0; 0 was picked once. Padding is never chosen."""
    state, offered = visitor(0, 2, 4), torch.tensor([[0, 3, 4]])
    utility = hand().utility(state, offered)
    assert utility[0, :2].tolist() == pytest.approx([2 * 0.75 + 0.5 - 0.25, 2 * 0.25 + 1.0])
    chances = hand().choices(state, offered)
    assert chances[0].tolist() == pytest.approx(double(1.0, 1.75, 1.5, -1e30).softmax(0).tolist())
    always = hand(replace(WORLD, none_utility=None)).choices(state, offered)
    assert float(always[0, 0]) == 0.0
    assert float(always.sum()) == pytest.approx(1.0)


def test_behaviour_by_hand() -> None:
    """Interest grows with match, quality and one earlier pick, and decreases with every earlier pick."""
    dynamics, world = hand(), WORLD
    for memory, seen, match in (((2, 4, 4), 0, 0.5), ((0, 4, 4), 1, 1.0), ((0, 0, 4), 2, 1.0)):
        found = dynamics.behaviours(visitor(*memory), torch.tensor([[0]]))[0, 0]
        interest = world.match_interest * match + world.quality_interest * 1.0
        interest += world.second_look * (seen == 1) - 0.25 * seen
        buy = torch.tensor(world.buy_base + interest).sigmoid()
        cart = (1 - buy) * torch.tensor(world.cart_base + interest).sigmoid()
        assert found.tolist() == pytest.approx([float(1 - buy - cart), float(cart), float(buy)], rel=1e-5)
        assert float(found.sum()) == pytest.approx(1.0)


def test_sampled_indices_by_hand() -> None:
    chances = double(0.2, 0.5, 0.3).expand(4, -1)
    assert sample_index(chances, double(0.0, 0.2, 0.69, 0.999)).tolist() == [0, 1, 1, 2]
    assert sample_index(double(0.5, 0.4999999)[None], double(0.99999999)).tolist() == [1]


def test_a_step_without_a_pick_does_not_change_the_memory() -> None:
    found = hand().step(visitor(0, 2, 4), torch.tensor([[1, 3]]), double(0.0, 0.5, 0.999)[:, None])
    assert (int(found.item), int(found.behaviour), float(found.reward), bool(found.leaves)) == (4, 3, 0.0, False)
    assert found.visitors.memory.tolist() == [[0, 2, 4]]
    found = hand().step(visitor(0, 2, 4), torch.tensor([[1, 3]]), double(0.999, 0.9999, 0.0)[:, None])
    assert (int(found.item), int(found.behaviour), float(found.reward), bool(found.leaves)) == (3, 2, 1.0, True)
    assert found.visitors.memory.tolist() == [[3, 0, 2]]


def test_logging_probabilities_by_hand() -> None:
    """After 2, 0, 0 picked: items 0 and 2 share the weight of the last picks equally."""
    here = mixture(hand(), visitor(0, 0, 2))
    everything = torch.tensor([[0, 1, 2, 3]])
    u = hand().taste(visitor(0, 0, 2))[0]
    category = (u / WORLD.log_temperature).softmax(0)
    total = WORLD.log_popular + WORLD.log_taste + WORLD.log_recent + WORLD.log_noise
    expected = [
        (
            WORLD.log_popular * (0.4, 0.1, 0.3, 0.2)[item]
            + WORLD.log_taste * float(category[item // 2]) * (0.8, 0.2, 0.6, 0.4)[item]
            + WORLD.log_recent * (0.5, 0, 0.5, 0)[item]
            + WORLD.log_noise / 4
        )
        / total
        for item in range(4)
    ]
    assert here.probability(everything)[0].tolist() == pytest.approx(expected)
    assert sum(expected) == pytest.approx(1.0)
    p = expected
    found = propensities(here, torch.tensor([[2, 0]]))[0].tolist()
    assert found == pytest.approx([p[2], p[0] / (1 - p[2])])
    assert float(mixture(hand(), visitor(4, 4, 4)).probability(everything).sum()) == pytest.approx(1.0)


def test_a_list_of_the_whole_catalogue_is_a_permutation() -> None:
    here = mixture(hand(), visitor(0, 0, 2))
    lists = draw_lists(here, 4, torch.Generator().manual_seed(0))
    assert lists.sort(1).values.tolist() == [[0, 1, 2, 3]]
    assert float(propensities(here, lists)[0, -1]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["demo", "medium"])
def test_probabilities_sum_to_one_and_items_match_the_description(name: str) -> None:
    world = WORLDS[name]
    dynamics = Dynamics(world, make_items(world, 1, CPU, torch.double))
    items = dynamics.items
    state = dynamics.arrive(3, 0)
    state = Visitors(state.taste, state.haste, torch.randint(0, 50, state.memory.shape))
    chance = mixture(dynamics, state).probability(torch.arange(world.items).expand(3, -1))
    torch.testing.assert_close(chance.sum(1), torch.ones(3, dtype=torch.double))
    torch.testing.assert_close(items.taste[:-1].norm(dim=1), torch.ones(world.items, dtype=torch.double))
    gap = (items.attractiveness - items.quality).clamp(min=0)
    torch.testing.assert_close(items.worth, items.quality - world.bait * gap)
    poor = items.worth[:-1].argsort()[: int(0.2 * world.items)]
    assert items.attractiveness[poor].mean() > items.attractiveness[:-1].mean() + 0.5  # bait
    share = items.popularity[items.attractiveness[:-1] > 1].sum() / items.popularity.sum()
    assert share > (items.attractiveness[:-1] > 1).double().mean() * 1.3  # attractive items are popular
    assert len(items.category[:-1].unique()) == world.categories
