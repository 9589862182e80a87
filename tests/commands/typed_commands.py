"""Commands as typed, in a process of their own or, which is faster, in the process of the tests."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from offrec import cli


def offrec(*words: str | Path, code: int = 0, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "offrec", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload]
    assert done.returncode == code, f"{done.returncode}: {done.stderr}{done.stdout}"
    return done


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The error message: one line and no traceback."""
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("offrec: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def offrec_here(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    command, out, error, ended = ["offrec", *map(str, words)], io.StringIO(), io.StringIO(), 0
    with mock.patch.object(sys, "argv", command), redirect_stdout(out), redirect_stderr(error):
        try:
            cli.main()
        except SystemExit as stopped:
            ended = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    assert ended == code, f"{ended}: {error.getvalue()}{out.getvalue()}"
    return subprocess.CompletedProcess(command, ended, out.getvalue(), error.getvalue())
