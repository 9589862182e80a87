"""Run independent parts of an update concurrently on CUDA streams.

A network consists of many small kernels, and a GPU can run several of them at a time. In a captured update the streams
become branches of its CUDA graph. On a CPU, and outside of `stream_scope`, everything runs on the current stream.
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
class _Scope:
    """The side streams of one update, and the objects that must outlive the work on them."""

    sides: set[torch.cuda.Stream] = field(default_factory=set)
    retained: list[object] = field(default_factory=list)


# Open scopes, by the stream of their update. Only the stream can serve as a key: backward passes run in autograd's
# threads, where autograd sets the current stream but context variables are not propagated.
_scopes: dict[tuple[int, int], _Scope] = {}


@contextmanager
def stream_scope(device: torch.device) -> Iterator[None]:
    """Let the update on the current stream use side streams.

    PyTorch has few streams and may return the same one twice, so another run may use the same side stream. Work that is
    submitted to a side stream later therefore waits for the whole update. If the update fails, its own stream waits for
    the side streams, which may still read memory that is about to be reused.
    """
    if device.type != "cuda":
        yield
        return
    main = torch.cuda.current_stream(device)
    scope = _scopes[_key(main)] = _Scope()
    try:
        yield
    except BaseException:
        if not torch.cuda.is_current_stream_capturing():  # a capture that fails has not computed anything
            for side in scope.sides:
                main.wait_stream(side)
        raise
    finally:
        del _scopes[_key(main)]
        if not torch.cuda.is_current_stream_capturing():  # a captured update has its own memory
            for side in scope.sides:
                side.wait_stream(main)


class SideStreams:
    """Side streams of an update. They wait for the work that its stream has received when the object is created.

    Results may be read after `join`. They must be retained until every kernel that reads them has been launched, the
    backward pass included, and until the update ends: their memory belongs to the side stream, which would reuse it.
    """

    def __init__(self, device: torch.device) -> None:
        current = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.scope = None if current is None else _scopes.get(_key(current))
        self.main = None if self.scope is None else current
        self.start = None if self.main is None else self.main.record_event()
        self.used: list[torch.cuda.Stream] = []

    @contextmanager
    def __call__(self, number: int) -> Iterator[None]:
        """Run a block on a side stream. The same number selects the same stream."""
        if self.main is None or self.start is None or self.scope is None:
            yield
            return
        side = _side(self.main.device_index, self.main.cuda_stream, number)
        self.scope.sides.add(side)  # before the block, which may fail
        self.used.append(side)
        side.wait_event(self.start)
        with torch.cuda.stream(side):
            yield

    def join(self, retain: object = None) -> None:
        """Make the update's stream wait for the side streams, and retain an object until the update ends."""
        if self.main is not None and self.scope is not None:
            for side in self.used:
                self.main.wait_stream(side)
            self.scope.retained.append(retain)


def run_concurrently(device: torch.device, first: Callable[[], S], second: Callable[[], T]) -> tuple[S, T]:
    """Run `first` on a side stream and `second` on the current one; return both results."""
    streams = SideStreams(device)
    with streams(0):
        one = first()
    other = second()
    streams.join(retain=one)
    return one, other


def on_side_stream(device: torch.device, number: int, work: Callable[[], T]) -> T:
    """Run `work` on a side stream, so that its backward pass runs concurrently with the others."""
    streams = SideStreams(device)
    with streams(number):
        result = work()
    streams.join(retain=result)
    return result


@dataclass(frozen=True)
class StreamScheduler:
    """Runs parts of a loss on the streams of a device. Implements `offrec.algorithms.symbols.Scheduler`."""

    device: torch.device

    def run_concurrently(self, first: Callable[[], S], second: Callable[[], T]) -> tuple[S, T]:
        """Run two independent functions; return both results."""
        return run_concurrently(self.device, first, second)

    def run_independently(self, work: Callable[[], T]) -> T:
        """Run a function whose backward pass need not wait for the other terms of the loss."""
        return on_side_stream(self.device, 1, work)


def _key(stream: torch.cuda.Stream) -> tuple[int, int]:
    return stream.device_index, stream.cuda_stream


@cache
def _side(device: int, main: int, number: int) -> torch.cuda.Stream:
    """Return a side stream. Each stream has its own, so that interleaved runs do not wait for each other.

    Runs reuse the streams of runs that have ended (`training.isolation`), so the cache stays small.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
