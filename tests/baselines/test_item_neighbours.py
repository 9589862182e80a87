"""Item neighbours: worked by hand, compared with `implicit`'s formulas, and options chosen on validation."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.baselines import item_neighbours
from offrec.baselines.item_neighbours import ItemNeighbourOptions, ItemNeighbours

SESSIONS = [[0, 1], [0, 1, 1], [1, 2], [3, 4, 5], [4], [4]]  # the last two are not for training


def build(dataset: Any, **options: Any) -> ItemNeighbours:
    return ItemNeighbours(dataset, 50, torch.device("cpu"), ItemNeighbourOptions(**options))


def scores(policy: ItemNeighbours, *history: int) -> list[float]:
    recent = np.full((1, policy.history), policy.n_items)
    recent[0, : len(history)] = history[::-1]
    return policy.scores(recent).toarray()[0].tolist()  # type: ignore[no-any-return]


def bm25(counts: Any, k1: float, b: float) -> Any:
    """The weights of `implicit.nearest_neighbours.bm25_weight(counts.T, k1, b).T`, dense."""
    idf = math.log(counts.shape[1]) - np.log1p((counts > 0).sum(1))
    length = counts.sum(0)
    norm = 1 - b + b * length / length.mean()
    return counts * (k1 + 1) / (k1 * norm[None] + counts) * idf[:, None]


def test_scores_by_hand(make_dataset: Any, tmp_path: Path) -> None:
    # With K1 = 0 each item of a session has the weight log(A / (1 + |u|)): 2 items, log 2; 3 items, log 1.5.
    policy = build(make_dataset(tmp_path, SESSIONS), saturation=0.0, decay=0.5)
    pair = math.log(2) ** 2
    assert scores(policy, 0) == pytest.approx([2 * pair, 2 * pair, 0, 0, 0, 0])
    assert scores(policy, 0, 2) == pytest.approx([pair, pair + pair, pair, 0, 0, 0])
    assert scores(policy, 5) == pytest.approx([0, 0, 0, *[math.log(1.5) ** 2] * 3])
    assert scores(policy) == [0] * 6


def test_the_item_itself_can_be_ignored_or_stressed(make_dataset: Any, tmp_path: Path) -> None:
    pair, dataset = math.log(2) ** 2, make_dataset(tmp_path, SESSIONS)
    assert scores(build(dataset, saturation=0.0, own=0.0), 0) == pytest.approx([0, 2 * pair, 0, 0, 0, 0])
    assert scores(build(dataset, saturation=0.0, own=3.0), 0) == pytest.approx([6 * pair, 2 * pair, 0, 0, 0, 0])


@pytest.mark.parametrize(("k1", "b", "neighbours"), [(1.2, 0.75, 100), (100.0, 1.0, 100), (0.3, 0.5, 7)])
def test_scores_equal_implicits(
    k1: float, b: float, neighbours: int, make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_neighbours, "BLOCK_PRODUCTS", 50)  # several blocks
    random = np.random.default_rng(1)
    sessions = [random.integers(0, 30, size=random.integers(1, 9)).tolist() for _ in range(60)]
    policy = build(
        make_dataset(tmp_path, sessions, items=30), saturation=k1, frequency=b, neighbours=neighbours, decay=0.7
    )
    counts = np.array([np.bincount(session, minlength=30) for session in sessions[:-2]], dtype=float)
    weights = bm25(counts, k1, b)
    similar = weights.T @ weights
    similar[similar < np.sort(similar, 1)[:, [-min(neighbours, 30)]]] = 0.0
    expected = similar[4] + 0.7 * similar[9] + 0.49 * similar[2]
    np.testing.assert_allclose(scores(policy, 2, 9, 4), expected, atol=1e-9)


def test_options_are_chosen_on_validation(make_dataset: Any, tmp_path: Path) -> None:
    pairs = [[2 * number, 2 * number + 1] for number in range(5)]
    repeats = [[item, item] for item in range(10)]
    no_repeat = make_dataset(tmp_path, [*pairs * 8, *pairs, *pairs], splits=(40, 5, 5))
    repeating = make_dataset(tmp_path, [*pairs * 8, *repeats, *repeats], splits=(40, 10, 10))
    chosen = [ItemNeighbours(data, 50, torch.device("cpu")).options for data in (no_repeat, repeating)]
    assert chosen[0].own < 1 <= chosen[1].own


def test_options_do_not_depend_on_test_sessions(make_dataset: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    sessions = [random.integers(0, 20, size=6).tolist() for _ in range(50)]
    other = [*sessions[:40], *[session[::-1] for session in sessions[40:]]]
    data = [make_dataset(tmp_path, part, splits=(30, 10, 10)) for part in (sessions, other)]
    policies = [ItemNeighbours(one, 50, torch.device("cpu")) for one in data]
    assert policies[0].options == policies[1].options
    assert scores(policies[0], 3, 5) == scores(policies[1], 3, 5)


def test_a_dataset_without_histories_on_validation_takes_the_defaults(make_dataset: Any, tmp_path: Path) -> None:
    assert ItemNeighbours(make_dataset(tmp_path, SESSIONS), 50, torch.device("cpu")).options == ItemNeighbourOptions()
