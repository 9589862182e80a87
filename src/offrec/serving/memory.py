"""Return freed memory to the system after a reload."""

import ctypes
from contextlib import suppress


def release_memory() -> None:
    """Let the C library return freed memory to the system, if it can (glibc).

    glibc keeps freed blocks of the size of an item table for later. A server that has reloaded a policy would hold them
    until the next reload.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
