"""Publish files and folders atomically: write under a temporary name, flush to disk, then rename.

A reader sees either the old content or the complete new content, even after a crash or a power failure. Every file that
offrec replaces is written here; only append-only logs (the decision log, metrics.jsonl) are not.

A folder is replaced by exchanging the names of the old and the new folder in one step, where the file system can do
that. The old content is removed last. The next process that writes the same path removes what killed processes left.
"""

import ctypes
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from offrec.errors import MACHINE_ERRORS, InputError, RunError

ADVICE = "free disk space or choose another path"
TEMPORARY, COMPLETE, REPLACED = "partial", "complete", "replaced"  # the kinds of temporary names
RENAME_EXCHANGE, AT_FDCWD = 2, -100  # from Linux's headers


@contextmanager
def publish_file(path: Path, *, advice: str = ADVICE, mode: int = 0o666) -> Iterator[Path]:
    """Write a file under a temporary name and rename it to `path` when the block ends without an exception.

    An existing file is replaced. Missing parent folders are created. The temporary name has the suffix of `path`,
    because some writers choose the format by it.

    Args:
        path: The file to write.
        advice: What the user should do if the file cannot be written; the end of the error message.
        mode: Permissions of the file, reduced by the umask.

    Yields:
        The temporary path, next to `path`. The caller writes the file there.

    Raises:
        InputError: If the file cannot be written there.
        RunError: If the disk is full or fails.

    Example:
        >>> with publish_file(Path("figures.json")) as temporary:
        ...     temporary.write_text("{}")
    """
    with _errors_named(path, advice):
        path = absolute_if_unnamed(path)
        remove_leftovers(path)
        if path.exists() and not path.is_file():  # renaming over a device such as /dev/null would remove it
            raise FileExistsError(errno.EEXIST, "it exists and is not a regular file")
        _make_parent(path)
        temporary = _temporary_name(path, TEMPORARY, path.suffix)
        temporary.touch(mode)
        mode = temporary.stat().st_mode
        try:
            yield temporary
            temporary.chmod(mode)  # safetensors creates files that only their owner may read
            _flush(temporary)
            temporary.replace(path)
            _flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def publish_text(path: Path, text: str, *, advice: str = ADVICE) -> None:
    """Write UTF-8 text to a file with `publish_file`."""
    with publish_file(path, advice=advice) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def publish_folder(path: Path, *, replace: bool = False, advice: str = ADVICE) -> Iterator[Path]:
    """Fill a temporary folder and rename it to `path` when the block ends without an exception.

    Args:
        path: The folder to create. Missing parent folders are created too.
        replace: Whether to replace an existing folder that is not empty. If false, such a folder is an error.
        advice: What the user should do if the folder cannot be written; the end of the error message.

    Yields:
        The temporary folder, next to `path`. The caller writes the files there.

    Raises:
        InputError: If the folder cannot be written there, or if it exists and `replace` is false.
        RunError: If the disk is full or fails.
    """
    with _errors_named(path, advice):
        path = absolute_if_unnamed(path)
        check_not_current(path)
        remove_leftovers(path)
        _make_parent(path)
        temporary = _temporary_name(path, TEMPORARY)
        temporary.mkdir()
        try:
            yield temporary
            _flush_tree(temporary)
            _rename_folder(temporary, path, replace)
            _flush(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def exchange_folders(new: Path, path: Path, *, advice: str = ADVICE) -> None:
    """Put a complete folder in the place of another one, in one step where the file system can exchange names.

    Args:
        new: The new folder, next to `path`. Afterwards it contains the old content, or does not exist.
        path: The folder to replace.
        advice: What the user should do if the folder cannot be replaced; the end of the error message.

    Raises:
        InputError: If the folder cannot be replaced.
        RunError: If the disk is full or fails.
    """
    with _errors_named(path, advice):
        _flush_tree(new)
        _rename_folder(new, path, replace=True)
        _flush(path.parent)


@contextmanager
def publish_files(paths: Sequence[Path], *, advice: str = ADVICE) -> Iterator[Path]:
    """Fill a temporary folder and move its files to `paths`, in that order, when the block ends without an exception.

    For files that refer to each other by name. Put the file that readers open first at the end of `paths`. It is
    removed first and moved last: if it exists, all others exist too and belong to it. A process that is killed between
    two moves leaves a complete temporary folder, and `remove_leftovers` finishes its moves. A path for which the caller
    wrote no file is removed.

    Args:
        paths: The files to write, all in one folder.
        advice: What the user should do if the files cannot be written; the end of the error message.

    Yields:
        The temporary folder. The caller writes files there, under the names of `paths`.

    Raises:
        InputError: If the files cannot be written there.
        RunError: If the disk is full or fails.
    """
    last = paths[-1]
    with _errors_named(last, advice):
        remove_leftovers(last)
        _make_parent(last)
        temporary = _temporary_name(last, TEMPORARY)
        temporary.mkdir()
        try:
            yield temporary
            _flush_tree(temporary)
            for path in paths:
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, f"{path} is a folder")
            complete = temporary.with_suffix(f".{COMPLETE}")
            temporary.rename(complete)
            _flush(last.parent)
            for path in paths[:-1]:
                if not (complete / path.name).exists():
                    path.unlink(missing_ok=True)
            _move_files(complete, last)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _move_files(complete: Path, last: Path) -> None:
    """Move all files of a complete temporary folder next to it; the file called `last.name` comes last."""
    if (complete / last.name).exists():
        last.unlink(missing_ok=True)
    for file in sorted(complete.iterdir(), key=lambda file: file.name == last.name):
        file.replace(last.with_name(file.name))
    _flush(last.parent)
    complete.rmdir()


