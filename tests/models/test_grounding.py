"""Sampling of unlogged items: never the logged item, and with the right probabilities."""

import pytest
import torch
from small_agents import GAMMA, ITEMS, agent, batch, facts

from offrec.catalogue import Head
from offrec.errors import InputError
from offrec.models.critic import CriticOptions, sample_unlogged, sample_unlogged_by_count, sample_unlogged_from

DRAWS = 60_000
ACTION = 2
COUNTS = torch.tensor([4.0, 1.0, 3.0, 0.0, 2.0])
OTHERS = {"uniform": torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]) / 4, "counts": torch.tensor([4.0, 1.0, 0.0, 0.0, 2.0]) / 7}


def shares(items: torch.Tensor) -> torch.Tensor:
    return items.flatten().bincount(minlength=5) / items.numel()


@pytest.mark.parametrize("how", ["uniform", "popular", "logging"])
def test_unlogged_items_have_the_right_distribution(how: str) -> None:
    """Frequencies agree within five standard errors (at most .002); items without counts never occur."""
    torch.manual_seed(0)
    action = torch.full((DRAWS // 2,), ACTION)
    if how == "uniform":
        items = sample_unlogged(action, 2, 5)
    elif how == "popular":
        items = sample_unlogged_by_count(action, 2, COUNTS.double().cumsum(0))
    else:
        b = Head(torch.ones(len(action), 1), COUNTS.clamp(min=1e-12).log()[:, None])
        items = sample_unlogged_from(b, action, 2)
    expected = OTHERS["uniform" if how == "uniform" else "counts"]
    found = shares(items)
    assert (found - expected).abs().max() < 0.01
    assert not found[expected == 0].any()
    assert (items[:, 0] != items[:, 1]).any(), "the draws of a row are draws of their own"


@pytest.mark.parametrize("action", [0, 4])
def test_the_first_and_last_item_can_be_cut_out(action: int) -> None:
    torch.manual_seed(0)
    row = torch.full((5000,), action)
    assert not (sample_unlogged(row, 3, 5) == action).any()
    assert not (sample_unlogged_by_count(row, 3, COUNTS.double().cumsum(0)) == action).any()


def test_columns() -> None:
    rows, options = batch(), CriticOptions(ground=3, ground_reward=-0.5)
    x = agent("sdac", critic=options, given=facts(unit=2.0, shift=-1.0)).symbols(rows)
    assert x.actions.shape == x.rewards.shape == x.discounts.shape == (len(rows), 4)
    assert (x.actions[:, 0] == rows.action).all()
    assert (x.actions[:, 1:] != rows.action[:, None]).all()
    torch.testing.assert_close(x.rewards[:, 0], rows.reward / 2)
    assert (x.rewards[:, 1:] == -0.75).all(), "shifted like the others, in the same unit"
    assert (x.discounts[:, 0] == rows.discount).all()
    torch.testing.assert_close(x.discounts[:, 1:], torch.full((len(rows), 3), GAMMA))


def test_popular_items_are_drawn_more_often() -> None:
    counts = torch.ones(ITEMS)
    counts[5] = 1000
    x = agent("sdac", critic=CriticOptions(ground=20, ground_draw="popular"), given=facts(counts=counts)).symbols(
        batch()
    )
    elsewhere = x.actions[:, 0] != 5
    assert (x.actions[elsewhere, 1:] == 5).double().mean() > 0.9


def test_what_cannot_be_grounded_is_refused() -> None:
    with pytest.raises(InputError, match="gamma"):
        agent("sdac", given=facts(discount_if_ignored=1.0))
    agent("sdac", critic=CriticOptions(ground=0), given=facts(discount_if_ignored=1.0))


def test_sa2c_without_unlogged_items_is_rejected() -> None:
    with pytest.raises(InputError, match=r"critic\.ground is 0"):
        agent("sa2c", critic=CriticOptions(ground=0))
    agent("sl", given=facts(discount_if_ignored=1.0))
