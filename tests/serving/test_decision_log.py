"""Accepted records are in the log, in order; lost records are counted; both also after failures of disk and process."""

import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from small_server import open_log, read_records, wait_until

from offrec.errors import InputError
from offrec.serving import decision_log
from offrec.serving.decision_log import DecisionLog, DecisionLogOptions

DISK_FULL = "No space left on device"


def list_record(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "list", "request_id": str(number), **more}


def request_ids(folder: Path) -> list[str]:
    return [record["request_id"] for record in read_records(folder)[0] if record["kind"] == "list"]


def lost_counts(folder: Path) -> list[int]:
    return [record["count"] for record in read_records(folder)[0] if record["kind"] == "lost"]


def test_records_are_on_the_disk_in_order_before_the_log_is_closed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(100):
        assert log.add(list_record(number, text="é\u2028\n"))
    wait_until(lambda: len(read_records(tmp_path)[0]) == 100)
    (file,) = tmp_path.iterdir()
    assert file.name.endswith(f"-{os.getpid()}-0.jsonl.open")
    log.add({"kind": "event"})
    assert log.close() == 0
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".jsonl"
    records, torn = read_records(tmp_path)
    assert [record.get("request_id") for record in records] == [*map(str, range(100)), None]
    assert torn == 0
    assert (log.counts.lists, log.counts.events, log.counts.lost) == (100, 1, 0)
    assert log.counts.bytes == file.stat().st_size


def test_an_empty_log_leaves_no_file(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"segment_bytes": 200}, {"segment_seconds": 0.05}])
def test_a_new_file_begins_at_a_size_and_at_an_age(tmp_path: Path, options: dict[str, Any]) -> None:
    log = open_log(tmp_path, **options)
    for number in range(6):
        log.add(list_record(number, padding="x" * 100))
        wait_until(lambda number=number: len(read_records(tmp_path)[0]) == number + 1)
        time.sleep(0.03)
    log.close()
    assert len(list(tmp_path.glob("*.jsonl"))) >= 3
    assert not list(tmp_path.glob("*.open"))
    assert request_ids(tmp_path) == [str(number) for number in range(6)]


def test_a_full_queue_loses_records_and_the_log_contains_their_number(tmp_path: Path) -> None:
    log = open_log(tmp_path, flush_seconds=0.3, queue_records=5)
    accepted = [log.add(list_record(number)) for number in range(9)]
    assert accepted == [True] * 5 + [False] * 4
    wait_until(lambda: log.counts.flushed == 5)
    assert log.add(list_record(9))
    log.close()
    assert lost_counts(tmp_path) == [4]
    assert request_ids(tmp_path) == ["0", "1", "2", "3", "4", "9"]


def test_the_queue_is_also_limited_in_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path, flush_seconds=0.3, queue_bytes=1000)
    assert [log.add(list_record(number, padding="x" * 400)) for number in range(3)] == [True, True, False]
    wait_until(lambda: log.counts.flushed == 2)
    assert log.add(list_record(3, padding="x" * 400)), "after a flush the queue is empty"
    log.close()


