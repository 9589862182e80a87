"""Ratios of parts of lists: by hand, and against sums over all lists of a small catalogue."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from offrec.errors import InputError
from offrec.estimation.list_ratios import inclusion, pick_log_ratio, prefix_log_ratio, set_log_prob, with_mean_1
from offrec.estimation.options import EstimateOptions
from offrec.estimation.trajectories import Trajectories

ITEMS, K = 6, 3
LISTS = list(permutations(range(ITEMS), K))
APPEAL = torch.tensor([0.5, 2.0, 1.0, 0.2, 3.0, 0.7], dtype=torch.double)  # odds of a pick against no pick


def softmax_of(seed: int) -> Tensor:
    return torch.randn(ITEMS, generator=torch.Generator().manual_seed(seed), dtype=torch.double).softmax(0)


def set_prob(p: Tensor, lists: Tensor) -> Tensor:
    """[lists] log-probability of each list in any order."""
    return set_log_prob(p.log()[lists], p.log().expand(len(lists), -1).scatter(1, lists, -torch.inf).logsumexp(1))


def place_probabilities(p: Tensor) -> Tensor:
    """[lists, K] probability of each place given the places before it."""
    chosen = p[torch.tensor(LISTS)]
    return chosen / (1 - (chosen.cumsum(1) - chosen))


def reactions(kind: str) -> Tensor:
    """[lists, K + 1] probability of a pick at each place, and of none (last)."""
    odds = APPEAL[torch.tensor(LISTS)]
    if kind == "logit":
        return torch.cat([odds, torch.ones(len(LISTS), 1)], 1) / (1 + odds.sum(1, keepdim=True))
    take = odds / (1 + odds)
    reached = torch.cat([torch.ones(len(LISTS), 1), (1 - take).cumprod(1)], 1)
    return torch.cat([reached[:, :K] * take, reached[:, K:]], 1)


def weighted_reward(log_ratio: Tensor, b: Tensor, kind: str) -> float:
    """E_b[ratio · reward], summed over all lists and reactions; the reward of item i is i + 1."""
    reward = torch.cat([torch.tensor(LISTS) + 1.0, torch.zeros(len(LISTS), 1)], 1)
    return float((b[:, None] * reactions(kind) * log_ratio.exp() * reward).sum())


def test_set_probability_is_the_sum_over_all_orders() -> None:
    p = softmax_of(0)
    probability = place_probabilities(p).prod(1)
    expected = sum(probability[LISTS.index(order)] for order in permutations((4, 1, 3)))
    assert set_prob(p, torch.tensor([[4, 1, 3]])).exp().item() == pytest.approx(float(expected))


def test_set_probability_is_exact_if_one_item_has_almost_all_of_it() -> None:
    """Logits 0, −40, −41 and −42: item 0 is surely in a list of 2, and item 1 follows with 1 / (1 + e⁻¹ + e⁻²)."""
    z = torch.tensor([[0.0, -40.0]], dtype=torch.double)
    others = torch.tensor([[-41.0, -42.0]], dtype=torch.double).logsumexp(1)
    expected = -np.log(1 + np.exp(-1) + np.exp(-2))
    assert set_log_prob(z, others).item() == pytest.approx(expected, abs=1e-12)


def test_sets_of_too_many_items_are_refused() -> None:
    with pytest.raises(InputError, match="at most 12 items; got 13"):
        set_log_prob(torch.zeros(1, 13), torch.zeros(1))


def test_prefix_ratio_by_hand() -> None:
    """Ratios 2, 3 and 5 of the places: a pick at the second place has ratio 6, no pick has 30."""
    log_pi, log_b = torch.tensor([[2.0, 3.0, 5.0]] * 3).log(), torch.zeros(3, 3)
    assert prefix_log_ratio(log_pi, log_b, torch.tensor([1, -1, 3])).exp().tolist() == pytest.approx([6.0, 30.0, 30.0])


@pytest.mark.parametrize(("part", "kind"), [("lists", "cascade"), ("prefixes", "cascade"), ("sets", "logit")])
def test_ratios_are_unbiased_under_their_assumption(part: str, kind: str) -> None:
    pi, b = place_probabilities(softmax_of(1)), place_probabilities(softmax_of(2))
    truth = weighted_reward(torch.zeros(len(LISTS), K + 1), pi.prod(1), kind)
    assert weighted_reward(ratio_of(part), b.prod(1), kind) == pytest.approx(truth)


@pytest.mark.parametrize(("part", "kind"), [("prefixes", "logit"), ("sets", "cascade")])
def test_ratios_are_biased_without_their_assumption(part: str, kind: str) -> None:
    pi, b = place_probabilities(softmax_of(1)), place_probabilities(softmax_of(2))
    truth = weighted_reward(torch.zeros(len(LISTS), K + 1), pi.prod(1), kind)
    assert abs(weighted_reward(ratio_of(part), b.prod(1), kind) / truth - 1) > 0.002


def ratio_of(part: str) -> Tensor:
    """[lists, K + 1] log ratio for a pick at each place, and for none (last)."""
    pi, b = place_probabilities(softmax_of(1)), place_probabilities(softmax_of(2))
    if part == "prefixes":
        places = [torch.full((len(LISTS),), place) for place in range(K + 1)]
        return torch.stack([prefix_log_ratio(pi.log(), b.log(), place) for place in places], 1)
    lists = torch.tensor(LISTS)
    log_ratio = pi.log().sum(1) - b.log().sum(1)
    if part == "sets":
        log_ratio = set_prob(softmax_of(1), lists) - set_prob(softmax_of(2), lists)
    return log_ratio[:, None].expand(-1, K + 1)


def test_inclusion_probabilities_are_close_to_the_sum_over_lists() -> None:
    random = torch.Generator().manual_seed(3)
    z = torch.randn(1, 40, generator=random, dtype=torch.double)
    clock = torch.empty(400_000, 40, dtype=torch.double).exponential_(generator=random).log()
    sampled = (z - clock).topk(5, 1).indices
    share = torch.bincount(sampled.flatten(), minlength=40) / len(sampled)
    approximate = inclusion(z, 5)[0]
    assert float(approximate.sum()) == pytest.approx(5.0)
    np.testing.assert_allclose(approximate, share, rtol=0.03, atol=0.002)


def test_pick_ratio_by_hand() -> None:
    """Inclusion (.6, .4) under π and (.2, .8) under b: ratios 3 and ½, 1 without a pick; their mean is 1.5."""
    pi, b = torch.tensor([[0.6, 0.4]] * 3).double(), torch.tensor([[0.2, 0.8]] * 3).double()
    log_ratio = pick_log_ratio(pi, b, torch.tensor([0, 1, -1])).numpy()
    assert np.exp(log_ratio) == pytest.approx([3.0, 0.5, 1.0])
    assert np.exp(with_mean_1(log_ratio)) == pytest.approx([2.0, 1 / 3, 2 / 3])


def test_pick_ratios_are_exact_if_the_other_items_scale_all_reactions_alike() -> None:
    """Lists of one item, picked with odds against nothing: with equal odds the denominators are equal."""
    pi, b, odds = softmax_of(1)[None], softmax_of(2)[None], 0.7
    assert inclusion(pi.log(), 1)[0].tolist() == pytest.approx(pi[0].tolist())
    chance = torch.cat([b[0] * odds, torch.ones(1)]) / (1 + odds)  # of each pick, and of none
    ratio = torch.cat([pick_log_ratio(pi, b, torch.tensor([item])).exp() for item in [*range(ITEMS), -1]])
    ratio = ratio / (chance * ratio).sum()
    reward = torch.cat([torch.arange(ITEMS) + 1.0, torch.zeros(1)])
    truth = (pi[0] * odds / (1 + odds) * reward[:-1]).sum()
    assert float((chance * ratio * reward).sum()) == pytest.approx(float(truth))


def test_pick_ratios_of_longer_lists_are_nearly_right_in_a_logit() -> None:
    """The ratio of whole lists is exact. That of picks is off by less than a third of the policies' difference."""
    pi, b = place_probabilities(softmax_of(1)).prod(1), place_probabilities(softmax_of(2)).prod(1)
    exact = [
        torch.zeros(ITEMS).double().index_add_(0, torch.tensor(LISTS).flatten(), p.repeat_interleave(K))
        for p in (pi, b)
    ]
    ratio = torch.cat([(exact[0] / exact[1])[torch.tensor(LISTS)], torch.ones(len(LISTS), 1)], 1)
    ratio = ratio / (b[:, None] * reactions("logit") * ratio).sum()
    zeros = torch.zeros(len(LISTS), K + 1)
    truth, logged = weighted_reward(zeros, pi, "logit"), weighted_reward(zeros, b, "logit")
    assert abs(weighted_reward(ratio.log(), b, "logit") - truth) < abs(logged - truth) / 3


