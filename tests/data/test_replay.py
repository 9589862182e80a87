"""Pieces, windows and the MDP, against what a reader would write by hand."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offrec.data.replay import Epochs, Replay, batch_from_histories, cut, rounded
from offrec.data.transitions import reward_vector, transitions
from offrec.errors import InputError
from offrec.types import Batch, Sessions, Size

CPU = torch.device("cpu")


def made(sessions: list[list[int]], behaviours: list[list[int]] | None = None, shift: int = 0) -> Sessions:
    """`shift` events of an earlier split stand before."""
    items = [9] * shift + [item for session in sessions for item in session]
    given_ = behaviours or [[0] * len(session) for session in sessions]
    kinds = [0] * shift + [kind for session in given_ for kind in session]
    offsets = np.cumsum([shift, *map(len, sessions)], dtype=np.int64)
    return Sessions(np.array(items, dtype=np.int32), np.array(kinds, dtype=np.uint8), offsets)


def replayed(sessions: Sessions, history: int, how: str, n_items: int = 10) -> Replay:
    mdp = transitions(sessions, np.array([0.2, 1.0], dtype=np.float32), 0.5)
    return Replay(sessions, mdp, n_items, history, how, CPU)  # type: ignore[arg-type]


def test_transitions_by_hand() -> None:
    sessions = made([[1, 2, 3], [4]], [[0, 0, 1], [1]], shift=2)
    mdp = transitions(sessions, np.array([0.2, 1.0], dtype=np.float32), 0.5)
    np.testing.assert_allclose(mdp.reward, [0.2, 0.2, 1.0, 1.0])
    np.testing.assert_allclose(mdp.discount, [0.5, 0.5, 0.0, 0.0])
    np.testing.assert_allclose(mdp.return_to_go, [0.2 + 0.5 * (0.2 + 0.5 * 1.0), 0.2 + 0.5 * 1.0, 1.0, 1.0])
    assert mdp.discount_if_ignored == 0.5


def test_rewards_by_name() -> None:
    np.testing.assert_allclose(reward_vector(["view", "cart"], {"cart": 3.0}), [0.2, 3.0])
    with pytest.raises(InputError, match=r"'wave'.*--set reward\.wave"):
        reward_vector(["view", "wave"], {})
    with pytest.raises(InputError, match=r"reward\.buy is not a behaviour.*view"):
        reward_vector(["view"], {"buy": 1.0})


def test_a_batch_by_hand() -> None:
    replay = replayed(made([[1, 2, 3], [4, 5]], shift=3), history=2, how="sessions")
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
def test_every_event_is_a_row_once_with_its_own_past(log: list[list[int]], history: int, how: str, shift: int) -> None:
    replay = replayed(made(log, shift=shift), history, how)
    truth = [(session[:t], item) for session in log for t, item in enumerate(session)]
    seen = []
    for index in replay.shuffled(4, 0):
        batch = replay.batch(index)
        for row in range(len(batch)):
            past, item = truth[int(batch.event[row]) - shift]
            seen.append(int(batch.event[row]) - shift)
            assert int(batch.action[row]) == item
            length = int(batch.position[row])
            assert batch.tokens[batch.segment[row], :length].tolist() == past[len(past) - length :]
            recent = [int(a) for a in batch.recent[row] if a < 10]
            assert recent == past[len(past) - length :][::-1]
            least = min(len(past), history) if how != "sessions" else min(len(past), history // 2)
            assert least <= length <= history
    assert sorted(seen) == list(range(len(truth)))


@settings(max_examples=60, deadline=None)
@given(LOGS, st.integers(1, 6), st.sampled_from(["sessions", "windows"]), st.integers(1, 9), st.integers(0, 3))
def test_rounded_batches_only_fill_up(
    log: list[list[int]], history: int, how: str, batch_size: int, shift: int
) -> None:
    """By its number on the device, in tensors of a size class: the same rows in the same order, and fillers."""
    replay = replayed(made(log, shift=shift), history, how)
    exact, filled = Epochs(replay, batch_size, 5), Epochs(replay, batch_size, 5, rounded=True)
    for epoch in (0, 1):
        plan = exact.plan(epoch)
        sizes, large = exact.begin(epoch), filled.begin(epoch)
        assert len(plan) == len(sizes) == len(large)
        for number, index in enumerate(plan):
            step = torch.tensor([number])
            one, other, by_hand = (
                exact.gather(step, sizes[number]),
                filled.gather(step, large[number]),
                replay.batch(index),
            )
            rows, (n, length) = len(one), one.tokens.shape
            assert other.tokens.shape == (large[number].segments, large[number].length)
            assert len(other) == large[number].rows == filled.most.rows
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
                    assert (getattr(other, name)[rows:] == getattr(other, name)[0]).all(), (
                        "filled up with the first row"
                    )
            assert torch.equal(one.tokens, other.tokens[:n, :length])
            assert not other.weight[rows:].any()
            assert float(other.weight.sum()) == pytest.approx(1.0)


DERIVED = ("state_index", "next_state_index", "next_return_to_go", "next_recent")


@pytest.mark.parametrize("how", ["sessions", "windows"])
@pytest.mark.parametrize(("history", "most", "kind"), [(3, 9, torch.int32), (70, 130, torch.int64)])
def test_a_kernel_gathers_the_same(how: str, history: int, most: int, kind: torch.dtype) -> None:
    """Bit for bit, in batches as large as needed, larger and too small: pieces and items of more than one chunk too."""
    pytest.importorskip("triton", reason="the kernel needs triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    random = np.random.default_rng(0)
    lengths = [1] * 300 + random.integers(1, most, 12).tolist()
    log = [random.integers(0, 10, length).tolist() for length in lengths]
    kinds = [random.integers(0, 2, length).tolist() for length in lengths]
    sessions = made(log, kinds, shift=3)
    mdp = transitions(sessions, np.array([0.2, 1.0], dtype=np.float32), 0.7)
    replay = Replay(sessions, mdp, 10, history, how, device)  # type: ignore[arg-type]
    replay.bounds = replay.bounds.to(kind)
    for filled in (False, True):
        plain, epochs = (Epochs(replay, 400, 5, rounded=filled, by_kernel=kernel) for kernel in (False, True))
        plain.begin(0)
        sizes = list(enumerate(epochs.begin(0)))[:2]
        most, needed = max(sizes, key=lambda one: one[1].segments)
        for halved in ("segments", "rows"):
            sizes.append((most, replace(needed, **{halved: getattr(needed, halved) // 2})))
        for number, size in sizes:
            step = torch.tensor([number], device=device)
            truth, found = plain.gather(step, size), epochs.gather(step, size)
            for name in (*(field.name for field in fields(Batch) if field.name != "derived"), *DERIVED):
                mine, its = getattr(found, name), getattr(truth, name)
                assert mine.dtype == its.dtype, name
                assert torch.equal(mine, its), name
            assert torch.equal(found.tokens_with_start(10), truth.tokens_with_start(10))
            assert found.tokens_with_start(10).data_ptr() + 8 == found.tokens.data_ptr(), "made once"


def test_size_classes_are_few_and_hold_what_they_stand_for() -> None:
    most = Size(300, 1080, 51)
    found = {rounded(Size(n, 1024, length), most) for n in range(1, 301) for length in range(1, 52)}
    assert {size.rows for size in found} == {1080}
    assert sorted({size.length for size in found}) == [
        1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 51
    ]  # fmt: skip
    assert sorted({size.segments for size in found})[-5:] == [96, 128, 192, 256, 300]
    for n, length in ((1, 1), (3, 9), (257, 49), (300, 51), (128, 8)):
        size = rounded(Size(n, 7, length), most)
        assert n <= size.segments <= max(n + 1, 1.5 * n)
        assert length <= size.length <= 1.25 * length


def test_sessions_without_events_make_no_pieces() -> None:
    sessions = made([[], [1, 2], [], [3]])
    for how in ("sessions", "exact", "windows"):
        replay = replayed(sessions, 3, how)
        assert [replay.batch(index).action.tolist() for index in replay.in_order(9)] == [[3, 1, 2]] or how == "windows"


def test_windows_and_exact_share_states_but_not_encodings() -> None:
    sessions = made([list(range(9))])
    assert len(cut(sessions, 3, "windows")) == 9
    assert len(cut(sessions, 3, "exact")) == 6  # the first four events share one piece
    assert len(cut(sessions, 3, "sessions")) == 3


def test_shuffling_depends_on_the_seed_alone() -> None:
    replay = replayed(made([[i % 10] * (1 + i % 5) for i in range(300)]), 5, "sessions")
    orders = [np.concatenate(list(replay.shuffled(16, (0, epoch)))) for epoch in (0, 0, 1)]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    sizes = [len(replay.batch(index)) for index in replay.shuffled(16, 0)]
    assert max(sizes) <= 16
    assert sorted(sizes)[1] > 16 - 5, "all but the last are as full as can be"
    assert sum(sizes) == sum(1 + i % 5 for i in range(300))


def test_histories_from_outside() -> None:
    batch = batch_from_histories([[1, 2, 3], []], n_items=10, history=2, device=CPU)
    assert batch.tokens.tolist() == [[2, 3], [10, 10]]
    assert batch.position.tolist() == [2, 0]
    assert batch.recent.tolist() == [[3, 2], [10, 10]]
    assert batch.weight.tolist() == [0.5, 0.5]