def absolute_if_unnamed(path: Path) -> Path:
    """Return a path that ends with a name: `.` and `..` become absolute paths.

    Raises:
        InputError: If the path is the root of the file system.
    """
    if path.name in ("", ".."):
        path = path.resolve()
        if not path.name:
            raise InputError(f"{path} is the root of the file system; choose another path.")
    return path


def check_not_current(path: Path) -> None:
    """Check that replacing a folder does not remove the folder in which the command runs.

    Raises:
        InputError: If the folder is, or contains, the current folder.
    """
    try:
        current = Path.cwd()
    except FileNotFoundError:  # it was removed
        return
    if path.is_dir() and current.is_relative_to(path.resolve()):
        relation = "is" if current == path.resolve() else "contains"
        raise InputError(
            f"{path} {relation} the current folder, which would be replaced; choose another --out, or run the command "
            "in another folder."
        )


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files that killed processes of this machine left next to `path`.

    If such a process was killed while it replaced the folder `path`, restore the old folder. If it was killed while it
    moved the files of a complete export, move the others.
    """
    path = absolute_if_unnamed(path)
    kinds = f"{TEMPORARY}|{COMPLETE}|{REPLACED}"
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{_host()}-(\d+)-[0-9a-f]+\.({kinds})")
    siblings = list(path.parent.iterdir()) if path.parent.is_dir() else []
    for sibling in siblings:
        match = pattern.match(sibling.name)
        if match is None or _is_running(int(match[1])):
            continue
        if match[2] == REPLACED and not path.exists():
            sibling.rename(path)
        elif match[2] == COMPLETE:
            _move_files(sibling, path)
        else:
            _remove(sibling)


@contextmanager
def _errors_named(path: Path, advice: str) -> Iterator[None]:
    try:
        yield
    except ConnectionError:  # a closed pipe or socket is not a fault of the file
        raise
    except OSError as error:
        reason = error.strerror or error
        # numpy and safetensors set no errno when the disk is full
        kind = RunError if error.errno is None or error.errno in MACHINE_ERRORS else InputError
        raise kind(f"{path} cannot be written ({reason}); {advice}.") from error


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{path.parent} is not a folder") from error


def _temporary_name(path: Path, kind: str, suffix: str = "") -> Path:
    """Return a hidden name next to `path` that no other process and no other call uses."""
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.{kind}{suffix}")


def _host() -> str:
    """Return a short name of this machine, because process ids are only meaningful on one machine."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def _rename_folder(temporary: Path, path: Path, replace: bool) -> None:
    if not (replace and path.exists()):
        temporary.rename(path)  # fails if `path` is a folder that is not empty
        return
    if _exchange(temporary, path):
        return  # the old folder now has the temporary name, which the caller removes
    replaced = _temporary_name(path, REPLACED)
    path.rename(replaced)
    try:
        temporary.rename(path)
    except BaseException:
        replaced.rename(path)
        raise
    _remove(replaced)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two paths in one step. Return False if the system or the file system cannot do that."""
    sys.audit("offrec.exchange", str(one), str(other))
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _flush_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            _flush(Path(parent, name))
        _flush(Path(parent))


def _flush(path: Path) -> None:
    """Flush a file, or the list of names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush folders
            raise
    finally:
        os.close(descriptor)


def _is_running(process: int) -> bool:
    with suppress(PermissionError):  # the process is running under another user
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True
