"""The exceptions that offrec raises for its user, and the exit codes of commands.

A message says what was found, what was expected and what to do.
"""

import errno
import json
import os
import platform
import select
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Failures of the machine, which a command with other arguments would meet too.
MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory", "bad_alloc")


class InputError(Exception):
    """The input is not valid. The command line prints the message and exits with code 2."""


class RunError(Exception):
    """A run failed although its input is valid. The command line prints the message and exits with code 1."""


class Interrupted(Exception):
    """The user interrupted a run, which was saved. The command line exits with code 130."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its class if the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def plain_text(text: str) -> str:
    r"""Escape control characters, so that an id from a log cannot control the terminal: ESC becomes `\x1b`."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def exit_code(command: Callable[[], object]) -> int:
    """Run a command and print its error, if it fails, as one sentence without a traceback.

    Args:
        command: The command.

    Returns:
        The exit code: 0, 2 for wrong input, 1 for a failed run or a failure of the machine, 130 for an interruption,
        141 if nobody reads the output any more, as in `offrec … | head`.
    """
    try:
        command()
        sys.stdout.flush()
    except InputError as error:
        return _print(str(error), 2)
    except RunError as error:
        return _print(str(error), 1)
    except (Interrupted, KeyboardInterrupt) as error:
        return _print(str(error) or "Stopped.", 130)
    except (SystemExit, GeneratorExit):
        _discard_broken_outputs()
        raise
    except BaseException as error:  # a panic of polars is not an Exception
        # SIGPIPE stays ignored: it would also end a server whose client closes a connection.
        if isinstance(error, BrokenPipeError) and _discard_broken_outputs():
            return 141
        return _print(describe_failure(error) or _report(error), 1)
    return 0


def _discard_broken_outputs() -> bool:
    """Redirect standard output and error to nowhere if their reader has gone. Return whether one of them was."""
    is_broken = False
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or not a file
            number = stream.fileno()
            poll = select.poll()
            poll.register(number, 0)
            if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
                is_broken = True
                with open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), number)
    return is_broken


def describe_failure(error: BaseException) -> str | None:
    """Return a sentence about a failure of the machine or of a file, or None if the error is a fault of offrec."""
    reason, module = first_line(error), type(error).__module__.partition(".")[0]
    if isinstance(error, MemoryError) or any(text in str(error).lower() for text in OUT_OF_MEMORY):
        return f"Memory ran out ({reason}); use a smaller log, batch or network, or a machine with more memory."
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror or reason}; check the free disk space, the permissions and the limits."
    if module in ("polars", "pyo3_runtime"):
        return f"A table cannot be processed ({reason}); check that the table is complete, or write it again."
    if module.startswith("safetensors"):
        return f"A checkpoint cannot be processed ({reason}); check the free disk space, or train the run again."
    return None


def _report(error: BaseException) -> str:
    """Write a report about a fault of offrec, and return a sentence about it."""
    folder = Path(tempfile.gettempdir())
    path = folder / f"offrec-report-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    lines = [f"command: {sys.argv}", f"python {platform.python_version()}, {platform.platform()}"]
    lines += [f"{name} {_version(name)}" for name in ("offrec", "torch", "numpy", "polars", "safetensors")]
    sentence = f"{type(error).__name__}: {first_line(error).rstrip('.')}. This is a fault of offrec"
    try:
        path.write_text("\n".join([*lines, "", *traceback.format_exception(error)]), errors="backslashreplace")
    except OSError:
        return f"{sentence}; please report it with the command."
    return f"{sentence}; please report it and attach {path}."


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "is not installed"


def _print(message: str, code: int) -> int:
    with suppress(OSError, ValueError):  # standard error may be closed, or be on the full disk
        print(plain_text(f"offrec: {message}"), file=sys.stderr)
    _tell_torchrun(message)
    return code


def _tell_torchrun(message: str) -> None:
    """Write the sentence to the file from which torchrun prints the cause of a failure, below its own traceback."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        facts = {"py_callstack": plain_text(f"offrec: {message}"), "timestamp": str(int(time.time()))}
        with suppress(OSError):
            Path(path).write_text(json.dumps({"message": {"message": facts["py_callstack"], "extraInfo": facts}}))
