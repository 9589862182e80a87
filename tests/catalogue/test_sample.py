"""Draws without replacement against the chances of every ordered list, worked out one place after the other."""

from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from offrec.catalogue import Head, reference, sample_k, tiled
from offrec.catalogue.head import MASKED

DRAWS = 20_000


def successive(chances: Tensor, k: int) -> dict[tuple[int, ...], float]:
    """P(list) = Π_j p(i_j) / (1 − Σ_{l<j} p(i_l))"""
    found = {}
    for items in permutations(range(len(chances)), k):
        chance, left = 1.0, 1.0
        for item in items:
            chance *= float(chances[item]) / left
            left -= float(chances[item])
        found[items] = chance
    return found


def small_head() -> Head:
    """Five items, one of them corrected."""
    table = torch.tensor([[0.3], [-0.5], [1.0], [0.0], [0.4]])
    items, values = torch.tensor([[1]]), torch.tensor([[0.7]])
    return Head(torch.ones(1, 1), table, torch.tensor([0.0, 0.2, -0.1, 0.5, 0.0]), items, values)


def many(head: Head, rows: int) -> Head:
    assert head.items is not None
    assert head.values is not None
    corrections = (head.items.expand(rows, -1), head.values.expand(rows, -1))
    return Head(head.state.expand(rows, -1), head.table, head.bias, *corrections)


@pytest.mark.parametrize("width", [2, 1000])
def test_frequencies_are_those_of_successive_draws(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: width)
    head = small_head()
    drawn = sample_k(many(head, DRAWS), 3, torch.Generator().manual_seed(4)).tolist()
    expected = successive(reference.logits(head)[0].double().softmax(0), 3)
    counts = dict.fromkeys(expected, 0)
    for row in drawn:
        counts[tuple(row)] += 1
    observed, chances = list(counts.values()), torch.tensor(list(expected.values()), dtype=torch.double)
    assert chisquare(observed, (DRAWS * chances).numpy()).pvalue > 0.001
    wrong = DRAWS * chances.flip(0)  # the same test refuses other chances
    assert chisquare(observed, wrong.numpy()).pvalue < 1e-9


def test_all_items_are_a_permutation() -> None:
    drawn = sample_k(many(small_head(), 50), 5, torch.Generator().manual_seed(0))
    assert (drawn.sort(1).values == torch.arange(5)).all()
    assert len(drawn.unique(dim=0)) > 1


def test_what_is_masked_is_never_drawn_before_the_rest() -> None:
    head = small_head().mask(torch.tensor([[2]]))
    assert head.values is not None
    assert float(head.values.min()) == pytest.approx(MASKED)
    drawn = sample_k(many(head, 200), 4, torch.Generator().manual_seed(0))
    assert not (drawn == 2).any()


def test_same_generator_same_draws() -> None:
    first, second = (sample_k(many(small_head(), 9), 2, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


def test_single_precision_leaves_no_ties_among_many() -> None:
    """Of 300,000 equal items the low ones must not win: with single-precision noise the smallest draws would tie."""
    head = Head(torch.zeros(64, 1), torch.zeros(300_000, 1))
    drawn = sample_k(head, 5, torch.Generator().manual_seed(0)).double()
    assert abs(float(drawn.mean()) / 300_000 - 0.5) < 4 * (1 / 12) ** 0.5 / 320**0.5
