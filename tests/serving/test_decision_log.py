"""Accepted records are in the log, in order; lost records are counted; both also after failures of disk and process."""

import asyncio
import errno
import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from small_server import open_log, read_records, wait_until

from offrec.data.line_checksums import seal_end, seal_record
from offrec.errors import InputError
from offrec.serving import decision_log_segment
from offrec.serving.decision_log import DecisionLog, DecisionLogOptions

DISK_FULL = "No space left on device"


def list_record(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "list", "request_id": str(number), **more}


def request_ids(folder: Path) -> list[str]:
    return [record["request_id"] for record in read_records(folder)[0] if record["kind"] == "list"]


def lost_counts(folder: Path) -> list[int]:
    return [record["count"] for record in read_records(folder)[0] if record["kind"] == "lost"]


def test_a_record_is_in_the_file_when_write_returns(tmp_path: Path) -> None:
    log = open_log(tmp_path, flush_seconds=60.0)
    for number in range(100):
        assert log.write([list_record(number, text="é\u2028\n")])
        assert len(read_records(tmp_path)[0]) == number + 1
    (file,) = tmp_path.iterdir()
    assert file.name.endswith(f"-{os.getpid()}-0.jsonl.open")
    log.write([{"kind": "event"}])
    assert log.close() == 0
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".jsonl"
    records, torn = read_records(tmp_path)
    assert [record.get("request_id") for record in records] == [*map(str, range(100)), None]
    assert torn == 0
    assert (log.counts.lists, log.counts.events, log.counts.flushed, log.counts.lost) == (100, 1, 101, 0)
    assert log.counts.bytes == file.stat().st_size - len(seal_end(101))


def test_other_users_cannot_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = open_log(tmp_path)
        log.write([list_record(0)])
        log.close()
    finally:
        os.umask(before)
    assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [0o640]


def test_records_are_flushed_at_the_interval_without_further_records(tmp_path: Path) -> None:
    log = open_log(tmp_path, flush_seconds=0.05)
    log.write([list_record(0)])
    wait_until(lambda: log.counts.flushed == 1)
    log.close()


def test_a_slow_fsync_does_not_delay_other_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_flushing, may_end, real = threading.Event(), threading.Event(), os.fsync

    def fsync(file: int) -> None:
        is_flushing.set()
        assert may_end.wait(60)
        real(file)

    log = open_log(tmp_path)
    monkeypatch.setattr(decision_log_segment.os, "fsync", fsync)
    log.write([list_record(0)])
    assert is_flushing.wait(60)
    assert log.write([list_record(1)]), "returns during the fsync"
    assert request_ids(tmp_path) == ["0", "1"]
    may_end.set()
    log.close()


