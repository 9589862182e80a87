"""The decision log: every served list with its probability, and every event, as one JSON object per line.

    FOLDER/decisions-<unix ms when opened>-<process id>-<number>.jsonl; the file being written ends in .open

A record is written to the file before its response is sent, so that a killed process loses no answered request. A
thread calls fsync at a fixed interval, so that a power cut loses at most the records of that interval. With `durable`,
each response also waits for an fsync, which all waiting responses share. Records that cannot be written are counted;
once writing works again, the log itself contains their number.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offrec.data.line_checksums import seal_record
from offrec.errors import InputError
from offrec.serving.decision_log_segment import Print, Segment, close_abandoned_segments
from offrec.serving.removal import Removal


@dataclass(frozen=True)
class DecisionLogOptions:
    """Options for writing a decision log.

    Attributes:
        flush_seconds: The time between two fsyncs.
        segment_bytes: The size at which a new file begins, checked at every fsync.
        segment_seconds: The age at which a new file begins.
        durable: Whether every response waits for an fsync of its record.
        keep_days: Remove closed files whose last record is older than this; None to keep all.
    """

    flush_seconds: float = 1.0
    segment_bytes: int = 64 << 20
    segment_seconds: float = 3600.0
    durable: bool = False
    keep_days: float | None = None


@dataclass
class DecisionLogCounts:
    """Counters of a decision log, for /metrics.

    Attributes:
        lists: Lists written.
        events: Events written.
        flushed: Lists and events on the disk, that is, written before the last fsync.
        lost: Lists and events that could not be written, or not be flushed.
        bytes: Bytes written.
        flushes: Fsyncs.
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
        self._unflushed = 0  # records written since the last fsync
        self._unreported = 0  # lost records that are not yet recorded in the log
        self._batch: list[tuple[dict[str, Any], asyncio.Future[bool]]] = []  # to write in this turn of the event loop
        self._waiting: list[asyncio.Future[bool]] = []  # responses that wait for an fsync
        self._changed = threading.Condition(threading.RLock())  # never held during an fsync: the event loop writes
        self._closing = False
        self._next_number = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            close_abandoned_segments(folder, self._print)
            self._segment = self._create_segment()
        except OSError as error:
            raise InputError(f"--log {folder} cannot be written ({error.strerror}); choose another folder.") from error
        self._thread = threading.Thread(target=self._run, name="offrec-log", daemon=True)
        self._thread.start()
        self._removal: Removal | None = None
        if options.keep_days is not None:
            self._removal = Removal(folder, options.keep_days, self._print)

    async def record(self, record: dict[str, Any]) -> bool:
        """Write a record and, with `durable`, wait until it is on the disk.

        Requests that were computed in one batch are answered in one turn of the event loop. Their records are written
        together, because each write lets other threads run first.

        Args:
            record: A list or an event, with its "kind".

        Returns:
            False if the record was lost, because the log cannot be written.
        """
        loop = asyncio.get_running_loop()
        is_written: asyncio.Future[bool] = loop.create_future()
        self._batch.append((record, is_written))
        if len(self._batch) == 1:
            loop.call_soon(self._write_batch)
        return await is_written

    def _write_batch(self) -> None:
        batch, self._batch = self._batch, []
        waiting = [is_written for _, is_written in batch]
        if not self.write([record for record, _ in batch], waiting if self.options.durable else []):
            _set_results(waiting, False)
        elif not self.options.durable:
            _set_results(waiting, True)

    def write(self, records: Sequence[dict[str, Any]], waiting: Sequence["asyncio.Future[bool]"] = ()) -> bool:
        """Write records to the file, without waiting for the disk.

        Args:
            records: Lists and events.
            waiting: Receive whether the records reached the disk, unless the result is False.

        Returns:
            False if the records were lost, because the log cannot be written.
        """
        lines = b"".join(map(seal_record, records))
        with self._changed:
            if self.failure is not None or self._closing:
                self._count_lost(len(records))
                return False
            try:
                self._append(lines)
            except OSError as error:
                self._count_lost(len(records))
                reason = _reason(error)
            else:
                lists = sum(record["kind"] == "list" for record in records)
                self.counts.lists += lists
                self.counts.events += len(records) - lists
                self._unflushed += len(records)
                if waiting:
                    self._waiting += waiting
                    self._changed.notify()
                return True
        self._fail(reason)
        return False

    def close(self) -> int:
        """Flush the records to the disk and close the file.

        Returns:
            How many records of this process were lost.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        if self._removal is not None:
            self._removal.close()
        try:
            self._segment.finish()
        except OSError as error:
            self._fail(_reason(error))
        return self.counts.lost

    def _append(self, lines: bytes) -> None:
        self._segment.append(lines)
        self.counts.bytes += len(lines)

    def _count_lost(self, records: int) -> None:
        self.counts.lost += records
        self._unreported += records

    def _run(self) -> None:
        closing = False
        try:
            while not closing:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._waiting, self.options.flush_seconds)
                    closing = self._closing
                try:
                    self._flush()
                except OSError as error:
                    self._fail(_reason(error))
        except BaseException as error:  # nothing is flushed from here on, so no record may be accepted
            self._fail(f"the flushing thread ended: {type(error).__name__}: {error}")
            _answer(self._take_unflushed()[1], False)

    def _flush(self) -> None:
        records, waiting = self._take_unflushed()
        if records:
            self._finish_records(self._segment.flush, records, waiting)
        if self._segment.is_full(self.options):
            self._begin_segment()
        if self.failure is not None:
            self._recover()

    def _begin_segment(self) -> None:
        segment = self._create_segment()
        with self._changed:
            previous, self._segment = self._segment, segment
            records, waiting = self._take_unflushed()
        self._finish_records(previous.finish, records, waiting)

    def _take_unflushed(self) -> tuple[int, list["asyncio.Future[bool]"]]:
        """Return the number of records since the last fsync, and the responses that wait for one."""
        with self._changed:
            records, self._unflushed = self._unflushed, 0
            waiting, self._waiting = self._waiting, []
        return records, waiting

    def _finish_records(self, flush: Callable[[], None], records: int, waiting: list["asyncio.Future[bool]"]) -> None:
        """Flush records, count them and answer the responses that wait for them."""
        try:
            flush()
        except BaseException:
            with self._changed:
                self._count_lost(records)
            _answer(waiting, False)
            raise
        self.counts.flushed += records
        self.counts.flushes += 1
        _answer(waiting, True)

    def _create_segment(self) -> "Segment":
        segment = Segment(self.folder, self._next_number)
        self._next_number += 1
        self.counts.segments += 1
        return segment

    def _recover(self) -> None:
        """After a failure, write how many records were lost; if that works, accept records again."""
        with self._changed:
            lost = self._unreported
            if lost:
                self._append(seal_record({"kind": "lost", "count": lost, "time": int(time.time() * 1000)}))
        self._segment.flush()
        with self._changed:
            self._unreported -= lost
            self.failure = None
        self._print(f"the decision log can be written again; {lost:,} records were lost")

    def _fail(self, reason: str) -> None:
        with self._changed:
            was_failing, self.failure = self.failure is not None, reason
        if not was_failing:
            self.on_failure(reason)
            self._print(f"the decision log in {self.folder} cannot be written ({reason}); records are being lost")

    def _print(self, sentence: str) -> None:
        with suppress(Exception):  # standard error may be on the same full disk; the log must continue regardless
            self.print_line(sentence)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _answer(waiting: list["asyncio.Future[bool]"], flushed: bool) -> None:
    """Set the results from another thread, with one call for all of them."""
    if waiting:
        with suppress(RuntimeError):  # the event loop ended, and all clients with it
            waiting[0].get_loop().call_soon_threadsafe(_set_results, waiting, flushed)


def _set_results(futures: list["asyncio.Future[bool]"], result: bool) -> None:
    for future in futures:
        if not future.done():  # the client may have disconnected
            future.set_result(result)
