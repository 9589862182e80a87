"""Remove records from a decision log: all records of a session, or files that are older than a number of days.

Only closed files are changed, so a server can continue to write its own. All affected files are rewritten under
temporary names and then renamed. The end record of a file then counts the remaining records, so that
readers see a complete file.
"""

import gzip
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from offrec.data import decision_log_files, sources
from offrec.data.decision_log_files import OPEN_SUFFIX
from offrec.data.files import publish_file
from offrec.data.json_files import parse_json
from offrec.data.line_checksums import is_sealed, seal_end
from offrec.data.locks import LockedError, lock_folder
from offrec.data.sources import Source
from offrec.errors import InputError
from offrec.serving.decision_log_segment import Print, close_abandoned_segments

DAY_SECONDS = 86_400.0
ATTEMPTS = 5
OPENED = re.compile(r"decisions-([0-9]{1,15})-")  # the time in the name of a file, in milliseconds
LOCKED = "wait until it has finished"
TAIL_BYTES = 1 << 20  # of a file, to find its last record
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": lambda content: zstandard.ZstdCompressor().compress(content),
}


@dataclass(frozen=True)
class Erased:
    """What was removed.

    Attributes:
        records: Records.
        files: Files that contained them.
    """

    records: int
    files: int


def erase_sessions(folder: Path, sessions: Sequence[str], print_line: Print) -> Erased:
    """Remove all records of sessions from a decision log.

    These are the lists and events with a session id, and the events that only name a list of the session.

    Args:
        folder: The folder of the log. A server may be writing to it.
        sessions: The session ids.
        print_line: Prints a sentence for the operator.

    Returns:
        The numbers of records and files.

    Raises:
        InputError: If a session has records in the file that a server is writing, or a file is damaged or cannot be
            written. Then nothing is changed.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; name the folder that offrec serve writes its log to.")
    if not sessions or not all(sessions):
        raise InputError("--session is missing or empty; name the session to erase.")
    with lock_folder(folder, advice=LOCKED, inside=True):
        close_abandoned_segments(folder, print_line)
        requests, affected = _find_records(folder, set(sessions))
        for path in affected:
            if path.suffix == OPEN_SUFFIX:
                raise InputError(
                    f"{path} contains records of the session and is being written by a server; repeat the command when "
                    "the file is closed, which --segment-seconds of the server determines, or stop the server."
                )
        with ExitStack() as stack:  # the files are renamed after all of them have been written
            for path in affected:
                _rewrite(path, set(sessions), requests, stack)
    return Erased(sum(affected.values()), len(affected))


def _find_records(folder: Path, sessions: set[str]) -> tuple[set[str], dict[Path, int]]:
    """Return the ids of the sessions' requests, and the number of their records in each file that has any."""
    for _ in range(ATTEMPTS):
        with suppress(FileNotFoundError):  # a server closed and renamed its file
            files = [source.path for source in decision_log_files.find([folder])]
            requests = {record["request_id"] for path in files for record in _lists_of(path, sessions)}
            counts = {path: _count(path, sessions, requests) for path in files}
            return requests, {path: count for path, count in counts.items() if count}
    raise InputError(f"The files of {folder} change too often; repeat the command.")


def remove_old_files(folder: Path, keep_days: float, print_line: Print) -> int:
    """Remove the closed files of a decision log whose last record is older than a number of days.

    Args:
        folder: The folder of the log.
        keep_days: The number of days.
        print_line: Prints a sentence for the operator.

    Returns:
        The number of removed files; 0 while another process changes the folder.

    Raises:
        InputError: If the folder cannot be written.
    """
    oldest, removed = time.time() - keep_days * DAY_SECONDS, 0
    with suppress(LockedError), lock_folder(folder, advice=LOCKED, inside=True):
        for path in sorted(folder.glob("decisions-*.jsonl*")):
            try:
                if _is_older(path, oldest):
                    path.unlink(missing_ok=True)
                    removed += 1
            except OSError as error:
                print_line(f"{path} cannot be removed ({error.strerror}); check its permissions")
        if removed:
            files = "1 file" if removed == 1 else f"{removed:,} files"
            print_line(f"removed {files} of the decision log, older than {keep_days:g} days")
    return removed


def _is_older(path: Path, oldest: float) -> bool:
    """Return whether a closed file ends before a time. Files whose name shows a later start are not read."""
    start = OPENED.match(path.name)
    if path.suffix == OPEN_SUFFIX or (start and int(start[1]) / 1000 >= oldest):
        return False
    return path.is_file() and last_time(path) < oldest


def last_time(path: Path) -> float:
    """Return the time of the last record of a file, in seconds since 1970; else the time of the file itself."""
    if path.suffix == ".jsonl":
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().split(b"\n")
        for line in reversed(lines):
            record = parse_json(line) if is_sealed(line) else None
            if isinstance(record, dict) and isinstance(moment := record.get("time"), int):
                return float(moment) / 1000
    return path.stat().st_mtime


def _lists_of(path: Path, sessions: set[str]) -> Iterator[dict[str, Any]]:
    mentions = _pattern(sessions)
    for line in _lines(path):
        if mentions.search(line):
            record = _parse(path, line)
            if record["kind"] == "list" and record.get("session_id") in sessions:
                yield record


def _count(path: Path, sessions: set[str], requests: set[str]) -> int:
    mentions = _pattern(sessions | requests)
    return sum(bool(mentions.search(line)) and _is_of(_parse(path, line), sessions, requests) for line in _lines(path))


def _is_of(record: dict[str, Any], sessions: set[str], requests: set[str]) -> bool:
    if record.get("session_id") is not None:
        return record["session_id"] in sessions
    return record["kind"] == "event" and record.get("request_id") in requests


def _pattern(texts: set[str]) -> re.Pattern[bytes]:
    """Return a pattern that finds the lines with one of the texts as a JSON string, without parsing all lines."""
    return re.compile(b"|".join(re.escape(json.dumps(text, ensure_ascii=False).encode()) for text in sorted(texts)))


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, without their ends."""
    rest = b""
    for chunk in sources.read_chunks(Source(path)) if path.stat().st_size else ():
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > sources.MAX_ROW_BYTES:
            raise InputError(f"{path} has a line that does not end; restore the file from a copy.")
    if rest and is_sealed(rest):
        yield rest


def _parse(path: Path, line: bytes) -> dict[str, Any]:
    record = parse_json(line) if is_sealed(line) else None
    if not isinstance(record, dict) or "kind" not in record:
        raise InputError(
            f"{path} contains the damaged line {line[:60].decode(errors='replace')!r}; restore the file from a copy, "
            "or remove the line."
        )
    return record


def _rewrite(path: Path, sessions: set[str], requests: set[str], stack: ExitStack) -> None:
    """Write a file without the records of the sessions, and without an incomplete last line, at the end of `stack`."""
    mentions, kept, removed = _pattern(sessions | requests), [], 0
    for line in _lines(path):
        if line.startswith(b'{"kind":"end"'):
            kept.append(seal_end(_parse(path, line)["count"] - removed))
            removed = 0
        elif mentions.search(line) and _is_of(_parse(path, line), sessions, requests):
            removed += 1
        else:
            kept.append(line + b"\n")
    content = b"".join(kept)
    facts = path.stat()
    temporary = stack.enter_context(publish_file(path, mode=facts.st_mode & 0o777))
    temporary.write_bytes(COMPRESS.get(path.suffix, bytes)(content))
    os.utime(temporary, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # the age of compressed files, for --keep-days
