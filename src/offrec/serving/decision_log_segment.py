"""The files of a decision log: creating, locking, flushing and renaming them."""

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from offrec.data.line_checksums import is_sealed, seal_end

Print = Callable[[str], None]


class SegmentLimits(Protocol):
    """Interface of the options that decide when a file is full."""

    @property
    def segment_bytes(self) -> int: ...
    @property
    def segment_seconds(self) -> float: ...


class Segment:
    """One file of the log. It is locked while it is open, so that other servers can detect that it is in use.

    Args:
        folder: The folder of the log.
        number: The number of the file in this process.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.opened = time.time()
        self.path, self.file = _create_locked(folder, int(self.opened * 1000), number)
        self.size, self.records, self.broken = 0, 0, False
        try:
            _flush_folder(folder)
        except OSError:
            self.path.unlink()
            os.close(self.file)
            raise

    def is_full(self, limits: SegmentLimits) -> bool:
        """Return whether the next record belongs in a new file."""
        is_old = time.time() - self.opened >= limits.segment_seconds
        return self.broken or self.size >= limits.segment_bytes or (is_old and self.size > 0)

    def append(self, lines: bytes) -> None:
        """Write lines to the file completely, or leave the file unchanged.

        Args:
            lines: Whole lines.

        Raises:
            OSError: If the lines cannot be written.
        """
        rest = lines
        try:
            while rest:
                rest = rest[os.write(self.file, rest) :]
        except OSError:
            # If the partial data cannot be removed, this file must end here: only its last line may be incomplete.
            self.broken = True
            os.ftruncate(self.file, self.size)
            self.broken = False
            raise
        self.size += len(lines)
        self.records += lines.count(b"\n")

    def flush(self) -> None:
        """Write the file to the disk.

        Raises:
            OSError: If it cannot be written. The system may have dropped the data, and the next fsync would report
                success, so this file must end here.
        """
        try:
            os.fsync(self.file)
        except OSError:
            self.broken = True
            raise

    def finish(self) -> None:
        """Write the end record, flush the file and rename it to its final name, or remove it if it is empty."""
        try:
            if self.size or self.broken:
                if not self.broken:
                    with suppress(OSError):  # on a full disk; the other records are complete without it
                        self.append(seal_end(self.records))
                self.flush()
                self.path.rename(self.path.with_suffix(""))
            else:
                self.path.unlink()
        finally:
            os.close(self.file)  # unlocks it; an unlocked .open file would look abandoned
        _flush_folder(self.path.parent)


def _create_locked(folder: Path, opened: int, number: int) -> tuple[Path, int]:
    """Create and lock a file with an unused name.

    Servers in containers can have the same process id and start in the same millisecond. A server that is starting may
    treat the new file as abandoned and rename it before it is locked; then the next name is tried.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    while True:
        path = folder / f"decisions-{opened}-{os.getpid()}-{number}.jsonl.open"
        opened += 1
        with suppress(FileExistsError):
            if path.with_suffix("").exists():
                continue
            file = os.open(path, flags, 0o640)
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(path, file):
                return path, file
            os.close(file)


def _is_at(path: Path, file: int) -> bool:
    """Return whether the open file still has this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def close_abandoned_segments(folder: Path, print_line: Print) -> None:
    """Rename the files of crashed servers to their final names, and print what they contain.

    Args:
        folder: The folder of the log.
        print_line: Prints a sentence for the operator.
    """
    for path in sorted(folder.glob("decisions-*.jsonl.open")):
        # Another server may still write the file, or finish it at any moment.
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(path, file.fileno()):
                continue
            *lines, rest = file.read().split(b"\n")
            if lines or rest:
                path.rename(path.with_suffix(""))
            else:  # an empty file would look as if it had been cut
                path.unlink()
            damaged = sum(not is_sealed(line) for line in lines)
            contents = f"{len(lines) - damaged:,} records"
            contents += f", {damaged:,} damaged lines" if damaged else ""
            contents += f" and an incomplete record of {len(rest)} bytes, which readers skip" if rest else ""
            print_line(f"{path.name} was left by a server that crashed; it contains {contents}.")


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