def test_ratios_of_picks_are_biased_for_lists_of_one_item() -> None:
    """Odds .1 and 2 of a pick, shown with .5 and .5 by b, .2 and .8 by π; only the second item pays, 1 per pick.

    Its picks have the probability .8 · 2/3 under π. The mean ratio before the scale c is 1.1727.
    """
    odds, b, pi = np.array([0.1, 2.0]), np.array([0.5, 0.5]), np.array([0.2, 0.8])
    take, ratio = odds / (1 + odds), pi / b
    mean = float(b @ (take * ratio + 1 - take))
    assert mean == pytest.approx(1.1727, abs=1e-4)
    assert pi[1] * take[1] == pytest.approx(0.5333, abs=1e-4)
    assert b[1] * take[1] * ratio[1] / mean == pytest.approx(0.4548, abs=1e-4)


def test_ratios_of_picks_are_the_default_for_longer_lists_only() -> None:
    steps = Trajectories(
        np.array([0, 2]), np.ones(2), np.zeros(2), np.zeros(2), log_ratios={"picks": np.zeros(2), "sets": np.zeros(2)}
    )
    assert EstimateOptions().choose_estimators(steps, has_propensities=True, k=1) == ["self_normalised"]
    assert EstimateOptions().choose_estimators(steps, has_propensities=True, k=2) == ["pick"]


@pytest.mark.parametrize(("items", "error"), [(10, 0.11), (100, 0.06), (1000, 0.02)])
def test_errors_of_inclusion_probabilities_are_those_of_the_docs(items: int, error: float) -> None:
    """Lists of two: the exact probability is p_i (1 + Σ_{j ≠ i} p_j / (1 − p_j))."""
    logits = torch.stack(
        [torch.randn(items, generator=torch.Generator().manual_seed(seed), dtype=torch.double) for seed in range(20)]
    )
    p = logits.softmax(1)
    odds = p / (1 - p)
    exact = p * (1 + odds.sum(1, keepdim=True) - odds)
    assert float((inclusion(logits, 2) / exact - 1).abs().max()) == pytest.approx(error, abs=0.006)
