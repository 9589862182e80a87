"""SKNN and VSKNN: worked by hand on four sessions, and compared with plain Python on random ones."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.baselines.neighbours import NeighbourOptions, SessionNeighbours, VectorSessionNeighbours
from offrec.data.dataset import Dataset

SESSIONS = [[0, 1, 2], [1, 2, 2], [2, 3], [0, 0, 3], [4], [4]]  # the last two are not for training
POWER = {"none": 0, "linear": 1, "quadratic": 2}


def scores(policy: SessionNeighbours, *history: int) -> list[float]:
    recent = np.full((1, policy.history), policy.n_items)
    kept = list(history)[::-1][: policy.history]
    recent[0, : len(kept)] = kept
    return policy.scores(recent).toarray()[0].tolist()  # type: ignore[no-any-return]


def neighbours(dataset: Dataset, history: int = 50, **options: Any) -> SessionNeighbours:
    return SessionNeighbours(dataset, history, torch.device("cpu"), NeighbourOptions(**options))


@pytest.fixture
def dataset(make_dataset: Any, tmp_path: Path) -> Any:
    return make_dataset(tmp_path, SESSIONS)


def test_sknn_by_hand(dataset: Any) -> None:
    # {1, 2} shares 2 of {0, 1, 2}: 2 / √6; 2 of {1, 2}: 1; 1 of {2, 3}: 1 / 2; nothing of {0, 3}
    a, b, c = 2 / math.sqrt(6), 1.0, 0.5
    assert scores(neighbours(dataset), 1, 2) == pytest.approx([a, a + b, a + b + c, c, 0])
    assert scores(neighbours(dataset), 2, 1, 2, 2) == pytest.approx([a, a + b, a + b + c, c, 0])
    assert scores(neighbours(dataset, neighbours=2), 1, 2) == pytest.approx([a, a + b, a + b, 0, 0])


def test_a_history_without_neighbours_has_no_scores(dataset: Any) -> None:
    assert scores(neighbours(dataset)) == scores(neighbours(dataset), 4) == [0] * 5


def test_only_the_latest_sessions_are_compared(dataset: Any) -> None:
    # of the three that share an item, the latest is {2, 3}
    assert scores(neighbours(dataset, sample=1), 1, 2) == pytest.approx([0, 0, 0.5, 0.5, 0])
    assert scores(neighbours(dataset, sample=2), 1, 2) == pytest.approx([0, 1, 1.5, 0.5, 0])


def test_later_sessions_win_ties(dataset: Any) -> None:
    # item 3 stands in {2, 3} and, later, in {0, 3}
    half = 1 / math.sqrt(2)
    assert scores(neighbours(dataset, neighbours=1), 3) == pytest.approx([half, 0, 0, half, 0])


def test_sessions_are_ordered_by_time(dataset: Any) -> None:
    starts = np.repeat([30, 40, 10, 20, 0, 0], [len(session) for session in SESSIONS])
    dataset = replace(dataset, times=starts)
    assert scores(neighbours(dataset, sample=1), 1, 2) == pytest.approx([0, 1, 1, 0, 0])  # {1, 2} is the latest now


def test_vsknn_by_hand(dataset: Any) -> None:
    policy = neighbours(dataset, decay="quadratic", neighbour_decay="linear", idf=1.0)
    # w(1) = 1, w(3) = (1/2)² = 1/4, norm √(1 + 1/16); {2, 3} and {0, 3} share only the item one step back: × 1/2
    norm = math.sqrt(1 + 1 / 16)
    a, b = 1 / (norm * math.sqrt(3)), 1 / (norm * math.sqrt(2))
    c = d = 0.25 / (norm * math.sqrt(2)) / 2
    two, three = 1 + math.log(4 / 2), 1 + math.log(4 / 3)  # items held by two and by three of the four sessions
    expected = [two * (a + d), two * (a + b), three * (a + b + c), two * (c + d), 0]
    assert scores(policy, 3, 1) == pytest.approx(expected)


def test_vsknn_differs_from_sknn_by_its_options_only(dataset: Any) -> None:
    plain = VectorSessionNeighbours(dataset, 50, torch.device("cpu"), NeighbourOptions())
    assert scores(plain, 3, 1) == scores(neighbours(dataset), 3, 1)
    assert scores(VectorSessionNeighbours(dataset, 50, torch.device("cpu")), 3, 1) != scores(plain, 3, 1)


def plain_python(train: list[list[int]], n_items: int, history: list[int], options: NeighbourOptions) -> list[float]:
    length = len(history)
    weight: dict[int, float] = {}
    step: dict[int, int] = {}
    for back, item in enumerate(reversed(history)):
        if item not in weight:
            weight[item] = ((length - back) / length) ** POWER[options.decay]
            step[item] = back
    norm = math.sqrt(sum(w * w for w in weight.values()))
    sets = [set(session) for session in train]
    candidates = [index for index, items in enumerate(sets) if items & weight.keys()][-options.sample :]
    similar = []
    for index in candidates:
        shared = sets[index] & weight.keys()
        similarity = sum(weight[item] for item in shared) / (norm * math.sqrt(len(sets[index])))
        latest = min(step[item] for item in shared)
        similar.append((similarity, index, ((length - latest) / length) ** POWER[options.neighbour_decay]))
    # Equal similarities may differ in their last digit, by the order of their sums
    similar.sort(key=lambda entry: (-round(entry[0], 12), -entry[1]))
    found = [0.0] * n_items
    for similarity, index, faded in similar[: options.neighbours]:
        for item in sets[index]:
            holders = sum(item in other for other in sets)
            found[item] += similarity * faded * (1 + options.idf * math.log(len(sets) / holders))
    return found


@pytest.mark.parametrize(
    "options",
    [
        NeighbourOptions(),
        NeighbourOptions(neighbours=5, sample=12),
        NeighbourOptions(neighbours=1000, sample=1000, decay="linear", neighbour_decay="quadratic", idf=0.5),
        NeighbourOptions(neighbours=1000, sample=25, decay="quadratic", neighbour_decay="linear", idf=1.0),
    ],
)
def test_scores_agree_with_plain_python(make_dataset: Any, tmp_path: Path, options: NeighbourOptions) -> None:
    random = np.random.default_rng(1)
    sessions = [(random.zipf(1.4, random.integers(1, 12)) % 30).tolist() for _ in range(120)]
    dataset = make_dataset(tmp_path, sessions, splits=(80, 20, 20), items=30)
    policy = SessionNeighbours(dataset, 8, torch.device("cpu"), options)
    for session in sessions[80:]:
        expected = plain_python(sessions[:80], 30, session[-8:], options)
        assert scores(policy, *session) == pytest.approx(expected)


def test_the_deepest_shared_item_of_a_long_history_is_found(make_dataset: Any, tmp_path: Path) -> None:
    """With fifty steps back and neighbours that share every item, sums of powers of two must stay exact."""
    dataset = make_dataset(tmp_path, [list(range(50)), [0], [0, 1], [50], [50]])
    policy = neighbours(dataset, neighbour_decay="linear")
    root = math.sqrt(50)
    alone, two = 1 / root / 50, 2 / (root * math.sqrt(2)) * 2 / 50
    expected = [1 + alone + two, 1 + two] + [1.0] * 48 + [0.0]
    assert scores(policy, *range(50)) == pytest.approx(expected)
