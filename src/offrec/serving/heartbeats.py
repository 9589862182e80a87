"""Heartbeats of worker processes: each worker writes the time to shared memory, and the supervisor reads it."""

import mmap
import struct
import time

TIME = struct.Struct("<d")


class Heartbeats:
    """Shared memory with the time of the last heartbeat of each worker. Create it before the workers are forked.

    Args:
        workers: The number of workers.
    """

    def __init__(self, workers: int) -> None:
        self.memory = mmap.mmap(-1, workers * TIME.size)

    def beat(self, worker: int) -> None:
        """Record that a worker is responsive now."""
        TIME.pack_into(self.memory, worker * TIME.size, time.monotonic())

    def age(self, worker: int) -> float:
        """Return the seconds since the last heartbeat of a worker."""
        last: float = TIME.unpack_from(self.memory, worker * TIME.size)[0]
        return time.monotonic() - last
