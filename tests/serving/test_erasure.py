"""Erasing sessions and removing old files: what remains is a valid log, also while a server writes."""

import fcntl
import gzip
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from small_server import open_log, wait_until

from offrec.data import decision_log_files
from offrec.data.line_checksums import is_sealed, seal_end, seal_record
from offrec.errors import InputError, RunError
from offrec.serving import erasure, removal
from offrec.serving.decision_log import DecisionLog, DecisionLogOptions
from offrec.serving.erasure import Erased, erase_sessions, remove_old_files

Record = dict[str, Any]


def records(session: str, start: int = 1000) -> list[Record]:
    """A list, an event with the session, and one that names only the request."""
    names = {"request_id": f"request of {session}", "session_id": session}
    fields = {"items": [1, 2], "history": [], "sampled": False, "restricted": False, "policy": "a"}
    return [
        {"kind": "list", "time": start, **names, **fields},
        {"kind": "event", "time": start + 1, **names, "item": 1, "behaviour": "click"},
        {"kind": "event", "time": start + 2, "request_id": names["request_id"], "item": 2, "behaviour": "buy"},
    ]


def content(*groups: list[Record], closed: bool = True) -> bytes:
    lines = [seal_record(record) for group in groups for record in group]
    return b"".join(lines) + (seal_end(len(lines)) if closed else b"")


def erase(folder: Path, *sessions: str) -> Erased:
    return erase_sessions(folder, sessions, lambda line: None)


def notes(folder: Path) -> list[str]:
    result = []
    for source in decision_log_files.find([folder]):
        counts = decision_log_files.RecordCounts()
        list(decision_log_files.read(source, counts))
        result += counts.notes(source.name)
    return result


def test_all_records_of_a_session_are_erased_and_files_stay_valid(tmp_path: Path) -> None:
    a, b, c = records("a"), records("b"), records('say "é"')
    plain, crashed = tmp_path / "decisions-1-1-0.jsonl", tmp_path / "decisions-1-2-0.jsonl"
    plain.write_bytes(content(a[:1], b, a[1:2]))
    plain.chmod(0o640)
    crashed.write_bytes(content(c, a[2:], closed=False) + b'{"kind":"event","session_id":"a"')
    packed, dense = tmp_path / "decisions-2-1-0.jsonl.gz", tmp_path / "decisions-3-1-0.jsonl.zst"
    packed.write_bytes(gzip.compress(content(b, a[1:2])))
    dense.write_bytes(zstandard.compress(content(a[1:2], c)))
    untouched = tmp_path / "decisions-4-1-0.jsonl"
    untouched.write_bytes(content(b))
    before = untouched.stat()
    assert erase(tmp_path, "a") == Erased(5, 4)
    assert plain.read_bytes() == content(b)
    assert plain.stat().st_mode & 0o777 == 0o640
    assert crashed.read_bytes() == content(c, closed=False), "without the incomplete line, which may be of the session"
    assert gzip.decompress(packed.read_bytes()) == content(b)
    assert zstandard.decompress(dense.read_bytes()) == content(c)
    assert untouched.stat() == before
    assert notes(tmp_path) == ["decisions-1-2-0.jsonl: not closed: the server crashed or the file was cut."]
    assert erase(tmp_path, "a") == Erased(0, 0)
    assert erase(tmp_path, 'say "é"', "b") == Erased(15, 5)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_missing_records_stay_visible(tmp_path: Path) -> None:
    lines = content(records("a"), records("b")).splitlines(keepends=True)
    (tmp_path / "decisions-1-1-0.jsonl").write_bytes(b"".join(lines[:5] + lines[6:]))
    erase(tmp_path, "a")
    assert notes(tmp_path) == ["decisions-1-1-0.jsonl: 1 records are missing or repeated."]


