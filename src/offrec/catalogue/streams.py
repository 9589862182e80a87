"""Work of an update that does not hang on each other, side by side: networks are many small kernels, of which a GPU can
run several at a time. In a captured update the streams become branches of its graph. On a CPU, and outside of an
update, nothing is special: who calls a loss by hand gets no streams but his own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class _Used:
    """What an update under way has beside its stream."""

    sides: set[torch.cuda.Stream] = field(default_factory=set)
    kept: list[object] = field(default_factory=list)


_under_way: dict[tuple[int, int], _Used] = {}  # by the update's own stream


@contextmanager
def updating(device: torch.device) -> Iterator[None]:
    """An update, on the current stream. Whatever is sent to the streams beside it later waits for all that was sent to
    it: PyTorch has few streams and hands out the same one twice, so that might be another run's. After an update that
    fails, its own stream waits for them too: they may still read what it is about to use again.
    """
    if device.type != "cuda":
        yield
        return
    main = torch.cuda.current_stream(device)
    used = _under_way[_key(main)] = _Used()
    try:
        yield
    except BaseException:
        if not torch.cuda.is_current_stream_capturing():  # a capture that fails computes nothing
            for side in used.sides:
                main.wait_stream(side)
        raise
    finally:
        del _under_way[_key(main)]
        if not torch.cuda.is_current_stream_capturing():  # a captured update has memory of its own
            for side in used.sides:
                side.wait_stream(main)


class SideStreams:
    """Streams beside an update's own, as it is when this is made: what they read must be there by then.

    What was made on them may be read after `join`, and must be kept until all that reads it was sent to the device,
    the backward pass too, and until the update is over: its memory belongs to its stream, which would use it again.
    """

    def __init__(self, device: torch.device) -> None:
        current = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.update = None if current is None else _under_way.get(_key(current))
        self.main = None if self.update is None else current
        self.start = None if self.main is None else self.main.record_event()
        self.used: list[torch.cuda.Stream] = []

    @contextmanager
    def __call__(self, number: int) -> Iterator[None]:
        """Work of its own, the same number on the same stream."""
        if self.main is None or self.start is None or self.update is None:
            yield
            return
        side = _side(self.main.device_index, self.main.cuda_stream, number)
        self.update.sides.add(side)  # now: what is sent to it may fail before `join`
        self.used.append(side)
        side.wait_event(self.start)
        with torch.cuda.stream(side):
            yield

    def join(self, keep: object = None) -> None:
        """From here on the current stream has what was made beside it. `keep` is kept until the update is over."""
        if self.main is not None and self.update is not None:
            for side in self.used:
                self.main.wait_stream(side)
            self.update.kept.append(keep)


def run_concurrently(device: torch.device, first: Callable[[], S], second: Callable[[], T]) -> tuple[S, T]:
    """What two give that hang on nothing of each other."""
    streams = SideStreams(device)
    with streams(0):
        one = first()
    other = second()
    streams.join(keep=one)
    return one, other


def on_side_stream(device: torch.device, number: int, work: Callable[[], T]) -> T:
    """What `work` gives. Its backward pass is beside the others then, and waits for none of them."""
    streams = SideStreams(device)
    with streams(number):
        found = work()
    streams.join(keep=found)
    return found


def _key(stream: torch.cuda.Stream) -> tuple[int, int]:
    return stream.device_index, stream.cuda_stream


@cache
def _side(device: int, main: int, number: int) -> torch.cuda.Stream:
    """Of each stream its own, so that runs beside each other do not wait for each other."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
