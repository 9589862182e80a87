"""Locks between processes. The operating system releases the locks of a process that dies."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from offrec.errors import InputError

BYTES = 300  # of a lock file that are read for a message


@contextmanager
def lock_folder(path: Path, *, advice: str) -> Iterator[None]:
    """Let one process at a time write a folder, which need not exist yet.

    The lock file is hidden and lies next to the folder, so that it survives when the folder is replaced. It contains
    the process id and the host of its owner, for the message that others get. It is removed at the end of the block.

    Args:
        path: The folder.
        advice: What the user should do if another process has the lock; the end of the message.

    Raises:
        InputError: If another process writes the folder, or the lock file cannot be written.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(lock)
    except BlockingIOError as error:
        raise InputError(f"{path} is being written by {_owner(lock)}; {advice}.") from error
    except OSError as error:
        reason = error.strerror if path.parent.is_dir() else f"{path.parent} is not a folder"
        raise InputError(f"{path} cannot be written ({reason}); choose another --out.") from error
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        with suppress(OSError):
            lock.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path) -> int:
    """Open and lock a file. If its last owner removed it in the meantime, try again with a new file."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _owner(lock: Path) -> str:
    try:
        with lock.open("rb") as file:
            return file.read(BYTES).decode(errors="replace").strip() or "another process"
    except OSError:
        return "another process"
