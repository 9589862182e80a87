"""The decision log: what was taken is there, in order; what was not is counted; whatever happened to the process."""

import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from small_server import quick_log, records, until

from offrec.errors import InputError
from offrec.serving import decision_log
from offrec.serving.decision_log import DecisionLog, DecisionLogOptions


def shown(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "list", "request_id": str(number), **more}


def test_records_are_there_in_order_before_the_end(tmp_path: Path) -> None:
    log = quick_log(tmp_path)
    for number in range(100):
        assert log.add(shown(number, text="é\u2028\n"))
    until(lambda: len(records(tmp_path)[0]) == 100)
    (file,) = tmp_path.iterdir()
    assert file.name.endswith(f"-{os.getpid()}-0.jsonl.open")
    log.add({"kind": "event"})
    assert log.close() == 0
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".jsonl"
    found, torn = records(tmp_path)
    assert [record.get("request_id") for record in found] == [*map(str, range(100)), None]
    assert torn == 0
    assert (log.counts.lists, log.counts.events, log.counts.lost) == (100, 1, 0)
    assert log.counts.bytes == file.stat().st_size


def test_nothing_taken_leaves_no_file(tmp_path: Path) -> None:
    quick_log(tmp_path).close()
    assert not list(tmp_path.iterdir())


def test_segments_end_by_size_and_by_age(tmp_path: Path) -> None:
    by_size, by_age = tmp_path / "size", tmp_path / "age"
    for folder, options in ((by_size, {"segment_bytes": 200}), (by_age, {"segment_seconds": 0.05})):
        log = quick_log(folder, **options)
        for number in range(6):
            log.add(shown(number, padding="x" * 100))
            until(lambda number=number, folder=folder: len(records(folder)[0]) == number + 1)
            time.sleep(0.03)
        log.close()
        assert len(list(folder.glob("*.jsonl"))) >= 3
        assert not list(folder.glob("*.open"))
        assert [record["request_id"] for record in records(folder)[0]] == [str(number) for number in range(6)]


def test_a_queue_that_is_full_loses_and_says_so(tmp_path: Path) -> None:
    log = quick_log(tmp_path, flush_seconds=0.3, queue=5)
    took = [log.add(shown(number)) for number in range(9)]
    assert took == [True] * 5 + [False] * 4
    until(lambda: log.counts.flushed == 5)
    assert log.add(shown(9))
    log.close()
    found = records(tmp_path)[0]
    lost = [record for record in found if record["kind"] == "lost"]
    assert [record["count"] for record in lost] == [4]
    assert [record["request_id"] for record in found if record["kind"] == "list"] == ["0", "1", "2", "3", "4", "9"]


def test_long_records_fill_the_queue_too(tmp_path: Path) -> None:
    log = quick_log(tmp_path, flush_seconds=0.3, queue_bytes=1000)
    assert [log.add(shown(number, padding="x" * 400)) for number in range(3)] == [True, True, False]
    until(lambda: log.counts.flushed == 2)
    assert log.add(shown(3, padding="x" * 400)), "there is room again"
    log.close()


