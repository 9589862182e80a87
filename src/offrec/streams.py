"""Work that does not hang on each other, side by side: networks are many small kernels, of which a GPU can run several
at a time. In a captured update the streams become branches of its graph. On a CPU nothing is special.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


class Beside:
    """Streams beside the current one, as it is when this is made: what they read must be there by then.

    What was made on them may be read after `join`, and must be kept until all that reads it was sent to the device,
    the backward pass too, and until `settle`: its memory belongs to its stream, which would use it again.
    """

    def __init__(self, device: torch.device) -> None:
        self.main = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.start = None if self.main is None else self.main.record_event()
        self.used: list[torch.cuda.Stream] = []

    @contextmanager
    def __call__(self, number: int) -> Iterator[None]:
        """Work of its own, the same number on the same stream."""
        if self.main is None or self.start is None:
            yield
            return
        side = _side(self.main.device_index, self.main.cuda_stream, number)
        side.wait_event(self.start)
        self.used.append(side)
        with torch.cuda.stream(side):
            yield

    def join(self, keep: object = None) -> None:
        """From here on the current stream has what was made beside it. `keep` is kept until `settle`."""
        if self.main is not None:
            for side in self.used:
                self.main.wait_stream(side)
            sides, before = _kept.get(_key(self.main), (set(), ()))
            _kept[_key(self.main)] = sides.union(self.used), before if keep is None else (*before, keep)


def both(device: torch.device, beside: Callable[[], S], here: Callable[[], T]) -> tuple[S, T]:
    """What two give that hang on nothing of each other."""
    streams = Beside(device)
    with streams(0):
        one = beside()
    other = here()
    streams.join(keep=one)
    return one, other


def aside(device: torch.device, number: int, work: Callable[[], T]) -> T:
    """What `work` gives. Its backward pass is beside the others then, and waits for none of them."""
    streams = Beside(device)
    with streams(number):
        found = work()
    streams.join(keep=found)
    return found


def settle(device: torch.device) -> None:
    """At the end of an update: whatever is sent to the streams beside the current one from now on waits for all that
    was sent to it. PyTorch has few streams and hands out the same one twice, so that might be another run's.
    """
    if device.type != "cuda":
        return
    main = torch.cuda.current_stream(device)
    sides, _ = _kept.pop(_key(main), (set(), ()))
    if not torch.cuda.is_current_stream_capturing():  # a captured update has memory of its own
        for side in sides:
            side.wait_stream(main)


_kept: dict[tuple[int, int], tuple[set[torch.cuda.Stream], tuple[object, ...]]] = {}


def _key(stream: torch.cuda.Stream) -> tuple[int, int]:
    return stream.device_index, stream.cuda_stream


@cache
def _side(device: int, main: int, number: int) -> torch.cuda.Stream:
    """Of each stream its own, so that runs beside each other do not wait for each other."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