def test_durable_records_share_an_fsync_and_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fsync covers one record; the records that arrive during it share the second one."""
    real, may_end, files = os.fsync, threading.Event(), []

    def fsync(file: int) -> None:
        files.append(file)
        assert may_end.wait(60)
        real(file)

    async def write(log: DecisionLog) -> None:
        first = asyncio.create_task(log.record(list_record(0)))
        while not files:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(log.record(list_record(number))) for number in range(1, 20)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in (first, *others)), "no record is confirmed before its fsync"
        assert len(request_ids(tmp_path)) == 20
        may_end.set()
        assert await asyncio.gather(first, *others) == [True] * 20

    log = open_log(tmp_path, flush_seconds=60.0, durable=True)
    monkeypatch.setattr(decision_log_segment.os, "fsync", fsync)
    asyncio.run(write(log))
    assert len(files) == 2
    log.close()


def test_records_of_one_turn_of_the_event_loop_are_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, real = [], os.write

    def write(file: int, data: bytes) -> int:
        writes.append(data)
        return real(file, data)

    async def write_records(log: DecisionLog) -> list[bool]:
        return list(await asyncio.gather(*(log.record(list_record(number)) for number in range(50))))

    log = open_log(tmp_path)
    monkeypatch.setattr(decision_log_segment.os, "write", write)
    assert asyncio.run(write_records(log)) == [True] * 50
    assert len(writes) == 1
    assert request_ids(tmp_path) == [str(number) for number in range(50)]
    log.close()
    assert asyncio.run(write_records(log)) == [False] * 50, "a closed log loses records, and says so"


@pytest.mark.parametrize("durable", [False, True])
def test_records_of_a_failed_fsync_count_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """After a failed fsync the system may have dropped the data, so the log goes on in a new file."""
    real, broken, failures = os.fsync, [True], []

    def fsync(file: int) -> None:
        if broken[0]:
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    options = DecisionLogOptions(flush_seconds=0.01, durable=durable)
    log = DecisionLog(tmp_path, options, lambda line: None, failures.append)
    monkeypatch.setattr(decision_log_segment.os, "fsync", fsync)
    assert asyncio.run(log.record(list_record(0))) is not durable, "a durable record is not confirmed"
    wait_until(lambda: failures == ["Input/output error"])
    time.sleep(0.05)  # several attempts, which leave no files
    wait_until(lambda: len(list(tmp_path.iterdir())) == 1)
    broken[0] = False
    wait_until(lambda: log.failure is None)
    assert log.write([list_record(1)])
    assert log.close() == 1
    assert lost_counts(tmp_path) == [1]
    assert request_ids(tmp_path)[-1] == "1"
    assert len(list(tmp_path.iterdir())) == 2


def test_an_empty_log_leaves_no_file(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"segment_bytes": 200}, {"segment_seconds": 0.05}])
def test_a_new_file_begins_at_a_size_and_at_an_age(tmp_path: Path, options: dict[str, Any]) -> None:
    log, number = open_log(tmp_path, **options), 0
    while len(list(tmp_path.glob("*.jsonl"))) < 3 and number < 500:  # files end at an fsync, which a busy disk delays
        log.write([list_record(number, padding="x" * 100)])
        number += 1
        wait_until(lambda number=number: len(read_records(tmp_path)[0]) == number)
        time.sleep(0.03)
    log.close()
    assert len(list(tmp_path.glob("*.jsonl"))) >= 3
    assert not list(tmp_path.glob("*.open"))
    assert request_ids(tmp_path) == [str(number) for number in range(number)]


def test_after_a_full_disk_writing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up in the middle of a write: the written part is removed and the record counts as lost."""
    full, real = [False], os.write

    def write(file: int, data: Any) -> int:
        if not full[0]:
            return real(file, data)
        if len(data) > 30:
            return real(file, data[:30])
        raise OSError(errno.ENOSPC, DISK_FULL)

    monkeypatch.setattr(decision_log_segment.os, "write", write)
    printed: list[str] = []
    failures: list[str] = []
    log = DecisionLog(tmp_path, DecisionLogOptions(flush_seconds=0.02), printed.append, failures.append)
    log.write([list_record(0)])
    wait_until(lambda: read_records(tmp_path)[0])
    full[0] = True
    assert not log.write([list_record(1, padding="x" * 100)])
    assert log.failure == DISK_FULL
    assert [log.write([list_record(number)]) for number in (2, 3)] == [False, False]
    time.sleep(0.1)
    assert failures == [DISK_FULL], "reported once"
    assert read_records(tmp_path) == ([list_record(0)], 0)
    full[0] = False
    wait_until(lambda: log.failure is None)
    assert log.write([list_record(4)])
    assert log.close() == 3
    assert [record["kind"] for record in read_records(tmp_path)[0]] == ["list", "lost", "list"]
    assert lost_counts(tmp_path) == [3]
    assert request_ids(tmp_path) == ["0", "4"]
    assert len(printed) == 2
    assert DISK_FULL in printed[0]
    assert "3 records" in printed[1]


def test_a_torn_record_that_cannot_be_removed_ends_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    log.write([list_record(0)])
    wait_until(lambda: read_records(tmp_path)[0])
    real = os.write

    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(
            decision_log_segment.os, "write", lambda file, data: real(file, data[:9]) if len(data) > 9 else fail()
        )
        broken.setattr(decision_log_segment.os, "ftruncate", fail)
        log.write([list_record(1, padding="x" * 50)])
        assert log.failure == "Input/output error"
        time.sleep(0.05)
    wait_until(lambda: log.failure is None)
    log.write([list_record(2)])
    log.close()
    assert read_records(tmp_path)[1] >= 1
    assert request_ids(tmp_path) == ["0", "2"]
    assert lost_counts(tmp_path) == [1]


def test_files_of_crashed_servers_are_renamed_and_reported(tmp_path: Path) -> None:
    printed: list[str] = []
    abandoned = tmp_path / "decisions-1-1-0.jsonl.open"
    abandoned.write_bytes(seal_record(list_record(0)) + b'{"kind":"li')
    running = open_log(tmp_path)
    first = next(path for path in tmp_path.iterdir() if str(os.getpid()) in path.name)
    second = DecisionLog(tmp_path, DecisionLogOptions(), printed.append)
    assert (tmp_path / "decisions-1-1-0.jsonl").exists(), "renamed by the first server that started"
    assert first.exists(), "the file of a running server keeps its name"
    assert printed == []
    running.close()
    second.close()
    abandoned.write_bytes(seal_record(list_record(0)) + b'{"kind":"li')
    DecisionLog(tmp_path, DecisionLogOptions(), printed.append).close()
    assert len(printed) == 1
    for part in ("decisions-1-1-0.jsonl.open", "1 records", "11 bytes"):
        assert part in printed[0]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--log"):
        open_log(tmp_path / "file")


