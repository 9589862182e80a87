"""Locks between processes. The operating system releases the locks of a process that dies."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from offrec.data.files import absolute_if_unnamed
from offrec.errors import InputError

INSIDE = ".lock"  # the name of a lock file inside its folder
BYTES = 300  # of a lock file that are read for a message


class LockedError(InputError):
    """Another process has the lock."""


@contextmanager
def lock_folder(path: Path, *, advice: str, inside: bool = False) -> Iterator[None]:
    """Let one process at a time write a folder.

    The lock file is hidden and lies next to the folder, so that it survives when the folder is replaced. It contains
    the process id and the host of its owner, for the message that others get. It is removed at the end of the block.

    Args:
        path: The folder. It need not exist yet, unless the lock file lies inside.
        advice: What the user should do if another process has the lock; the end of the message.
        inside: Put the lock file into the folder. For folders that are never replaced, and whose parent may be
            read-only.

    Raises:
        LockedError: If another process writes the folder.
        InputError: If the lock file cannot be written.
    """
    path = path if inside else absolute_if_unnamed(path)
    lock = path / INSIDE if inside else path.with_name(f".{path.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(lock)
    except BlockingIOError as error:
        raise LockedError(f"{path} is being written by {_owner(lock)}; {advice}.") from error
    except OSError as error:
        reason = error.strerror if lock.parent.is_dir() else f"{lock.parent} is not a folder"
        remedy = "check the permissions of the folder" if inside else "choose another --out"
        raise InputError(f"{path} cannot be written ({reason}); {remedy}.") from error
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
