"""The decision log: what was shown, how likely it was, and what came of it; a JSON object a line.

    FOLDER/decisions-<unix ms of opening>-<process id>-<number>.jsonl, the one being written with .open at its end

A record is handed over in memory and written by a thread, which flushes to the disk at a stated interval: a request
never waits for a disk, and a crash costs at most what came since the last flush. What cannot be written is counted and,
as soon as writing works again, said in the log itself.
"""

import fcntl
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offrec.errors import InputError

Say = Callable[[str], None]


@dataclass(frozen=True)
class DecisionLogOptions:
    flush_seconds: float = 1.0
    segment_bytes: int = 64 << 20
    segment_seconds: float = 3600.0
    queue: int = 100_000  # records that wait for the disk; more are lost, and counted
    queue_bytes: int = 256 << 20  # the same, however long they are


@dataclass
class Counts:
    """What the log has come to, for /metrics."""

    lists: int = 0
    events: int = 0
    flushed: int = 0  # of both, on the disk
    lost: int = 0
    bytes: int = 0
    flushes: int = 0
    segments: int = 0


class DecisionLog:
    def __init__(
        self, folder: Path, options: DecisionLogOptions, say: Say, failed: Callable[[str], None] | None = None
    ) -> None:
        """`failed` hears once of each failure to write."""
        self.folder, self.options, self.say, self.failed = folder, options, say, failed or (lambda reason: None)
        self.counts = Counts()
        self.failure: str | None = None  # why nothing can be written now
        self._queue: deque[bytes] = deque()
        self._waiting = 0  # bytes in the queue
        self._unsaid = 0  # lost records that the log itself does not tell of yet
        self._changed = threading.Condition()
        self._closing = False
        self._segment: Segment | None = None
        self._number = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            adopt(folder, self._tell)
            self._open()
        except OSError as error:
            raise InputError(f"{folder} cannot be written ({error.strerror}); choose another --log.") from error
        self._thread = threading.Thread(target=self._work, name="offrec-log", daemon=True)
        self._thread.start()

    def add(self, record: dict[str, Any]) -> bool:
        """Whether it was taken: not where the log cannot be written now, or too much waits to be."""
        line = json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._changed:
            if self.failure is not None or self._closing or self._is_full(len(line)):
                self._lose(1)
                return False
            self._queue.append(line)
            self._waiting += len(line)
            if record["kind"] == "list":
                self.counts.lists += 1
            else:
                self.counts.events += 1
        return True

    def _is_full(self, more: int) -> bool:
        return len(self._queue) >= self.options.queue or self._waiting + more > self.options.queue_bytes

    def close(self) -> int:
        """Writes what is left. Returns how many records of this process were lost."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        with self._changed:
            self._lose(len(self._queue))
            self._queue.clear()
        if self._segment is not None:
            self._segment.finish()
        return self.counts.lost

    def _lose(self, count: int) -> None:
        self.counts.lost += count
        self._unsaid += count

    def _work(self) -> None:
        try:
            closing = False
            while not closing:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, self.options.flush_seconds)
                    closing = self._closing
                self._flush()
        except BaseException as error:  # nothing is written from here on, so nothing may be taken
            self._fail(f"what writes it ended: {type(error).__name__}: {error}")

    def _tell(self, sentence: str) -> None:
        """Standard error may lie on the same full disk; whether it can be written is not the log's concern."""
        with suppress(Exception):
            self.say(sentence)

    def _flush(self) -> None:
        with self._changed:
            lines, unsaid = list(self._queue), self._unsaid
        if unsaid:
            lost = {"kind": "lost", "count": unsaid, "time": int(time.time() * 1000)}
            lines.insert(0, json.dumps(lost, separators=(",", ":")).encode() + b"\n")
        try:
            written = self._write(lines)
        except OSError as error:
            self._fail(error.strerror or str(error))
            return
        with self._changed:
            recovered, self.failure = self.failure, None
            self._unsaid -= unsaid
            for _ in range(len(lines) - bool(unsaid)):
                self._waiting -= len(self._queue.popleft())
            self.counts.flushed += len(lines) - bool(unsaid)
            self.counts.bytes += written
            self.counts.flushes += bool(lines)
        if recovered is not None:
            self._tell(f"the decision log is written again; {unsaid:,} records were lost")

    def _write(self, lines: list[bytes]) -> int:
        if self._segment is None or self._segment.full(self.options):
            self._open()
        assert self._segment is not None
        return self._segment.append(b"".join(lines)) if lines else 0

    def _open(self) -> None:
        before, self._segment = self._segment, None
        if before is not None:
            before.finish()
        self._segment = Segment(self.folder, self._number)
        self._number += 1
        self.counts.segments += 1

    def _fail(self, reason: str) -> None:
        with self._changed:
            before, self.failure = self.failure, reason
        if before is None:
            self.failed(reason)
            self._tell(f"the decision log in {self.folder} cannot be written ({reason}); records are being lost")


class Segment:
    """One file, locked as long as it is written, so that others can tell whether it was left behind."""

    def __init__(self, folder: Path, number: int) -> None:
        self.began = time.time()
        self.path, self.file = _created(folder, int(self.began * 1000), number)
        self.size, self.broken = 0, False
        _flush_folder(folder)

    def full(self, options: DecisionLogOptions) -> bool:
        old = time.time() - self.began >= options.segment_seconds
        return self.broken or self.size >= options.segment_bytes or (old and self.size > 0)

    def append(self, data: bytes) -> int:
        """All of it on the disk, or none of it in the file."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self.file, left) :]
            os.fsync(self.file)
        except OSError:
            self.broken = True  # unless what was written of it can be taken back: a record cut short must stand last
            os.ftruncate(self.file, self.size)
            self.broken = False
            raise
        self.size += len(data)
        return len(data)

    def finish(self) -> None:
        try:
            if self.size or self.broken:
                self.path.rename(self.path.with_suffix(""))
            else:
                self.path.unlink()
        finally:
            os.close(self.file)  # unlocked only under its last name, so that nobody takes it for one left behind
        _flush_folder(self.path.parent)


def _created(folder: Path, opened: int, number: int) -> tuple[Path, int]:
    """A locked file of a name that no other has or had: servers in containers may share a folder, an instant and a
    number, and one that starts may have taken the file for one left behind before it was locked.
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
            if _still(path, file):
                return path, file
            os.close(file)


def _still(path: Path, file: int) -> bool:
    """Whether the open file is what stands at the path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def adopt(folder: Path, say: Say) -> None:
    """Segments whose server ended without closing them: named as finished ones, and what they hold is said."""
    for path in sorted(folder.glob("decisions-*.jsonl.open")):
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:  # finished since, or being written
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _still(path, file.fileno()):
                continue
            data = file.read()
            path.rename(path.with_suffix(""))
            whole, torn = data.count(b"\n"), len(data) - (data.rfind(b"\n") + 1)
            end = f", and {torn} bytes of a record cut short, which readers skip" if torn else ""
            say(f"{path.name} was left by a server that did not end cleanly: it holds {whole:,} records{end}; "
                "what came after its last flush is lost")  # fmt: skip


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
