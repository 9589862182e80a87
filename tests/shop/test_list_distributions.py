"""Every way of exploring has a distribution over lists: probabilities sum to 1 and agree with frequencies."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from offrec.catalogue import Head
from offrec.shop import Shop
from offrec.shop.list_distributions import (
    BestLists,
    BlendedLists,
    ListDistribution,
    LoggingLists,
    SampledPlaces,
    SoftmaxLists,
    UniformLists,
)
from offrec.shop.logging_policy import mixture
from offrec.shop.worlds import WORLDS

ITEMS, K = 6, 3
LISTS = torch.tensor(list(permutations(range(ITEMS), K)))  # [120, 3] all ordered lists


def softmax(rows: int = 1, k: int = K, temperature: float = 0.7, masked: Tensor | None = None) -> SoftmaxLists:
    """A policy that knows items 5, 4, 3, 2, 0 of the shop, in this order, and not item 1."""
    table = torch.randn(5, 2, generator=torch.Generator().manual_seed(1))
    to_shop, to_policy = torch.tensor([5, 4, 3, 2, 0]), torch.tensor([4, 5, 3, 2, 1, 0, 5])
    head = Head(torch.tensor([[1.0, -0.5]]).expand(rows, -1), table)
    head = head if masked is None else head.mask(to_policy[masked])
    return SoftmaxLists(head, k, temperature, to_shop, to_policy, torch.device("cpu"))


def logging(rows: int) -> LoggingLists:
    """The logging policy at the first step, when all visitors of the world are the same."""
    shop = Shop(replace(WORLDS["tiny"], name="three", k=K), 0)
    return LoggingLists(mixture(shop.dynamics, shop.dynamics.arrive(rows, 0)), K)


def places(rows: int, j: int) -> SampledPlaces:
    best = BEST[:, : K - j].expand(rows, -1)
    return SampledPlaces(best, UniformLists(ITEMS, best, j), j)


def places_by_softmax(rows: int) -> SampledPlaces:
    best = BEST[:, :1].expand(rows, -1)
    return SampledPlaces(best, softmax(rows, 2, masked=best), 2)


def best(rows: int) -> BestLists:
    return BestLists(BEST.expand(rows, -1))


BEST, OTHER = torch.tensor([[4, 0, 2]]), torch.tensor([[4, 2, 0]])
DISTRIBUTIONS: dict[str, Callable[[int], ListDistribution]] = {
    "best": best,
    "logging": logging,
    "softmax": softmax,
    "one place": lambda rows: places(rows, 1),
    "two places": lambda rows: places(rows, 2),
    "all places": lambda rows: places(rows, 3),
    "two places by softmax": places_by_softmax,
    "best with logging": lambda rows: BlendedLists(logging(rows), best(rows), 0.3),
    "best with best": lambda rows: BlendedLists(best(rows), BestLists(OTHER.expand(rows, -1)), 0.3),
    "places with softmax": lambda rows: BlendedLists(softmax(rows), places(rows, 1), 0.5),
}


def conditionals(name: str) -> Tensor:
    """[120, 3] the probability of each item of every ordered list, given the items before it."""
    return DISTRIBUTIONS[name](len(LISTS)).log_probs(LISTS).exp()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_probabilities_of_all_lists_sum_to_one(name: str) -> None:
    probability = conditionals(name).prod(1)
    assert float(probability.min()) >= 0
    assert float(probability.sum()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_each_place_is_a_distribution_given_the_items_before_it(name: str) -> None:
    """The probability of a beginning is the sum over all lists that begin so."""
    by_place = conditionals(name)
    total = by_place.prod(1)
    for length in (1, 2):
        for begin in permutations(range(ITEMS), length):
            mine = (LISTS[:, :length] == torch.tensor(begin)).all(1)
            expected = float(total[mine].sum())
            assert float(by_place[mine][:, :length].prod(1).max()) == pytest.approx(expected, abs=1e-6), begin


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_frequencies_agree_with_probabilities(name: str) -> None:
    draws = 5_000
    lists = DISTRIBUTIONS[name](draws).draw(torch.Generator().manual_seed(3))
    codes, digits = (one @ torch.tensor([ITEMS**2, ITEMS, 1]) for one in (lists, LISTS))
    counts = torch.bincount(codes, minlength=ITEMS**K)[digits].double()
    expected = draws * conditionals(name).prod(1)
    possible = expected > 1e-9
    assert counts[possible].sum() == draws, "an impossible list was drawn"
    if possible.sum() > 1:
        observed, wanted = (one[possible].numpy() for one in (counts, expected * draws / expected.sum()))
        assert stats.chisquare(observed, wanted).pvalue > 1e-4
        tilted = wanted * (1 + 0.3 * (-1.0) ** np.arange(len(wanted)))
        assert stats.chisquare(observed, tilted * draws / tilted.sum()).pvalue < 1e-4, "the test must be able to fail"


def test_blend_by_hand() -> None:
    """Both sides can make the list; its probability counts both, whichever side made it."""
    one = BlendedLists(UniformLists(ITEMS, torch.zeros(1, 0, dtype=torch.long), K), BestLists(BEST), 0.4)
    assert float(one.log_probs(BEST).sum().exp()) == pytest.approx(0.4 / 120 + 0.6)
    assert float(one.log_probs(torch.tensor([[0, 1, 2]])).sum().exp()) == pytest.approx(0.4 / 120)
    first = one.log_probs(BEST)[0].exp().tolist()
    begins = [0.4 / 6 + 0.6, 0.4 / 30 + 0.6, 0.4 / 120 + 0.6]
    assert first == pytest.approx([begins[0], begins[1] / begins[0], begins[2] / begins[1]])


def test_sampled_places_by_hand() -> None:
    """One of three places: 3 places × 4 other items."""
    one = places(1, 1)
    for row in ([4, 0, 1], [4, 5, 0], [3, 4, 0]):
        assert float(one.log_probs(torch.tensor([row])).sum().exp()) == pytest.approx(1 / 12)
    for row in ([0, 4, 1], [4, 1, 2], [1, 2, 3]):  # wrong order; two sampled places; three
        assert float(one.log_probs(torch.tensor([row])).sum()) == -math.inf


def test_items_that_the_policy_does_not_know_are_impossible() -> None:
    assert float(softmax().log_probs(torch.tensor([[5, 1, 0]])).sum()) == -math.inf
    assert float(softmax(temperature=0.1).log_probs(torch.tensor([[5, 4, 0]])).sum()) > -math.inf
