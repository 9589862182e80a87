"""A short run of the attacks. `make attack` makes a long one."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attack_cases import CASES
from attack_disks import can_mount

from attack import attack
from offrec.data import arrays

HERE = Path(__file__).parent


def seed_of_source() -> int:
    """Return a seed that changes with the source, so that failures can be repeated."""
    sources = sorted(path.read_bytes() for path in HERE.parents[1].joinpath("src").rglob("*.py"))
    return int.from_bytes(hashlib.sha256(b"".join(sources)).digest()[:4])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attack") / "base"
    command = [sys.executable, HERE / "attack_base.py", folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    return folder


def run_attack(base: Path, cases: int, *options: str) -> None:
    """Attack in a separate process: it limits its memory, and native code that hangs can only be killed."""
    command = [
        sys.executable,
        HERE / "attack.py",
        "--base",
        base,
        "--cases",
        str(cases),
        "--seed",
        str(seed_of_source()),
    ]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{cases} cases" in done.stdout
    assert "failures: 0" in done.stdout


def test_random_cases_have_no_silent_wrong_result_no_fault_and_no_hang(base: Path) -> None:
    run_attack(base, 8 * len(CASES))


def test_a_full_file_system_loses_nothing(base: Path) -> None:
    if not can_mount():
        pytest.skip("mounting a tmpfs needs the rights of the administrator")
    run_attack(base, 10, "--kinds", "small disks")


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
