"""Open files that somebody else may have written: regular files only, and no larger than a limit."""

import os
import stat
from pathlib import Path


def open_regular(path: Path) -> int:
    """Open a regular file for reading and return its descriptor.

    A FIFO or a device could block forever or never end, so both are refused before anything is read.

    Raises:
        OSError: If the file does not exist or cannot be opened.
        ValueError: If it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # O_NONBLOCK: a FIFO does not block
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a regular file")
    return descriptor


def check_regular(path: Path) -> None:
    """Raise OSError or ValueError, as `open_regular` does, if a file is not a regular file that can be read."""
    os.close(open_regular(path))


def read_limited(path: Path, limit: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not a regular file, or is larger than `limit` bytes.
    """
    with open(open_regular(path), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it is larger than {limit:,} bytes")
    return content