def test_after_a_full_disk_writing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up in the middle of a write: the written part is removed and the record is written later."""
    full, real = [False], os.write

    def write(file: int, data: Any) -> int:
        if not full[0]:
            return real(file, data)
        if len(data) > 30:
            return real(file, data[:30])
        raise OSError(errno.ENOSPC, DISK_FULL)

    monkeypatch.setattr(decision_log.os, "write", write)
    printed: list[str] = []
    failures: list[str] = []
    log = DecisionLog(tmp_path, DecisionLogOptions(flush_seconds=0.02), printed.append, failures.append)
    log.add(list_record(0))
    wait_until(lambda: read_records(tmp_path)[0])
    full[0] = True
    log.add(list_record(1, padding="x" * 100))
    wait_until(lambda: log.failure is not None)
    assert log.failure == DISK_FULL
    assert [log.add(list_record(number)) for number in (2, 3)] == [False, False]
    time.sleep(0.1)
    assert failures == [DISK_FULL], "reported once"
    assert read_records(tmp_path) == ([list_record(0)], 0)
    full[0] = False
    wait_until(lambda: log.failure is None)
    assert log.add(list_record(4))
    assert log.close() == 2
    assert [record["kind"] for record in read_records(tmp_path)[0]] == ["list", "lost", "list", "list"]
    assert lost_counts(tmp_path) == [2]
    assert request_ids(tmp_path) == ["0", "1", "4"]
    assert len(printed) == 2
    assert DISK_FULL in printed[0]
    assert "2 records" in printed[1]


def test_a_torn_record_that_cannot_be_removed_ends_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    log.add(list_record(0))
    wait_until(lambda: read_records(tmp_path)[0])
    real = os.write

    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(decision_log.os, "write", lambda file, data: real(file, data[:9]) if len(data) > 9 else fail())
        broken.setattr(decision_log.os, "ftruncate", fail)
        log.add(list_record(1, padding="x" * 50))
        wait_until(lambda: log.failure is not None)
        time.sleep(0.05)
    wait_until(lambda: log.failure is None)
    log.close()
    assert read_records(tmp_path)[1] >= 1
    assert request_ids(tmp_path) == ["0", "1"]


def test_files_of_crashed_servers_are_renamed_and_reported(tmp_path: Path) -> None:
    printed: list[str] = []
    abandoned = tmp_path / "decisions-1-1-0.jsonl.open"
    abandoned.write_text(json.dumps(list_record(0)) + "\n" + '{"kind":"li')
    running = open_log(tmp_path)
    first = next(path for path in tmp_path.iterdir() if str(os.getpid()) in path.name)
    second = DecisionLog(tmp_path, DecisionLogOptions(), printed.append)
    assert (tmp_path / "decisions-1-1-0.jsonl").exists(), "renamed by the first server that started"
    assert first.exists(), "the file of a running server keeps its name"
    assert printed == []
    running.close()
    second.close()
    abandoned.write_text(json.dumps(list_record(0)) + "\n" + '{"kind":"li')
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
    monkeypatch.setattr(decision_log.time, "time", lambda: 1.0)
    logs = [open_log(tmp_path), open_log(tmp_path)]
    for number, log in enumerate(logs):
        log.add(list_record(number))
        log.close()
    again = open_log(tmp_path)
    again.add(list_record(2))
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

    monkeypatch.setattr(decision_log.os, "write", write)
    log = DecisionLog(tmp_path, DecisionLogOptions(flush_seconds=0.01), fail_to_print, failures.append)
    full[0] = True
    log.add(list_record(0))
    wait_until(lambda: failures == [DISK_FULL])
    full[0] = False
    wait_until(lambda: log.failure is None)
    assert log.add(list_record(1))
    assert log.close() == 0
    assert request_ids(tmp_path) == ["0", "1"]


def test_a_log_whose_thread_ended_accepts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise MemoryError("no more")

    monkeypatch.setattr(decision_log.Segment, "append", fail)
    failures: list[str] = []
    log = DecisionLog(tmp_path, DecisionLogOptions(flush_seconds=0.01), lambda line: None, failures.append)
    log.add(list_record(0))
    wait_until(lambda: failures)
    assert log.failure is not None
    assert "MemoryError: no more" in log.failure
    assert not log.add(list_record(1))
    assert log.close() == 2


def test_another_server_may_finish_its_file_during_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so after the folder is listed, before its file is opened or locked."""
    before_open, before_lock = tmp_path / "decisions-1-1-0.jsonl.open", tmp_path / "decisions-2-1-0.jsonl.open"
    for path in (before_open, before_lock):
        path.write_text(json.dumps(list_record(0)) + "\n")
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
    monkeypatch.setattr(decision_log.fcntl, "flock", lock)
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
            decision_log.close_abandoned_segments(tmp_path, printed.append)
            is_starting[0] = False

    def lock(file: Any, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not printed:
            start_another_server()
        real_lock(file, operation)

    def rename(path: Path, target: Path) -> Path:
        start_another_server()
        return real_rename(path, target)

    monkeypatch.setattr(decision_log.fcntl, "flock", lock)
    log = open_log(tmp_path)
    assert len(printed) == 1, "the unlocked empty file looked abandoned"
    monkeypatch.setattr(Path, "rename", rename)
    log.add(list_record(0))
    assert log.close() == 0
    assert len(printed) == 1
    assert request_ids(tmp_path) == ["0"]
    assert not list(tmp_path.glob("*.open"))
