"""A short run of the attacks. `make attack` makes a long one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attack_cases import CASES

from attack import attack
from offrec.data import arrays

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attack") / "base"
    command = [sys.executable, HERE / "attack_base.py", folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    return folder


def test_random_cases_have_no_silent_wrong_result_no_fault_and_no_hang(base: Path) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # pytest shows it if the test fails
    tally = attack(base, 8 * len(CASES), seed)
    assert not tally.failures
    assert tally.total == 8 * len(CASES)


def test_a_planted_fault_is_found(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without checksums and ranges, the attack reports silent wrong results."""
    monkeypatch.setattr(arrays, "_open_verified", lambda path, about, advice: arrays.open_array(path, advice=advice))
    tallies = (attack(base, 120, seed, ("flips",)) for seed in range(2, 8))  # the first one usually finds it
    assert any(failure["verdict"] in ("WRONG", "FAULT") for tally in tallies for failure in tally.failures)


def test_commands_that_are_killed_can_be_repeated(base: Path) -> None:
    command = [sys.executable, HERE / "crash_points.py", base, "--share", "0.05"]
    command += ["--only", "prepare --force,train,report"]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "POLARS_MAX_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failures: 0" in done.stdout
