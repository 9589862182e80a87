"""Neighbours of items: worked by hand, and compared with counts of a log without one session."""

import numpy as np
import pytest

from offrec.data import neighbours
from offrec.data.neighbours import NeighbourCounts, count_neighbours
from offrec.types import Sessions


def as_sessions(lists: list[list[int]]) -> Sessions:
    items = np.array([item for session in lists for item in session], dtype=np.int32)
    return Sessions(items, np.zeros(len(items), dtype=np.uint8), np.cumsum([0, *map(len, lists)]))


def random_sessions(n_items: int, n_sessions: int) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(0, n_items, size=random.integers(0, 14)).tolist() for _ in range(n_sessions)]


def dense(counts: NeighbourCounts, n_items: int) -> np.ndarray:
    """[A, A] the shares as a matrix."""
    shares = np.zeros((n_items, n_items + 1))
    np.add.at(shares, (np.arange(n_items)[:, None], counts.items[:-1]), counts.shares[:-1])
    return shares[:, :-1]


def test_counts_by_hand() -> None:
    # n(0, 1) = 1 + 1, n(0, 2) = 1/2, n(1, 2) = 1; the repeated 3 is not its own neighbour
    counts = count_neighbours(as_sessions([[0, 1, 2], [1, 0], [3, 3], []]), 5, neighbours=2, steps=2)
    assert counts.items.tolist() == [[1, 2], [0, 2], [1, 0], [5, 5], [5, 5], [5, 5]]
    assert counts.totals.tolist() == [2.5, 3, 1.5, 0, 0, 0]
    np.testing.assert_allclose(counts.shares[:3], [[2 / 2.5, 0.5 / 2.5], [2 / 3, 1 / 3], [1 / 1.5, 0.5 / 1.5]])


def test_shares_of_logged_items_exclude_their_own_session() -> None:
    counts = count_neighbours(as_sessions([[0, 1, 2], [1, 0], [0, 1]]), 3, neighbours=2, steps=2)
    # Event 1 predicts item 1 after item 0; the other sessions contain the pair (0, 1) twice and nothing else of item 0.
    assert counts.own_shares[1].tolist() == [1, 0]
    assert counts.own_totals[1].tolist() == [2, 0]
    # Event 2 predicts item 2: no other session contains it.
    assert counts.own_shares[2].tolist() == [0, 0]
    assert counts.own_totals[2].tolist() == [2, 2]


@pytest.mark.parametrize("block", [40, 1 << 25])
def test_shares_equal_those_of_a_log_without_the_session(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK_PAIRS", block)
    n_items, steps, sessions = 9, 4, random_sessions(9, 25)
    counts = count_neighbours(as_sessions(sessions), n_items, n_items, steps)
    event = 0
    for number, session in enumerate(sessions):
        others = count_neighbours(as_sessions(sessions[:number] + sessions[number + 1 :]), n_items, n_items, steps)
        shares = dense(others, n_items)
        for position, item in enumerate(session):
            before = session[max(0, position - steps) : position][::-1]
            expected = [shares[one, item] for one in before] + [0.0] * (steps - len(before))
            totals = [others.totals[one] for one in before] + [0.0] * (steps - len(before))
            np.testing.assert_allclose(counts.own_shares[event], expected, atol=1e-6)
            np.testing.assert_allclose(counts.own_totals[event], totals, atol=1e-6)
            event += 1


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_and_threads_do_not_change_the_counts(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "count_threads", lambda: 1)
    sessions = as_sessions(random_sessions(30, 40))
    whole = count_neighbours(sessions, 30, 5, 3)
    monkeypatch.setattr(neighbours, "count_threads", lambda: threads)
    monkeypatch.setattr(neighbours, "BLOCK_PAIRS", 300)
    blocks = count_neighbours(sessions, 30, 5, 3)
    assert len(list(neighbours._blocks(sessions.items.astype(np.int64), 30, threads))) > 5
    for name in ("items", "shares", "totals", "own_shares", "own_totals"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(blocks, name), err_msg=name)


def test_a_part_of_a_log_is_indexed_like_the_log() -> None:
    lists = random_sessions(6, 12)
    whole = as_sessions(lists)
    part = Sessions(whole.items, whole.behaviours, whole.offsets[5:])
    counts, alone = count_neighbours(part, 6, 3, 2), count_neighbours(as_sessions(lists[5:]), 6, 3, 2)
    np.testing.assert_array_equal(counts.own_shares[whole.offsets[5] :], alone.own_shares)
    np.testing.assert_array_equal(counts.items, alone.items)


@pytest.mark.parametrize("lists", [[], [[]], [[1]], [[0, 0]]])
def test_a_log_without_pairs_has_no_neighbours(lists: list[list[int]]) -> None:
    counts = count_neighbours(as_sessions(lists), 2, 3, 2)
    assert (counts.items == 2).all()
    assert not counts.totals.any()
    assert not counts.own_shares.any()