def test_a_full_disk_is_told_and_writing_goes_on_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a write, then no space: what was written of it is taken back, and tried again."""
    full, real = [False], os.write

    def write(file: int, data: Any) -> int:
        if not full[0]:
            return real(file, data)
        if len(data) > 30:
            return real(file, data[:30])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(decision_log.os, "write", write)
    said: list[str] = []
    failures: list[str] = []
    log = DecisionLog(tmp_path, DecisionLogOptions(flush_seconds=0.02), said.append, failures.append)
    log.add(shown(0))
    until(lambda: records(tmp_path)[0])
    full[0] = True
    log.add(shown(1, padding="x" * 100))
    until(lambda: log.failure is not None)
    assert log.failure == "No space left on device"
    assert [log.add(shown(number)) for number in (2, 3)] == [False, False]
    time.sleep(0.1)
    assert failures == ["No space left on device"], "told once"
    assert records(tmp_path) == ([shown(0)], 0)
    full[0] = False
    until(lambda: log.failure is None)
    assert log.add(shown(4))
    assert log.close() == 2
    found = records(tmp_path)[0]
    assert [record["kind"] for record in found] == ["list", "lost", "list", "list"]
    assert found[1]["count"] == 2
    assert [record["request_id"] for record in found if record["kind"] == "list"] == ["0", "1", "4"]
    assert "cannot be written (No space left on device)" in said[0]
    assert "2 records were lost" in said[1]


def test_what_cannot_be_taken_back_ends_its_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record cut short may only stand at the end of a file, so another one is begun."""
    log = quick_log(tmp_path)
    log.add(shown(0))
    until(lambda: records(tmp_path)[0])
    real = os.write

    def fails(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(decision_log.os, "write", lambda file, data: real(file, data[:9]) if len(data) > 9 else fails())
        broken.setattr(decision_log.os, "ftruncate", fails)
        log.add(shown(1, padding="x" * 50))
        until(lambda: log.failure is not None)
        time.sleep(0.05)
    until(lambda: log.failure is None)
    log.close()
    found, torn = records(tmp_path)
    assert torn >= 1
    assert [record["request_id"] for record in found] == ["0", "1"]


def test_what_a_dead_server_left_is_named_and_kept(tmp_path: Path) -> None:
    said: list[str] = []
    left = tmp_path / "decisions-1-1-0.jsonl.open"
    left.write_text(json.dumps(shown(0)) + "\n" + '{"kind":"li')
    alive = quick_log(tmp_path)
    first = next(path for path in tmp_path.iterdir() if str(os.getpid()) in path.name)
    second = DecisionLog(tmp_path, DecisionLogOptions(), said.append)
    assert (tmp_path / "decisions-1-1-0.jsonl").exists(), "taken over by the first to come"
    assert first.exists(), "not that of a server that still writes"
    assert said == []
    alive.close()
    second.close()
    left.write_text(json.dumps(shown(0)) + "\n" + '{"kind":"li')
    DecisionLog(tmp_path, DecisionLogOptions(), said.append).close()
    assert "decisions-1-1-0.jsonl.open was left by a server that did not end cleanly: it holds 1 records" in said[0]
    assert "11 bytes of a record cut short" in said[0]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        quick_log(tmp_path / "file")


def test_logs_of_one_instant_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers in containers have the same process id; one that starts anew may do so within a millisecond."""
    monkeypatch.setattr(decision_log.time, "time", lambda: 1.0)
    logs = [quick_log(tmp_path), quick_log(tmp_path)]
    for number, log in enumerate(logs):
        log.add(shown(number))
        log.close()
    again = quick_log(tmp_path)
    again.add(shown(2))
    again.close()
    assert sorted(record["request_id"] for record in records(tmp_path)[0]) == ["0", "1", "2"]
    assert len(list(tmp_path.iterdir())) == 3


def speechless(sentence: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_standard_error_that_cannot_be_written_does_not_end_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk that also holds what standard error goes to: failing is told, and recovered from."""
    left = tmp_path / "decisions-1-1-0.jsonl.open"
    left.write_text("")
    full, real, failures = [False], os.write, []

    def write(file: int, data: Any) -> int:
        return speechless("") or 0 if full[0] else real(file, data)

    monkeypatch.setattr(decision_log.os, "write", write)
    log = DecisionLog(tmp_path, DecisionLogOptions(flush_seconds=0.01), speechless, failures.append)
    full[0] = True
    log.add(shown(0))
    until(lambda: failures == ["No space left on device"])
    full[0] = False
    until(lambda: log.failure is None)
    assert log.add(shown(1))
    assert log.close() == 0
    assert [record["request_id"] for record in records(tmp_path)[0]] == ["0", "1"]


def test_a_log_whose_thread_ended_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> int:
        raise MemoryError("no more")

    monkeypatch.setattr(decision_log.Segment, "append", broken)
    failures: list[str] = []
    log = DecisionLog(tmp_path, DecisionLogOptions(flush_seconds=0.01), lambda line: None, failures.append)
    log.add(shown(0))
    until(lambda: failures)
    assert log.failure == "what writes it ended: MemoryError: no more"
    assert not log.add(shown(1))
    assert log.close() == 2


def test_a_segment_that_is_finished_meanwhile_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server goes on to its next segment between the listing of the folder and the opening or the locking."""
    gone, renamed = tmp_path / "decisions-1-1-0.jsonl.open", tmp_path / "decisions-2-1-0.jsonl.open"
    for path in (gone, renamed):
        path.write_text(json.dumps(shown(0)) + "\n")
    real_open, real_lock, said = Path.open, fcntl.flock, []

    def opens(path: Path, *rest: Any, **more: Any) -> Any:
        if path == gone:
            gone.rename(gone.with_suffix(""))
        return real_open(path, *rest, **more)

    def locks(file: Any, how: int) -> None:
        if renamed.exists():
            renamed.rename(renamed.with_suffix(""))
        real_lock(file, how)

    monkeypatch.setattr(Path, "open", opens)
    monkeypatch.setattr(decision_log.fcntl, "flock", locks)
    DecisionLog(tmp_path, DecisionLogOptions(), said.append).close()
    assert said == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decisions-1-1-0.jsonl", "decisions-2-1-0.jsonl"]


def test_a_segment_is_nobody_elses_from_its_first_moment_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server starts just before a new segment is locked, and just before a finished one is renamed."""
    real_lock, real_rename, said, busy = fcntl.flock, Path.rename, [], [False]

    def starts() -> None:
        if not busy[0]:
            busy[0] = True
            decision_log.adopt(tmp_path, said.append)
            busy[0] = False

    def locks(file: Any, how: int) -> None:
        if how == fcntl.LOCK_EX and not said:
            starts()
        real_lock(file, how)

    def renames(path: Path, target: Path) -> Path:
        starts()
        return real_rename(path, target)

    monkeypatch.setattr(decision_log.fcntl, "flock", locks)
    log = quick_log(tmp_path)
    assert len(said) == 1, "the empty file was taken for one left behind"
    monkeypatch.setattr(Path, "rename", renames)
    log.add(shown(0))
    assert log.close() == 0
    assert len(said) == 1
    assert [record["request_id"] for record in records(tmp_path)[0]] == ["0"]
    assert not list(tmp_path.glob("*.open"))
