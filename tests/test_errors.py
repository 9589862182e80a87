"""One boundary turns every exception of a command into one sentence and an exit code."""

import errno
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import SafetensorError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from offrec.cli import main
from offrec.errors import InputError, Interrupted, RunError, exit_code


def out_of_memory() -> None:
    torch.empty(1 << 60)


def fail(error: BaseException) -> Any:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (lambda: None, 0, ""),
        (fail(InputError("--k must be positive; got 0.")), 2, "offrec: --k must be positive; got 0."),
        (fail(RunError("The loss became NaN.")), 1, "offrec: The loss became NaN."),
        (fail(Interrupted("Stopped; saved.")), 130, "offrec: Stopped; saved."),
        (fail(KeyboardInterrupt()), 130, "offrec: Stopped."),
        (fail(OSError(errno.ENOSPC, "No space left on device", "a/b")), 1, "offrec: a/b: No space left on device; "),
        (fail(OSError("3 requested and 0 written")), 1, "offrec: 3 requested and 0 written; check the free disk space"),
        (fail(MemoryError()), 1, "offrec: Memory ran out (MemoryError); use a smaller log"),
        (lambda: np.empty(1 << 55), 1, "offrec: Memory ran out (Unable to allocate"),
        (out_of_memory, 1, "offrec: Memory ran out ("),
        (fail(pl.exceptions.ComputeError("bad page\nmore")), 1, "offrec: A table cannot be processed (bad page); "),
        (fail(pl.exceptions.PanicException("index out of bounds")), 1, "offrec: A table cannot be processed ("),
        (fail(SafetensorError("I/O error")), 1, "offrec: A checkpoint cannot be processed (I/O error); check"),
        (fail(InputError("item '\x1b[2J'")), 2, "offrec: item '\\x1b[2J'"),
    ],
)  # fmt: skip
def test_every_error_is_one_sentence(capsys: pytest.CaptureFixture[str], command: Any, code: int, message: str) -> None:
    assert exit_code(command) == code
    printed = capsys.readouterr().err
    assert printed.startswith(message)
    assert len(printed.splitlines()) == (code > 0)


def test_a_fault_of_offrec_is_one_line_and_a_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert exit_code(fail(ZeroDivisionError("division by zero"))) == 1
    printed = capsys.readouterr().err
    (report,) = tmp_path.iterdir()
    sentence = "ZeroDivisionError: division by zero. This is a fault of offrec"
    assert printed == f"offrec: {sentence}; please report it and attach {report}.\n"
    text = report.read_text()
    assert "Traceback (most recent call last)" in text
    assert re.search(r"^torch \d", text, re.MULTILINE)
    monkeypatch.setattr("tempfile.tempdir", "/proc/nothing")
    assert exit_code(fail(ZeroDivisionError("division by zero"))) == 1
    assert capsys.readouterr().err.endswith("This is a fault of offrec; please report it with the command.\n")


def test_help_and_usage_errors_pass_through() -> None:
    with pytest.raises(SystemExit):
        exit_code(fail(SystemExit(2)))


@pytest.mark.parametrize("arguments", [["options"], ["--help"], ["train", "--help"], ["--version"]])
def test_a_reader_that_stops_reading_is_not_an_error(arguments: list[str]) -> None:
    """`offrec … | head` prints no error."""
    command = [sys.executable, "-m", "offrec", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == ""
    assert child.returncode == 141


def test_a_broken_pipe_inside_offrec_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(fail(BrokenPipeError(errno.EPIPE, "Broken pipe"))) == 1
    assert capsys.readouterr().err.startswith("offrec: Broken pipe; ")


def test_commands_leave_sigpipe_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a client that closes its connection ends the server."""
    monkeypatch.setattr("sys.argv", ["offrec", "--version"])
    main()
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN


def test_torchrun_gets_the_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun prints the entry `py_callstack` as the cause of the failure."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))

    def refuse() -> None:
        raise InputError("--gamma must be positive; got 0.")

    assert exit_code(refuse) == 2
    stored = json.loads((tmp_path / "error.json").read_text())
    failure = ProcessFailure(0, 1, 2, str(tmp_path / "error.json"))
    assert "offrec: --gamma must be positive; got 0." in ChildFailedError("offrec", {0: failure}).format_msg()
    assert stored["message"]["message"] == "offrec: --gamma must be positive; got 0."
