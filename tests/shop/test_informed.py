"""The planner that infers tastes, and the other forms of choosing and leaving, checked by hand-worked numbers."""

from dataclasses import replace

import pytest
import torch

from offrec.shop import Shop, paired_difference
from offrec.shop.informed import Informed
from offrec.shop.items import make_items
from offrec.shop.visitors import Dynamics, Visitors
from offrec.shop.worlds import WORLDS

CPU = torch.device("cpu")
SMALL = replace(WORLDS["demo"], name="small", items=60, categories=6)


def test_the_likelihood_is_that_of_the_choice_model() -> None:
    """P(pick | list, memory, particle), computed for all particles at once and one visitor at a time."""
    shop = Shop(SMALL, seed=3)
    planner = Informed(shop.dynamics)
    planner.begin(2, seed=0)
    planner.offered = torch.tensor([[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]])
    planner.memory = torch.tensor([[4, 11, *[60] * 6], [60] * 8])
    place = torch.tensor([2, 0])
    likelihood = planner._log_likelihood(torch.arange(2), place).exp()
    for particle in (0, 17, 1999):
        taste = planner.particles[particle].expand(2, -1)
        visitors = Visitors(taste, torch.zeros(2), planner.memory)
        chances = shop.dynamics.choices(visitors, planner.offered)
        assert likelihood[:, particle].tolist() == pytest.approx(chances[[0, 1], place].tolist(), rel=1e-4)


def test_the_posterior_finds_the_visitors_category() -> None:
    """After some picks the posterior mean matches the taste more than twice as well as the prior mean does."""
    shop = Shop(SMALL, seed=1)
    planner = Informed(shop.dynamics)
    shop.rollout(planner, sessions=100, seed=5)
    taste = shop.dynamics.arrive(100, 5).taste
    mean = planner.log_weight.softmax(1) @ planner.particles
    prior = planner.particles.mean(0)
    assert float((mean * taste).sum(1).mean()) > 2 * float((prior * taste).sum(1).mean())


def test_knowing_the_visitor_and_looking_ahead_both_earn() -> None:
    """With common random numbers, compare with variants without a posterior and without a horizon."""
    shop = Shop(replace(SMALL, appeal=6.0, none_utility=5.0, match_interest=3.0, buy_base=-5.5, cart_base=-5.2), seed=2)
    informed = shop.rollout(Informed(shop.dynamics), 300, seed=9)
    for other in (Informed(shop.dynamics, personal=False), Informed(shop.dynamics, horizon=0)):
        assert paired_difference(informed, shop.rollout(other, 300, seed=9)).low > 0


def test_cascade_by_hand() -> None:
    """Φ(0) = .5 and Φ(1) = .8413: the first place is taken half of the time, the second of what is left."""
    dynamics = _dynamics(choice="cascade", none_utility=1.0)
    chances = dynamics.choice_probabilities(torch.tensor([1.0, 2.0], dtype=torch.double))
    assert chances.tolist() == pytest.approx([0.5 * (1 - 0.841345), 0.5, 0.5 * 0.841345], abs=1e-6)


def test_linear_leaving_by_hand() -> None:
    dynamics = _dynamics(leaving="linear", leave_base=0.2, leave_slope=0.1)
    satisfaction = torch.tensor([0.0, 1.0, 5.0, -50.0], dtype=torch.double)
    chances = dynamics.leave_probability(satisfaction, torch.tensor(0.05, dtype=torch.double))
    assert chances.tolist() == pytest.approx([0.25, 0.15, 0.04, 0.96])


def test_worth_of_its_own_is_independent_of_conversion_and_attractiveness() -> None:
    world = replace(WORLDS["demo"], items=20_000, worth_spread=1.5, bait_share=0.0)
    items = make_items(world, 4, CPU, torch.double)
    columns = torch.stack([items.worth, items.quality, items.attractiveness])[:, :-1]
    correlation = torch.corrcoef(columns)
    assert float(correlation[0, 1:].abs().max()) < 0.03
    assert float(columns[0].std()) == pytest.approx(1.5, rel=0.03)


def test_the_named_worlds_keep_their_items() -> None:
    """A knob with a new form leaves the items of the old worlds as they were."""
    items, same = (make_items(world, 0, CPU, torch.double) for world in (SMALL, replace(SMALL, worth_spread=None)))
    other = make_items(replace(SMALL, worth_spread=2.0), 0, CPU, torch.double)
    assert torch.equal(items.worth, same.worth)
    assert torch.equal(items.quality, other.quality)
    assert torch.equal(items.popularity, other.popularity)


def test_popular_items_can_be_the_good_ones() -> None:
    bad, good = (
        make_items(replace(SMALL, items=1000, popular_by=by), 0, CPU, torch.double)
        for by in ("attractiveness", "quality")
    )
    assert float((good.popularity * good.quality[:-1]).sum()) > float((bad.popularity * bad.quality[:-1]).sum()) + 0.2


def _dynamics(**knobs: object) -> Dynamics:
    world = replace(SMALL, **knobs)  # type: ignore[arg-type]
    return Dynamics(world, make_items(world, 0, CPU, torch.double))


@pytest.mark.parametrize("name", ["stay", "diverse", "strong-logging", "blind-logging", "cascade"])
def test_every_world_writes_sessions_like_the_demos(name: str) -> None:
    """Picks per session of the logging policy, within a factor of 1.5 of the demo's."""
    demo, other = (
        float(Shop.open(world, 10).rollout("logging", 1000, seed=3).lengths.mean()) for world in ("demo", name)
    )
    assert 1 / 1.5 < other / demo < 1.5