def test_a_running_server_is_not_disturbed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    (tmp_path / "decisions-1-1-0.jsonl").write_bytes(content(records("a"), records("b")))
    log.write(records("b"))
    assert erase(tmp_path, "a") == Erased(3, 1)
    closed = (tmp_path / "decisions-1-1-0.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"\.jsonl\.open contains records of the session and is being written"):
        erase(tmp_path, "b")
    assert (tmp_path / "decisions-1-1-0.jsonl").read_bytes() == closed, "nothing is erased in part"
    log.write(records("d"))
    assert log.close() == 0
    assert erase(tmp_path, "b") == Erased(6, 2)
    assert notes(tmp_path) == []


def test_the_file_of_a_crashed_server_is_erased_too(tmp_path: Path) -> None:
    (tmp_path / "decisions-1-1-0.jsonl.open").write_bytes(content(records("a"), records("b"), closed=False))
    assert erase(tmp_path, "a") == Erased(3, 1)
    assert (tmp_path / "decisions-1-1-0.jsonl").read_bytes() == content(records("b"), closed=False)


def test_what_cannot_be_erased_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder; name the folder that offrec serve writes its log to"):
        erase(tmp_path / "no", "a")
    with pytest.raises(InputError, match="--session is missing or empty"):
        erase(tmp_path, "")
    path = tmp_path / "decisions-1-1-0.jsonl"
    path.write_bytes(damaged := content(records("a")).replace(b"click", b"clock"))
    with pytest.raises(InputError, match="contains the damaged line"):
        erase(tmp_path, "a")
    assert path.read_bytes() == damaged
    lock = tmp_path / ".lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="is being written by another process; wait until it has finished"):
            erase(tmp_path, "a")
        assert remove_old_files(tmp_path, 2, pytest.fail) == 0, "the next search removes them"
    lock.unlink()
    lock.mkdir()  # as without permission, which root always has
    with pytest.raises(InputError, match=r"cannot be written \(Is a directory\); check the permissions of the folder"):
        erase(tmp_path, "a")
    with pytest.raises(InputError, match="cannot be written"):
        remove_old_files(tmp_path, 2, pytest.fail)


@pytest.mark.parametrize("damage", ["end line", "full disk"])
def test_nothing_is_erased_if_the_second_file_cannot_be_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    whole = content(records("a"), records("b"))
    paths = [tmp_path / f"decisions-{number}-1-0.jsonl" for number in (1, 2)]
    contents = [whole, whole.replace(b'"count":6', b'"count":7') if damage == "end line" else whole]
    for path, data in zip(paths, contents, strict=True):
        path.write_bytes(data)
    write_bytes = Path.write_bytes

    def write(path: Path, data: bytes) -> int:
        if damage == "full disk" and path.name.startswith(".decisions-2"):
            raise OSError(28, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises((InputError, RunError), match=r"damaged line|No space left"):
        erase(tmp_path, "a")
    assert [path.read_bytes() for path in paths] == contents
    assert sorted(tmp_path.iterdir()) == paths


def test_an_erasure_keeps_the_age_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "decisions-1-1-0.jsonl.gz"
    path.write_bytes(gzip.compress(content(records("a"), records("b"))))
    os.utime(path, (1000, 1000))
    assert erase(tmp_path, "a").files == 1
    assert path.stat().st_mtime == 1000
    assert remove_old_files(tmp_path, 2, lambda line: None) == 1


def test_the_command_erases(tmp_path: Path) -> None:
    (tmp_path / "decisions").mkdir()
    (tmp_path / "decisions" / "decisions-1-1-0.jsonl").write_bytes(content(records("a"), records("b")))
    command = [sys.executable, "-m", "offrec", "erase", "decisions", "--session", "a"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Erased: 3 records in 1 file of decisions." in done.stderr
    lines = (tmp_path / "decisions" / "decisions-1-1-0.jsonl").read_bytes().splitlines()
    assert all(map(is_sealed, lines))


def test_the_parent_of_the_log_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "decisions"
    folder.mkdir()
    for number in (1, 2):
        (folder / f"decisions-{number}-1-0.jsonl").write_bytes(content(records("a"), records("b")))
    opened: list[Path] = []
    open_file = os.open

    def watch(path: str, *rest: int) -> int:
        opened.append(Path(path))
        return open_file(path, *rest)

    monkeypatch.setattr(os, "open", watch)
    assert erase(folder, "a") == Erased(6, 2)
    assert remove_old_files(folder, 2, lambda line: None) == 2
    assert folder / ".lock" in opened
    assert all(path == folder or path.is_relative_to(folder) for path in opened)


def test_old_files_are_removed_by_their_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = int(time.time() * 1000)
    day = 86_400_000
    old, mixed, new = (tmp_path / f"decisions-{number}-1-0.jsonl" for number in (1, 2, 3))
    old.write_bytes(content(records("a", now - 3 * day)))
    mixed.write_bytes(content(records("a", now - 3 * day), records("b", now - day)))
    new.write_bytes(content(records("c", now)))
    (tmp_path / "decisions-0-1-0.jsonl.open").write_bytes(content(records("d", 5), closed=False))
    (tmp_path / "notes.txt").write_text("not a log")
    assert remove_old_files(tmp_path, 2, lambda line: None) == 1
    assert not old.exists()
    assert mixed.exists()
    assert len(list(tmp_path.iterdir())) == 4
    monkeypatch.setattr(removal, "SECONDS", 0.01)
    printed: list[str] = []
    options = DecisionLogOptions(flush_seconds=0.01, keep_days=0.5)
    log = DecisionLog(tmp_path, options, printed.append)
    wait_until(lambda: not mixed.exists())
    log.close()
    assert new.exists()
    assert "removed" in "".join(printed)


def test_files_whose_name_shows_a_recent_start_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(erasure, "last_time", lambda path: read.append(path.name) or 0.0)  # type: ignore[func-returns-value]
    recent = tmp_path / f"decisions-{int(time.time() * 1000) - 1000}-1-0.jsonl"
    for path in (recent, tmp_path / "decisions-1-1-0.jsonl"):
        path.write_bytes(content(records("a")))
    assert remove_old_files(tmp_path, 2, lambda line: None) == 1
    assert read == ["decisions-1-1-0.jsonl"]
    assert recent.exists()


def test_a_file_that_cannot_be_removed_stops_neither_the_others_nor_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(removal, "SECONDS", 0.01)
    first, second = (tmp_path / f"decisions-{number}-1-0.jsonl" for number in (1, 2))
    for path in (first, second):
        path.write_bytes(content(records("a")))

    def last_time(path: Path) -> float:
        if path.name == first.name:
            raise PermissionError(13, "Permission denied")
        return 0.0

    monkeypatch.setattr(erasure, "last_time", last_time)
    printed: list[str] = []
    log = DecisionLog(Path(), DecisionLogOptions(flush_seconds=0.01, keep_days=30), printed.append)
    wait_until(lambda: not second.exists())
    monkeypatch.setattr(removal, "remove_old_files", lambda *arguments: 1 / 0)
    wait_until(lambda: "old files of the decision log were not removed: division by zero" in printed)
    assert log.write(records("b"))
    assert log.failure is None
    assert log.close() == 0
    assert f"{first} cannot be removed (Permission denied); check its permissions" in printed


def test_a_line_that_does_not_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "decisions-1-1-0.jsonl").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file of 1 TiB
    with pytest.raises(InputError, match="has a line that does not end; restore the file from a copy"):
        erase_sessions(tmp_path, ["v1"], print)
