"""Segments, batches and the MDP, compared with results worked out by hand."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offrec.data.replay import POOL, Epochs, Replay, batch_from_histories, round_size
from offrec.data.segments import segment_sessions
from offrec.data.transitions import transitions
from offrec.types import Batch, Sessions, Size

CPU = torch.device("cpu")


def make_sessions(sessions: list[list[int]], behaviours: list[list[int]] | None = None, shift: int = 0) -> Sessions:
    """Return sessions of item indices, after `shift` events of an earlier split."""
    items = [9] * shift + [item for session in sessions for item in session]
    session_behaviours = behaviours or [[0] * len(session) for session in sessions]
    kinds = [0] * shift + [kind for session in session_behaviours for kind in session]
    offsets = np.cumsum([shift, *map(len, sessions)], dtype=np.int64)
    return Sessions(np.array(items, dtype=np.int32), np.array(kinds, dtype=np.uint8), offsets)


def make_replay(sessions: Sessions, history: int, segmentation: str, n_items: int = 10) -> Replay:
    mdp = transitions(sessions, np.array([0.2, 1.0], dtype=np.float32)[sessions.behaviours], 0.5)
    return Replay(sessions, mdp, n_items, history, segmentation, CPU)  # type: ignore[arg-type]


def test_transitions_by_hand() -> None:
    sessions = make_sessions([[1, 2, 3], [4]], [[0, 0, 1], [1]], shift=2)
    mdp = transitions(sessions, np.array([0.2, 1.0], dtype=np.float32)[sessions.behaviours], 0.5)
    np.testing.assert_allclose(mdp.reward, [0.2, 0.2, 1.0, 1.0])
    np.testing.assert_allclose(mdp.discount, [0.5, 0.5, 0.0, 0.0])
    np.testing.assert_allclose(mdp.return_to_go, [0.2 + 0.5 * (0.2 + 0.5 * 1.0), 0.2 + 0.5 * 1.0, 1.0, 1.0])
    assert mdp.discount_if_ignored == 0.5


def test_a_batch_by_hand() -> None:
    replay = make_replay(make_sessions([[1, 2, 3], [4, 5]], shift=3), history=2, segmentation="sessions")
    batch = replay.batch(np.array([1, 0]))
    assert batch.tokens.tolist() == [[4, 5, 10], [1, 2, 3]]
    assert batch.segment.tolist() == [0, 0, 1, 1, 1]
    assert batch.position.tolist() == [0, 1, 0, 1, 2]
    assert batch.action.tolist() == [4, 5, 1, 2, 3]
    assert batch.event.tolist() == [6, 7, 3, 4, 5]
    assert batch.recent.tolist() == [[10, 10], [4, 10], [10, 10], [1, 10], [2, 1]]
    torch.testing.assert_close(batch.return_to_go, torch.tensor([0.3, 0.2, 0.35, 0.3, 0.2]))
    torch.testing.assert_close(batch.next_return_to_go, torch.tensor([0.2, 0.0, 0.3, 0.2, 0.0]))
    torch.testing.assert_close(batch.weight, torch.full((5,), 0.2))


LOGS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=14), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(LOGS, st.integers(1, 6), st.sampled_from(["sessions", "windows", "exact"]), st.integers(0, 3))
def test_every_event_is_one_row_with_the_items_before_it(
    log: list[list[int]], history: int, segmentation: str, shift: int
) -> None:
    replay = make_replay(make_sessions(log, shift=shift), history, segmentation)
    expected = [(session[:t], item) for session in log for t, item in enumerate(session)]
    seen = []
    for index in replay.plan_shuffled(4, 0):
        batch = replay.batch(index)
        for row in range(len(batch)):
            past, item = expected[int(batch.event[row]) - shift]
            seen.append(int(batch.event[row]) - shift)
            assert int(batch.action[row]) == item
            length = int(batch.position[row])
            assert batch.tokens[batch.segment[row], :length].tolist() == past[len(past) - length :]
            recent = [int(a) for a in batch.recent[row] if a < 10]
            assert recent == past[len(past) - length :][::-1]
            minimum = min(len(past), history) if segmentation != "sessions" else min(len(past), history // 2)
            assert minimum <= length <= history
    assert sorted(seen) == list(range(len(expected)))


@settings(max_examples=60, deadline=None)
@given(LOGS, st.integers(1, 6), st.sampled_from(["sessions", "windows"]), st.integers(1, 9), st.integers(0, 3))
def test_rounded_batches_only_add_padding(
    log: list[list[int]], history: int, segmentation: str, batch_size: int, shift: int
) -> None:
    """A batch of a rounded size has the same rows in the same order, followed by padding of weight 0."""
    replay = make_replay(make_sessions(log, shift=shift), history, segmentation)
    exact, padded = Epochs(replay, batch_size, 5), Epochs(replay, batch_size, 5, round_sizes=True)
    for epoch in (1, 2):  # in epoch 0, rounded sizes have another order
        plan = exact.plan(epoch)
        sizes, rounded_sizes = exact.begin(epoch), padded.begin(epoch)
        assert len(plan) == len(sizes) == len(rounded_sizes)
        for number, index in enumerate(plan):
            step = torch.tensor([number])
            one, other, by_hand = (
                exact.gather(step, sizes[number]),
                padded.gather(step, rounded_sizes[number]),
                replay.batch(index),
            )
            rows, (n, length) = len(one), one.tokens.shape
            assert other.tokens.shape == (rounded_sizes[number].segments, rounded_sizes[number].length)
            assert len(other) == rounded_sizes[number].rows == padded.largest_size.rows
            for name in (
                "segment",
                "position",
                "recent",
                "action",
                "event",
                "reward",
                "discount",
                "return_to_go",
                "weight",
            ):
                assert torch.equal(getattr(one, name), getattr(by_hand, name)), name
                assert torch.equal(getattr(one, name), getattr(other, name)[:rows]), name
                if name != "weight":
                    assert (getattr(other, name)[rows:] == getattr(other, name)[0]).all(), "padded with the first row"
            assert torch.equal(one.tokens, other.tokens[:n, :length])
            assert not other.weight[rows:].any()
            assert float(other.weight.sum()) == pytest.approx(1.0)


DERIVED = ("state_index", "next_state_index", "next_return_to_go", "next_recent")


@pytest.mark.parametrize("segmentation", ["sessions", "windows"])
@pytest.mark.parametrize(("history", "most", "kind"), [(3, 9, torch.int32), (70, 130, torch.int64)])
def test_the_kernel_gathers_the_same_batches(segmentation: str, history: int, most: int, kind: torch.dtype) -> None:
    """Equal bit for bit, for exact, larger and too small sizes, and for more segments and items than one chunk."""
    pytest.importorskip("triton", reason="the kernel needs triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    random = np.random.default_rng(0)
    lengths = [1] * 300 + random.integers(1, most, 12).tolist()
    log = [random.integers(0, 10, length).tolist() for length in lengths]
    kinds = [random.integers(0, 2, length).tolist() for length in lengths]
    sessions = make_sessions(log, kinds, shift=3)
    mdp = transitions(sessions, np.array([0.2, 1.0], dtype=np.float32)[sessions.behaviours], 0.7)
    replay = Replay(sessions, mdp, 10, history, segmentation, device)  # type: ignore[arg-type]
    replay.bounds = replay.bounds.to(kind)
    for is_rounded in (False, True):
        plain, epochs = (Epochs(replay, 400, 5, round_sizes=is_rounded, use_kernel=kernel) for kernel in (False, True))
        plain.begin(0)
        sizes = list(enumerate(epochs.begin(0)))[:2]
        most, needed = max(sizes, key=lambda pair: pair[1].segments)
        for halved in ("segments", "rows"):
            sizes.append((most, replace(needed, **{halved: getattr(needed, halved) // 2})))
        for number, size in sizes:
            step = torch.tensor([number], device=device)
            expected, batch = plain.gather(step, size), epochs.gather(step, size)
            for name in (*(field.name for field in fields(Batch) if field.name != "derived"), *DERIVED):
                actual, reference = getattr(batch, name), getattr(expected, name)
                assert actual.dtype == reference.dtype, name
                assert torch.equal(actual, reference), name
            assert torch.equal(batch.tokens_with_start(10), expected.tokens_with_start(10))
            assert batch.tokens_with_start(10).data_ptr() + 8 == batch.tokens.data_ptr(), "one tensor for both"


def test_rounded_sizes_are_few_and_large_enough() -> None:
    largest = Size(300, 1080, 51)
    sizes = {round_size(Size(n, 1024, length), largest) for n in range(1, 301) for length in range(1, 52)}
    assert {size.rows for size in sizes} == {1080}
    assert sorted({size.length for size in sizes}) == [
        1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 51
    ]  # fmt: skip
    assert sorted({size.segments for size in sizes})[-5:] == [96, 128, 192, 256, 300]
    for n, length in ((1, 1), (3, 9), (257, 49), (300, 51), (128, 8)):
        size = round_size(Size(n, 7, length), largest)
        assert n <= size.segments <= max(n + 1, 1.5 * n)
        assert length <= size.length <= 1.25 * length


def test_sessions_without_events_have_no_segments() -> None:
    sessions = make_sessions([[], [1, 2], [], [3]])
    for segmentation in ("sessions", "exact", "windows"):
        replay = make_replay(sessions, 3, segmentation)
        assert [replay.batch(index).action.tolist() for index in replay.plan_by_length(9)] == [
            [3, 1, 2]
        ] or segmentation == "windows"


def test_exact_segments_are_fewer_than_windows() -> None:
    sessions = make_sessions([list(range(9))])
    assert len(segment_sessions(sessions, 3, "windows")) == 9
    assert len(segment_sessions(sessions, 3, "exact")) == 6  # the first four events share one segment
    assert len(segment_sessions(sessions, 3, "sessions")) == 3


def test_the_shuffled_plan_depends_only_on_the_seed() -> None:
    replay = make_replay(make_sessions([[i % 10] * (1 + i % 5) for i in range(300)]), 5, "sessions")
    orders = [np.concatenate(list(replay.plan_shuffled(16, (0, epoch)))) for epoch in (0, 0, 1)]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    sizes = [len(replay.batch(index)) for index in replay.plan_shuffled(16, 0)]
    assert max(sizes) <= 16
    assert sorted(sizes)[1] > 16 - 5, "all but the last batch are full"
    assert sum(sizes) == sum(1 + i % 5 for i in range(300))


def test_no_batch_of_a_shuffled_plan_mixes_the_shortest_and_the_longest_sessions() -> None:
    """Padded to the longest one, such a batch would need many times the memory of others."""
    lengths = 1 + np.random.default_rng(0).permutation(9000) % 30
    replay = make_replay(make_sessions([[0] * length for length in lengths.tolist()]), 50, "sessions")
    plan = replay.plan_shuffled(64, 0)
    assert len(plan) > 2 * POOL, "several groups, each sorted by length"
    ranges = [np.ptp(replay.lengths[segments]) for segments in plan]
    assert max(ranges) <= 10


def test_a_batch_from_histories_by_hand() -> None:
    batch = batch_from_histories([[1, 2, 3], []], n_items=10, history=2, device=CPU)
    assert batch.tokens.tolist() == [[2, 3], [10, 10]]
    assert batch.position.tolist() == [2, 0]
    assert batch.recent.tolist() == [[3, 2], [10, 10]]
    assert batch.weight.tolist() == [0.5, 0.5]


def test_a_subset_has_only_its_segments_and_shares_the_events() -> None:
    replay = make_replay(make_sessions([[1, 2, 3], [4, 5], [6]], shift=2), history=5, segmentation="sessions")
    part = replay.subset(np.array([2, 0, 0]))
    assert part.items is replay.items
    assert len(part.segments) == 3
    assert part.rows.tolist() == [1, 3, 3]
    batch = part.batch(np.arange(3))
    assert batch.action.tolist() == [6, 1, 2, 3, 1, 2, 3]
    assert batch.event.tolist() == [7, 2, 3, 4, 2, 3, 4]
    assert len(replay.segments) == 3
    assert replay.batch(np.arange(3)).action.tolist() == [1, 2, 3, 4, 5, 6]


def test_rounded_sizes_leave_the_batches_as_they_are() -> None:
    """A captured run and an uncaptured one see the same batches in the same order."""
    random = np.random.default_rng(1)
    log = [random.integers(0, 10, length).tolist() for length in random.integers(1, 9, 400)]
    replay = make_replay(make_sessions(log), 9, "sessions")
    plans = [Epochs(replay, 32, 0, round_sizes=is_rounded).plan(0) for is_rounded in (False, True)]
    exact, rounded = ([index.tolist() for index in plan] for plan in plans)
    assert exact == rounded
