"""Lists and how likely they were: against every ordered list's chance, worked out one place after the other."""

import math
from collections import Counter
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from offrec.catalogue import Head, logsumexp, tiled, top_k
from offrec.catalogue import sampling as draws
from offrec.catalogue.head import MASKED
from offrec.catalogue.lists import position_log_probs, sample_lists, top_lists


def head(rows: int, n_items: int = 7, spread: float = 1.0) -> Head:
    torch.manual_seed(1)
    corrected = torch.tensor([[2, 5]]).expand(rows, -1)
    values = torch.tensor([[0.7, -1.0]]).expand(rows, -1)
    return Head(torch.randn(rows, 3), spread * torch.randn(n_items, 3), torch.randn(n_items), corrected, values, True)


def by_hand(z: Tensor, items: list[int], temperature: float) -> list[float]:
    """log P(l_j | l_1 … l_{j−1}) = log softmax over what is left."""
    left, found = list(range(len(z))), []
    for item in items:
        weights = {other: math.exp(float(z[other]) / temperature) for other in left}
        found.append(math.log(weights[item] / sum(weights.values())))
        left.remove(item)
    return found


@pytest.mark.parametrize("width", [2, 1000])
def test_places_of_a_drawn_list_are_worked_out_by_hand(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: width)
    many, heats = head(40), torch.tensor([0.5, 1.0, 3.0, 1.0], dtype=torch.double).repeat(10)
    found = sample_lists(many, 4, heats, torch.Generator().manual_seed(0))
    every = torch.arange(7).expand(40, -1)
    z = many.at(every).double()
    assert found.log_probs is not None
    for row in range(40):
        expected = by_hand(z[row], found.items[row].tolist(), float(heats[row]))
        assert found.log_probs[row].tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(found.lse, z.logsumexp(1), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.values.double(), z.gather(1, found.items))


def test_all_ordered_lists_have_probability_one_together() -> None:
    weights = torch.tensor([0.3, -2.0, 1.0, 0.1]).double()
    lists = torch.tensor(list(permutations(range(4), 2)))
    others = torch.stack([weights[[i for i in range(4) if i not in row]].logsumexp(0) for row in lists.tolist()])
    assert float(position_log_probs(weights[lists], others).sum(1).exp().sum()) == pytest.approx(1.0, abs=1e-12)


def test_a_list_that_holds_all_of_the_mass_keeps_exact_places() -> None:
    """The second place's chance given the first is a third, though both are 1e-20 of the whole."""
    table = torch.tensor([[60.0], [0.0], [0.0], [0.0]])
    found = sample_lists(Head(torch.ones(1, 1), table), 2, torch.ones(1, dtype=torch.double), torch.Generator())
    assert found.items[0, 0] == 0
    assert found.log_probs is not None
    assert found.log_probs[0].exp().tolist() == pytest.approx([1.0, 1 / 3], abs=1e-6)


def test_the_last_of_all_items_is_certain() -> None:
    found = sample_lists(head(3, spread=20), 7, torch.ones(3, dtype=torch.double), torch.Generator().manual_seed(3))
    assert found.log_probs is not None
    torch.testing.assert_close(found.log_probs[:, -1], torch.zeros(3, dtype=torch.double))


def test_best_lists_are_top_k_and_logsumexp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: 3)
    some = head(5, 20).mask(torch.tensor([[3, 20], [4, 5], [20, 20], [0, 1], [19, 2]]))
    found = top_lists(some, 4)
    values, items = top_k(some, 4)
    assert torch.equal(found.items, items)
    assert torch.equal(found.values, values)
    torch.testing.assert_close(found.lse, logsumexp(some).double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_lists_come_as_often_as_their_places_say(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two, two draws at a time, tiles of three: every seam is crossed. One item is masked, one corrected."""
    monkeypatch.setattr(draws, "BLOCK", 2)
    monkeypatch.setattr(draws, "MOST", 2)
    monkeypatch.setattr(tiled, "tile_width", lambda head: 3)
    rows = 20_000
    table = spread * torch.tensor([[0.3], [-0.5], [1.0], [0.0], [0.4]])
    corrected = torch.tensor([[1, 3]]).expand(rows, -1), torch.tensor([[0.7, MASKED]]).expand(rows, -1)
    many = Head(torch.ones(rows, 1), table, None, *corrected)
    heat = torch.full((rows,), 1.5, dtype=torch.double)
    found = sample_lists(many, 3, heat, torch.Generator().manual_seed(2))
    assert found.log_probs is not None
    lists, logs = [tuple(one) for one in found.items.tolist()], found.log_probs.sum(1).tolist()
    chances = {one: math.exp(log) for one, log in zip(lists, logs, strict=True)}
    assert set(chances) == set(permutations([0, 1, 2, 4], 3))
    assert sum(chances.values()) == pytest.approx(1.0, abs=1e-5)
    counts = Counter(lists)
    expected = [rows * chance / sum(chances.values()) for chance in chances.values()]
    assert chisquare([counts[one] for one in chances], expected).pvalue > 1e-3


def test_where_too_few_are_left_the_rest_is_masked() -> None:
    some = head(4, 6).mask(torch.tensor([[0, 1, 2, 3]]).expand(4, -1))
    found = sample_lists(some, 4, torch.ones(4, dtype=torch.double), torch.Generator().manual_seed(0))
    assert {*found.items[:, :2].flatten().tolist()} == {4, 5}
    assert (found.values[:, :2] > MASKED / 10).all()
    assert (found.values[:, 2:] == MASKED).all()
    assert found.log_probs is not None
    torch.testing.assert_close(found.log_probs[:, 1], torch.zeros(4, dtype=torch.double))


@pytest.mark.parametrize("heat", [0.01, 1.0, 9.0, 20.0, 100.0])
def test_what_is_masked_is_not_drawn_however_hot(heat: float) -> None:
    """Rows of which five, two and all of twenty items are left, at a temperature of their own beside one of 1."""
    barred = [[*range(15), *[20] * 5], [*range(18), 20, 20], [20] * 20, [*range(15), *[20] * 5]]
    some = head(4, 20).mask(torch.tensor(barred))
    heats = torch.tensor([heat, heat, heat, 1.0], dtype=torch.double)
    found = sample_lists(some, 20, heats, torch.Generator().manual_seed(0))
    z = some.at(torch.arange(20).expand(4, -1)).double()
    assert found.log_probs is not None
    for row, left in enumerate(([15, 16, 17, 18, 19], [18, 19], list(range(20)), [15, 16, 17, 18, 19])):
        items = found.items[row, : len(left)].tolist()
        assert sorted(items) == left
        assert (found.values[row, len(left) :] == MASKED).all()
        expected = by_hand(z[row, left], [left.index(item) for item in items], float(heats[row]))
        assert found.log_probs[row, : len(left)].tolist() == pytest.approx(expected, abs=1e-4)
