"""Whether several machines may write one folder: its locks must hold between machines."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from offrec.errors import InputError

# File systems whose flock holds on one machine only, or whose behaviour depends on a server that offrec cannot check.
LOCAL_LOCKS = ("smb", "cifs", "9p", "afs", "virtiofs")
NFS_WITHOUT_LOCKS = ("nolock", "local_lock=flock", "local_lock=all")
MOUNTS = Path("/proc/mounts")


@dataclass(frozen=True)
class Mount:
    """The file system of a folder."""

    point: str
    kind: str
    options: tuple[str, ...]


def find_mount(folder: Path, mounts: str) -> Mount:
    """Return the mount that contains a folder.

    Args:
        folder: The folder, which need not exist.
        mounts: The contents of /proc/mounts. Spaces in paths are written as \\040.
    """
    best = Mount("/", "", ())
    resolved = folder.resolve()
    for line in mounts.splitlines():
        _, point, kind, options, *_ = line.split(" ")
        point = point.encode().decode("unicode_escape").encode("latin1").decode()
        if (resolved.is_relative_to(point)) and len(point) >= len(best.point):
            best = Mount(point, kind, tuple(options.split(",")))
    return best


def check_shared_locks(folder: Path, mounts: str | None = None) -> None:
    """Check that locks in a folder can hold between machines, as far as the kind of its file system shows that.

    Args:
        folder: The folder.
        mounts: The contents of /proc/mounts; by default those of this machine.

    Raises:
        InputError: If the file system has no locks between machines.
    """
    if mounts is None:
        mounts = MOUNTS.read_text() if MOUNTS.exists() else ""
    mount = find_mount(folder, mounts)
    reason = None
    if mount.kind.startswith(("fuse", *LOCAL_LOCKS)):
        reason = f"a file system of the kind {mount.kind}"
    elif mount.kind.startswith("nfs") and (wrong := set(NFS_WITHOUT_LOCKS).intersection(mount.options)):
        reason = f"mounted with the option {sorted(wrong)[0]}"
    if reason is not None:
        raise InputError(
            f"{folder} is on {mount.point}, {reason}, where several machines cannot lock files; use NFS with locks or "
            "another shared disk."
        )


def try_lock(path: str, token: str) -> str:
    """Try to lock a file that another process has locked, and return what happened.

    Returns:
        "locked" if the lock of the other process holds here, "free" if it does not, and "other" if this machine has
        another file or none under this path.
    """
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() != token:
                return "other"
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return "locked"
            return "free"
    except OSError:
        return "other"


class LockProbe:
    """A locked file, with which other machines can check whether they see the lock.

    Args:
        folder: The folder to check, which exists.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.token = folder / f".probe-{os.getpid()}", os.urandom(16).hex()

    def __enter__(self) -> "LockProbe":
        self.path.write_text(self.token, encoding="utf-8")
        self._file = self.path.open()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


def check_answers(folder: Path, answers: dict[str, str]) -> None:
    """Check the results of `try_lock` by machine.

    Raises:
        InputError: If a machine does not see the folder, or does not see its locks.
    """
    for machine, answer in answers.items():
        if answer == "other":
            raise InputError(
                f"The machine {machine} has another folder {folder}, or none; use a folder on a disk that all machines "
                "share, under the same path."
            )
        if answer == "free":
            raise InputError(
                f"The machine {machine} does not see the locks of {folder}; use NFS with locks or another shared disk."
            )
