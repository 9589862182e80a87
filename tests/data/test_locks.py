"""One process at a time writes a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from offrec.data.locks import lock_folder
from offrec.errors import InputError

WAIT = """
import sys; from pathlib import Path; from offrec.data.locks import lock_folder
with lock_folder(Path(sys.argv[1]), advice="wait"):
    print("locked", flush=True); sys.stdin.read()
"""


def test_another_process_is_refused_with_the_owner_until_the_owner_dies(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "sl"
    owner = subprocess.Popen(
        [sys.executable, "-c", WAIT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "locked\n"
    with pytest.raises(InputError) as caught, lock_folder(path, advice="wait for it"):
        pass
    host = os.uname().nodename
    assert str(caught.value) == f"{path} is being written by process {owner.pid} on {host}; wait for it."
    owner.kill()
    owner.communicate()
    with lock_folder(path, advice="wait for it"):
        pass
    assert list(path.parent.iterdir()) == []


def test_the_lock_survives_when_the_folder_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with lock_folder(path, advice="wait"):
        path.mkdir()
        path.rename(tmp_path / "old")
        with pytest.raises(InputError, match=f"is being written by process {os.getpid()} on "), lock_folder(path, advice="wait"):  # fmt: skip # noqa: E501
            pass
    with pytest.raises(InputError, match="cannot be written"), lock_folder(Path("/proc/nothing/run"), advice="wait"):
        pass
