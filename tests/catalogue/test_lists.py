"""Item lists and their probabilities, against probabilities computed position by position."""

import math
from collections import Counter
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from offrec.catalogue import Head, logsumexp, sampling, tiled, top_k
from offrec.catalogue.head import MASKED
from offrec.catalogue.lists import position_log_probs, sample_lists, top_lists


def head(rows: int, n_items: int = 7, spread: float = 1.0) -> Head:
    torch.manual_seed(1)
    corrected = torch.tensor([[2, 5]]).expand(rows, -1)
    values = torch.tensor([[0.7, -1.0]]).expand(rows, -1)
    return Head(torch.randn(rows, 3), spread * torch.randn(n_items, 3), torch.randn(n_items), corrected, values, True)


def by_hand(z: Tensor, items: list[int], temperature: float) -> list[float]:
    """Compute log P(l_j | l_1 … l_{j−1}), a log softmax over the remaining items."""
    remaining, log_probs = list(range(len(z))), []
    for item in items:
        weights = {other: math.exp(float(z[other]) / temperature) for other in remaining}
        log_probs.append(math.log(weights[item] / sum(weights.values())))
        remaining.remove(item)
    return log_probs


@pytest.mark.parametrize("width", [2, 1000])
def test_log_probs_of_a_sampled_list_by_hand(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: width)
    many, temperatures = head(40), torch.tensor([0.5, 1.0, 3.0, 1.0], dtype=torch.double).repeat(10)
    lists = sample_lists(many, 4, temperatures, torch.Generator().manual_seed(0))
    every = torch.arange(7).expand(40, -1)
    z = many.at(every).double()
    assert lists.log_probs is not None
    for row in range(40):
        expected = by_hand(z[row], lists.items[row].tolist(), float(temperatures[row]))
        assert lists.log_probs[row].tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(lists.lse, z.logsumexp(1), rtol=0, atol=1e-5)
    torch.testing.assert_close(lists.values.double(), z.gather(1, lists.items))


def test_probabilities_of_all_ordered_lists_sum_to_one() -> None:
    weights = torch.tensor([0.3, -2.0, 1.0, 0.1]).double()
    pairs = torch.tensor(list(permutations(range(4), 2)))
    others = torch.stack([weights[[i for i in range(4) if i not in row]].logsumexp(0) for row in pairs.tolist()])
    assert float(position_log_probs(weights[pairs], others).sum(1).exp().sum()) == pytest.approx(1.0, abs=1e-12)


def test_log_probs_are_exact_when_one_item_has_nearly_all_of_the_mass() -> None:
    """The second position has probability 1/3 given the first, although its item has only 1e-26 of the mass."""
    table = torch.tensor([[60.0], [0.0], [0.0], [0.0]])
    lists = sample_lists(Head(torch.ones(1, 1), table), 2, torch.ones(1, dtype=torch.double), torch.Generator())
    assert lists.items[0, 0] == 0
    assert lists.log_probs is not None
    assert lists.log_probs[0].exp().tolist() == pytest.approx([1.0, 1 / 3], abs=1e-6)


def test_the_last_remaining_item_is_certain() -> None:
    lists = sample_lists(head(3, spread=20), 7, torch.ones(3, dtype=torch.double), torch.Generator().manual_seed(3))
    assert lists.log_probs is not None
    torch.testing.assert_close(lists.log_probs[:, -1], torch.zeros(3, dtype=torch.double))


def test_top_lists_equal_top_k_and_logsumexp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: 3)
    some = head(5, 20).mask(torch.tensor([[3, 20], [4, 5], [20, 20], [0, 1], [19, 2]]))
    lists = top_lists(some, 4)
    values, items = top_k(some, 4)
    assert torch.equal(lists.items, items)
    assert torch.equal(lists.values, values)
    torch.testing.assert_close(lists.lse, logsumexp(some).double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_frequencies_of_lists_match_their_probabilities(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks of two, two draws per round and tiles of three; one item is masked, one corrected."""
    monkeypatch.setattr(sampling, "BLOCK", 2)
    monkeypatch.setattr(sampling, "MAX_DRAWS", 2)
    monkeypatch.setattr(tiled, "tile_width", lambda head: 3)
    rows = 20_000
    table = spread * torch.tensor([[0.3], [-0.5], [1.0], [0.0], [0.4]])
    corrected = torch.tensor([[1, 3]]).expand(rows, -1), torch.tensor([[0.7, MASKED]]).expand(rows, -1)
    many = Head(torch.ones(rows, 1), table, None, *corrected)
    temperature = torch.full((rows,), 1.5, dtype=torch.double)
    lists = sample_lists(many, 3, temperature, torch.Generator().manual_seed(2))
    assert lists.log_probs is not None
    sampled, logs = [tuple(one) for one in lists.items.tolist()], lists.log_probs.sum(1).tolist()
    probabilities = {one: math.exp(log) for one, log in zip(sampled, logs, strict=True)}
    assert set(probabilities) == set(permutations([0, 1, 2, 4], 3))
    assert sum(probabilities.values()) == pytest.approx(1.0, abs=1e-5)
    counts = Counter(sampled)
    expected = [rows * p / sum(probabilities.values()) for p in probabilities.values()]
    assert chisquare([counts[one] for one in probabilities], expected).pvalue > 1e-3


def test_a_list_longer_than_the_unmasked_items_is_filled_with_masked_values() -> None:
    some = head(4, 6).mask(torch.tensor([[0, 1, 2, 3]]).expand(4, -1))
    lists = sample_lists(some, 4, torch.ones(4, dtype=torch.double), torch.Generator().manual_seed(0))
    assert {*lists.items[:, :2].flatten().tolist()} == {4, 5}
    assert (lists.values[:, :2] > MASKED / 10).all()
    assert (lists.values[:, 2:] == MASKED).all()
    assert lists.log_probs is not None
    torch.testing.assert_close(lists.log_probs[:, 1], torch.zeros(4, dtype=torch.double))


@pytest.mark.parametrize("temperature", [0.01, 1.0, 9.0, 20.0, 100.0])
def test_masked_items_are_not_sampled_at_any_temperature(temperature: float) -> None:
    """Rows with five, two and all of twenty items unmasked; the last row has temperature 1."""
    masked_items = [[*range(15), *[20] * 5], [*range(18), 20, 20], [20] * 20, [*range(15), *[20] * 5]]
    some = head(4, 20).mask(torch.tensor(masked_items))
    temperatures = torch.tensor([*[temperature] * 3, 1.0], dtype=torch.double)
    lists = sample_lists(some, 20, temperatures, torch.Generator().manual_seed(0))
    z = some.at(torch.arange(20).expand(4, -1)).double()
    assert lists.log_probs is not None
    for row, left in enumerate(([15, 16, 17, 18, 19], [18, 19], list(range(20)), [15, 16, 17, 18, 19])):
        items = lists.items[row, : len(left)].tolist()
        assert sorted(items) == left
        assert (lists.values[row, len(left) :] == MASKED).all()
        expected = by_hand(z[row, left], [left.index(item) for item in items], float(temperatures[row]))
        assert lists.log_probs[row, : len(left)].tolist() == pytest.approx(expected, abs=1e-4)
