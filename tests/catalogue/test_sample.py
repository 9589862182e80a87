"""Sampling without replacement, against the probability of every ordered list."""

from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from offrec.catalogue import Head, reference, sample_k, tiled
from offrec.catalogue.head import MASKED

DRAWS = 20_000


def successive(probabilities: Tensor, k: int) -> dict[tuple[int, ...], float]:
    """Compute P(list) = Π_j p(i_j) / (1 − Σ_{l<j} p(i_l)) for every list."""
    by_list = {}
    for items in permutations(range(len(probabilities)), k):
        probability, left = 1.0, 1.0
        for item in items:
            probability *= float(probabilities[item]) / left
            left -= float(probabilities[item])
        by_list[items] = probability
    return by_list


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
def test_frequencies_match_successive_sampling(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: width)
    head = small_head()
    sampled = sample_k(many(head, DRAWS), 3, torch.Generator().manual_seed(4)).tolist()
    expected = successive(reference.logits(head)[0].double().softmax(0), 3)
    counts = dict.fromkeys(expected, 0)
    for row in sampled:
        counts[tuple(row)] += 1
    observed, probabilities = list(counts.values()), torch.tensor(list(expected.values()), dtype=torch.double)
    assert chisquare(observed, (DRAWS * probabilities).numpy()).pvalue > 0.001
    wrong = DRAWS * probabilities.flip(0)  # the test must reject other probabilities
    assert chisquare(observed, wrong.numpy()).pvalue < 1e-9


def test_sampling_every_item_gives_a_permutation() -> None:
    sampled = sample_k(many(small_head(), 50), 5, torch.Generator().manual_seed(0))
    assert (sampled.sort(1).values == torch.arange(5)).all()
    assert len(sampled.unique(dim=0)) > 1


def test_masked_items_are_sampled_last() -> None:
    head = small_head().mask(torch.tensor([[2]]))
    assert head.values is not None
    assert float(head.values.min()) == pytest.approx(MASKED)
    sampled = sample_k(many(head, 200), 4, torch.Generator().manual_seed(0))
    assert not (sampled == 2).any()


def test_the_same_seed_gives_the_same_samples() -> None:
    first, second = (sample_k(many(small_head(), 9), 2, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


def test_noise_has_no_ties_among_many_items() -> None:
    """Of 300,000 equal items, low indices must not win: in float32 the smallest draws would tie."""
    head = Head(torch.zeros(64, 1), torch.zeros(300_000, 1))
    sampled = sample_k(head, 5, torch.Generator().manual_seed(0)).double()
    assert abs(float(sampled.mean()) / 300_000 - 0.5) < 4 * (1 / 12) ** 0.5 / 320**0.5
