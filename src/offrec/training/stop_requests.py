"""Ctrl-C and SIGTERM end a run after its current update."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets. A second signal raises KeyboardInterrupt immediately."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
