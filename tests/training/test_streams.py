"""Side streams, tested with fake streams: which stream waits for which, and how long objects are retained."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from offrec.catalogue import streams

CUDA = torch.device("cuda")


class Stream:
    device_index = 0

    def __init__(self, number: int) -> None:
        self.cuda_stream, self.waits = number, list[Any]()

    def record_event(self) -> str:
        return f"start of {self.cuda_stream}"

    def wait_event(self, event: str) -> None:
        self.waits.append(event)

    def wait_stream(self, other: "Stream") -> None:
        self.waits.append(other.cuda_stream)


class Made:
    pass


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Stream]]:
    """The main stream, 0, and the side streams in the order of their creation."""
    made = [Stream(0)]

    def another(_: int) -> Stream:
        made.append(Stream(len(made)))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: made[0])
    monkeypatch.setattr(torch.cuda, "Stream", another)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    streams._side.cache_clear()
    yield made
    assert not streams._scopes
    streams._side.cache_clear()


def test_streams_wait_for_each_other_and_results_are_retained(sides: list[Stream]) -> None:
    kept = Made()
    alive = weakref.ref(kept)
    with streams.stream_scope(CUDA):
        beside = streams.SideStreams(CUDA)
        for number in (0, 1):
            with beside(number):
                pass
        beside.join(retain=kept)
        later = streams.SideStreams(CUDA)
        with later(0):
            pass
        later.join()
        del kept, beside, later
        main, first, second = sides
        assert main.waits == [1, 2, 1]
        assert alive() is not None
    assert alive() is None
    assert main.waits == [1, 2, 1], "what succeeds has joined them already"
    assert (first.waits[-1], second.waits[-1]) == (0, 0), "whoever uses them next comes after the run"


def fail() -> None:
    raise KeyError


@pytest.mark.parametrize("capturing", [False, True])
@pytest.mark.parametrize("when", ["beside", "before joining", "joined"])
def test_a_failed_update_closes_its_scope(
    sides: list[Stream], monkeypatch: pytest.MonkeyPatch, when: str, capturing: bool
) -> None:
    """Streams beside may still read what the failed update made and lets go of, so its own waits for them before they
    wait for it. A capture that fails computes nothing, and takes no more waits.
    """
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    order: list[tuple[int, int]] = []
    monkeypatch.setattr(Stream, "wait_stream", lambda one, other: order.append((one.cuda_stream, other.cuda_stream)))

    @streams.stream_scope(CUDA)
    def update() -> None:
        if when == "joined":
            streams.on_side_stream(CUDA, 0, Made)
            fail()
        elif when == "beside":
            streams.on_side_stream(CUDA, 0, fail)
        else:
            streams.run_concurrently(CUDA, Made, fail)

    with pytest.raises(KeyError):
        update()
    joined = [(0, 1)] if when == "joined" else []
    assert order == joined + ([] if capturing else [(0, 1), (1, 0)])


def test_after_a_failure_the_main_stream_waits_for_all_side_streams(sides: list[Stream]) -> None:
    @streams.stream_scope(CUDA)
    def update() -> None:
        beside = streams.SideStreams(CUDA)
        with beside(0):
            pass
        with beside(1):
            fail()

    with pytest.raises(KeyError):
        update()
    main, first, second = sides
    assert sorted(main.waits) == [1, 2]
    assert first.waits == second.waits == ["start of 0", 0]


def test_a_captured_update_leaves_its_branches_alone(sides: list[Stream], monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch that waits again at the end would never be joined, and the capture would fail."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with streams.stream_scope(CUDA):
        streams.on_side_stream(CUDA, 0, Made)
    assert (sides[0].waits, sides[1].waits) == ([1], ["start of 0"])


def test_results_are_retained_until_the_update_ends(sides: list[Stream]) -> None:
    """A second join must not release objects that the first one retains."""
    made = [Made() for _ in range(3)]
    alive = [weakref.ref(one) for one in made]
    with streams.stream_scope(CUDA):
        first = streams.SideStreams(CUDA)
        with first(2):
            pass
        first.join(retain=made.pop())
        assert streams.run_concurrently(CUDA, made.pop, lambda: 7)[1] == 7
        streams.on_side_stream(CUDA, 1, made.pop)
        assert [one() is not None for one in alive] == [True] * 3
        del first
    assert [one() is not None for one in alive] == [False] * 3


def test_run_concurrently_uses_one_side_stream(sides: list[Stream], monkeypatch: pytest.MonkeyPatch) -> None:
    """A side stream waits for earlier work; the main stream waits for it only after its own part."""
    now = [0]
    ran: list[tuple[str, int, int]] = []

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        now.append(stream.cuda_stream)
        yield
        now.pop()

    monkeypatch.setattr(torch.cuda, "stream", on)

    def work(name: str) -> str:
        ran.append((name, now[-1], len(sides[0].waits)))
        return name

    with streams.stream_scope(CUDA):
        assert streams.run_concurrently(CUDA, lambda: work("one"), lambda: work("other")) == ("one", "other")
        assert ran == [("one", 1, 0), ("other", 0, 0)]
        assert (sides[0].waits, sides[1].waits) == ([1], ["start of 0"])
        assert streams.on_side_stream(CUDA, 4, lambda: work("aside")) == "aside"
        assert ran[-1] == ("aside", 2, 1)
        assert sides[0].waits == [1, 2]


@pytest.mark.parametrize("device", [torch.device("cpu"), CUDA])
def test_without_a_scope_everything_runs_on_the_current_stream(sides: list[Stream], device: torch.device) -> None:
    """Outside a scope nothing marks the end of an update, so retained objects could never be released."""
    kept = Made()
    alive = weakref.ref(kept)
    with streams.stream_scope(device):
        sides.insert(0, Stream(99))  # on a GPU the update is another stream's
        beside = streams.SideStreams(device)
        with beside(0):
            pass
        beside.join(retain=kept)
        assert streams.run_concurrently(device, lambda: 1, lambda: 2) == (1, 2)
        assert streams.on_side_stream(device, 0, lambda: 3) == 3
        del kept
        assert alive() is None
        sides.pop(0)
    assert len(sides) == 1
    assert not sides[0].waits