def test_logs_opened_in_the_same_millisecond_use_different_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers in two containers can have the same process id, and a server can restart within a millisecond."""
    monkeypatch.setattr(decision_log_segment.time, "time", lambda: 1.0)
    logs = [open_log(tmp_path), open_log(tmp_path)]
    for number, log in enumerate(logs):
        log.write([list_record(number)])
        log.close()
    again = open_log(tmp_path)
    again.write([list_record(2)])
    again.close()
    assert sorted(request_ids(tmp_path)) == ["0", "1", "2"]
    assert len(list(tmp_path.iterdir())) == 3


def fail_to_print(sentence: str) -> None:
    raise OSError(errno.ENOSPC, DISK_FULL)


def test_the_log_goes_on_if_standard_error_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is on the same full disk."""
    (tmp_path / "decisions-1-1-0.jsonl.open").write_text("")
    full, real, failures = [False], os.write, []

    def write(file: int, data: Any) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, DISK_FULL)
        return real(file, data)

    monkeypatch.setattr(decision_log_segment.os, "write", write)
    log = DecisionLog(tmp_path, DecisionLogOptions(flush_seconds=0.01), fail_to_print, failures.append)
    full[0] = True
    log.write([list_record(0)])
    wait_until(lambda: failures == [DISK_FULL])
    full[0] = False
    wait_until(lambda: log.failure is None)
    assert log.write([list_record(1)])
    assert log.close() == 1
    assert request_ids(tmp_path) == ["1"]


def test_a_log_whose_thread_ended_accepts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("no more")

    failures: list[str] = []
    log = DecisionLog(tmp_path, DecisionLogOptions(flush_seconds=0.01), lambda line: None, failures.append)
    with monkeypatch.context() as patched:
        patched.setattr(decision_log_segment.Segment, "flush", fail)
        log.write([list_record(0)])
        wait_until(lambda: failures)
    assert log.failure is not None
    assert "MemoryError: no more" in log.failure
    assert not log.write([list_record(1)])
    assert log.close() == 2


def test_another_server_may_finish_its_file_during_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so after the folder is listed, before its file is opened or locked."""
    before_open, before_lock = tmp_path / "decisions-1-1-0.jsonl.open", tmp_path / "decisions-2-1-0.jsonl.open"
    for path in (before_open, before_lock):
        path.write_bytes(seal_record(list_record(0)))
    real_open, real_lock, printed = Path.open, fcntl.flock, []

    def open_file(path: Path, *rest: Any, **more: Any) -> Any:
        if path == before_open:
            before_open.rename(before_open.with_suffix(""))
        return real_open(path, *rest, **more)

    def lock(file: Any, operation: int) -> None:
        if before_lock.exists():
            before_lock.rename(before_lock.with_suffix(""))
        real_lock(file, operation)

    monkeypatch.setattr(Path, "open", open_file)
    monkeypatch.setattr(decision_log_segment.fcntl, "flock", lock)
    DecisionLog(tmp_path, DecisionLogOptions(), printed.append).close()
    assert printed == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decisions-1-1-0.jsonl", "decisions-2-1-0.jsonl"]


def test_no_other_server_takes_a_file_from_its_creation_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server starts just before a new file is locked, and just before a finished one is renamed."""
    real_lock, real_rename, printed, is_starting = fcntl.flock, Path.rename, [], [False]

    def start_another_server() -> None:
        if not is_starting[0]:
            is_starting[0] = True
            decision_log_segment.close_abandoned_segments(tmp_path, printed.append)
            is_starting[0] = False

    def lock(file: Any, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not printed:
            start_another_server()
        real_lock(file, operation)

    def rename(path: Path, target: Path) -> Path:
        start_another_server()
        return real_rename(path, target)

    monkeypatch.setattr(decision_log_segment.fcntl, "flock", lock)
    log = open_log(tmp_path)
    assert len(printed) == 1, "the unlocked empty file looked abandoned"
    monkeypatch.setattr(Path, "rename", rename)
    log.write([list_record(0)])
    assert log.close() == 0
    assert len(printed) == 1
    assert request_ids(tmp_path) == ["0"]
    assert not list(tmp_path.glob("*.open"))
