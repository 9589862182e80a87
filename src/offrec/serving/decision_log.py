"""The decision log: every served list with its probability, and every event, as one JSON object per line.

    FOLDER/decisions-<unix ms when opened>-<process id>-<number>.jsonl; the file being written ends in .open

Requests add records to a queue in memory; a thread writes them and flushes them to the disk at a fixed interval. So no
request waits for the disk, and a crash loses at most the records since the last flush. Records that cannot be written
are counted; once writing works again, the log itself contains their number.
"""

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offrec.data.line_checksums import seal_record
from offrec.errors import InputError

Print = Callable[[str], None]


@dataclass(frozen=True)
class DecisionLogOptions:
    """Options for writing a decision log.

    Attributes:
        flush_seconds: The time between flushes to the disk.
        segment_bytes: The size at which a new file begins.
        segment_seconds: The age at which a new file begins.
        queue_records: The largest number of queued records; further records are dropped and counted as lost.
        queue_bytes: The largest total size of the queued records.
    """

    flush_seconds: float = 1.0
    segment_bytes: int = 64 << 20
    segment_seconds: float = 3600.0
    queue_records: int = 100_000
    queue_bytes: int = 256 << 20


@dataclass
class DecisionLogCounts:
    """Counters of a decision log, for /metrics.

    Attributes:
        lists: Lists accepted.
        events: Events accepted.
        flushed: Lists and events on the disk.
        lost: Lists and events that could not be written.
        bytes: Bytes written.
        flushes: Flushes that wrote something.
        segments: Files created.
    """

    lists: int = 0
    events: int = 0
    flushed: int = 0
    lost: int = 0
    bytes: int = 0
    flushes: int = 0
    segments: int = 0


class DecisionLog:
    """Append records to the files of a folder, which several servers may share.

    Args:
        folder: The folder; it is created if it does not exist.
        options: How to write.
        print_line: Prints a sentence for the operator.
        on_failure: Called with the reason, once per failure to write.

    Raises:
        InputError: If the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        options: DecisionLogOptions,
        print_line: Print,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.options, self.print_line = folder, options, print_line
        self.on_failure = on_failure or (lambda reason: None)
        self.counts = DecisionLogCounts()
        self.failure: str | None = None  # the reason why the log currently cannot be written
        self._queue: deque[bytes] = deque()
        self._queue_bytes = 0
        self._unreported = 0  # lost records that are not yet recorded in the log
        self._changed = threading.Condition()
        self._closing = False
        self._segment: Segment | None = None
        self._next_number = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            close_abandoned_segments(folder, self._print)
            self._open_segment()
        except OSError as error:
            raise InputError(f"--log {folder} cannot be written ({error.strerror}); choose another folder.") from error
        self._thread = threading.Thread(target=self._run, name="offrec-log", daemon=True)
        self._thread.start()

    def add(self, record: dict[str, Any]) -> bool:
        """Queue a record for writing.

        Args:
            record: A list or an event, with its "kind".

        Returns:
            False if the record was lost: the log cannot be written, or its queue is full.
        """
        line = seal_record(record)
        with self._changed:
            if self.failure is not None or self._closing or self._is_full(len(line)):
                self._count_lost(1)
                return False
            self._queue.append(line)
            self._queue_bytes += len(line)
            if record["kind"] == "list":
                self.counts.lists += 1
            else:
                self.counts.events += 1
        return True

    def close(self) -> int:
        """Write the records that are still queued and close the file.

        Returns:
            How many records of this process were lost.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        with self._changed:
            self._count_lost(len(self._queue))
            self._queue.clear()
        if self._segment is not None:
            self._segment.finish()
        return self.counts.lost

    def _is_full(self, more_bytes: int) -> bool:
        too_many = len(self._queue) >= self.options.queue_records
        return too_many or self._queue_bytes + more_bytes > self.options.queue_bytes

    def _count_lost(self, records: int) -> None:
        self.counts.lost += records
        self._unreported += records

    def _run(self) -> None:
        try:
            closing = False
            while not closing:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, self.options.flush_seconds)
                    closing = self._closing
                self._flush()
        except BaseException as error:  # nothing is written from here on, so no record may be accepted
            self._fail(f"the writing thread ended: {type(error).__name__}: {error}")

    def _flush(self) -> None:
        with self._changed:
            lines, unreported = list(self._queue), self._unreported
        if unreported:
            lost = {"kind": "lost", "count": unreported, "time": int(time.time() * 1000)}
            lines.insert(0, seal_record(lost))
        try:
            written = self._write(lines)
        except OSError as error:
            self._fail(error.strerror or str(error))
            return
        with self._changed:
            recovered, self.failure = self.failure is not None, None
            self._unreported -= unreported
            for _ in range(len(lines) - bool(unreported)):
                self._queue_bytes -= len(self._queue.popleft())
            self.counts.flushed += len(lines) - bool(unreported)
            self.counts.bytes += written
            self.counts.flushes += bool(lines)
        if recovered:
            self._print(f"the decision log can be written again; {unreported:,} records were lost")

    def _write(self, lines: list[bytes]) -> int:
        if self._segment is None or self._segment.is_full(self.options):
            self._open_segment()
        assert self._segment is not None
        return self._segment.append(b"".join(lines)) if lines else 0

    def _open_segment(self) -> None:
        previous, self._segment = self._segment, None
        if previous is not None:
            previous.finish()
        self._segment = Segment(self.folder, self._next_number)
        self._next_number += 1
        self.counts.segments += 1

    def _fail(self, reason: str) -> None:
        with self._changed:
            was_failing, self.failure = self.failure is not None, reason
        if not was_failing:
            self.on_failure(reason)
            self._print(f"the decision log in {self.folder} cannot be written ({reason}); records are being lost")

    def _print(self, sentence: str) -> None:
        with suppress(Exception):  # standard error may be on the same full disk; the log must continue regardless
            self.print_line(sentence)


class Segment:
    """One file of the log. It is locked while it is open, so that other servers can detect that it is in use.

    Args:
        folder: The folder of the log.
        number: The number of the file in this process.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.opened = time.time()
        self.path, self.file = _create_locked(folder, int(self.opened * 1000), number)
        self.size, self.broken = 0, False
        _flush_folder(folder)

    def is_full(self, options: DecisionLogOptions) -> bool:
        """Return whether the next record belongs in a new file."""
        is_old = time.time() - self.opened >= options.segment_seconds
        return self.broken or self.size >= options.segment_bytes or (is_old and self.size > 0)

    def append(self, data: bytes) -> int:
        """Write data to the disk completely, or leave the file unchanged.

        Args:
            data: Whole lines.

        Returns:
            The number of bytes.

        Raises:
            OSError: If the data cannot be written.
        """
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self.file, rest) :]
            os.fsync(self.file)
        except OSError:
            # If the partial data cannot be removed, this file must end here: only its last line may be incomplete.
            self.broken = True
            os.ftruncate(self.file, self.size)
            self.broken = False
            raise
        self.size += len(data)
        return len(data)

    def finish(self) -> None:
        """Rename the file to its final name, or remove it if it is empty."""
        try:
            if self.size or self.broken:
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
            data = file.read()
            path.rename(path.with_suffix(""))
            records, torn_bytes = data.count(b"\n"), len(data) - (data.rfind(b"\n") + 1)
            torn = f" and an incomplete record of {torn_bytes} bytes, which readers skip" if torn_bytes else ""
            print_line(
                f"{path.name} was left by a server that crashed; it contains {records:,} records{torn}. "
                "Records after its last flush are lost."
            )


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
