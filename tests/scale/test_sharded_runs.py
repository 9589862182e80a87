"""Runs that several processes train: equal to one process, resumed by any number of processes, and killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from small_datasets import write_dataset

SCRIPT = Path(__file__).parent / "run_checks.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
FLAT = 3e-3  # of a user model's weights: its last fit starts from rounded weights, and some of them matter little
ROUNDING = 1e-5  # of float32 after all updates; sums over items have another order in every world


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=ENVIRONMENT)
    assert run.returncode == 0, run.stderr[-3000:]
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer


def test_runs_of_three_ranks_equal_those_of_one_process(results: Any) -> None:
    assert max(results["three"]) < ROUNDING
    assert results["replicated equal"]


def test_groups_that_read_different_sessions_equal_one_process(results: Any) -> None:
    """Without dropout: the groups draw different masks."""
    assert max(results["two groups"]) < ROUNDING
    assert results["replicated equal in groups"]


def test_the_same_world_resumes_bit_for_bit(results: Any) -> None:
    assert results["raised"] == ["Interrupted"] * 3
    assert results["resumed 3"] == [0.0, 0.0]


@pytest.mark.parametrize("case", ["resumed 1", "resumed 2", "resumed 4", "one file resumed by 2"])
def test_another_world_resumes_to_rounding(results: Any, case: str) -> None:
    assert max(results[case]) < ROUNDING


def test_one_checkpoint_remains_in_the_folder(results: Any) -> None:
    assert results["files 1"] == ["last.safetensors"]
    assert results["files 2"] == ["last", "last", "last", "last.index.json"]


def test_the_logging_policy_is_fitted_by_several_ranks(results: Any) -> None:
    assert max(results["dc"]) < 10 * ROUNDING
    assert results["recommended"]


def test_user_models_of_several_ranks_equal_those_of_one_process(results: Any) -> None:
    """Two groups read different sessions. Another world resumes an interrupted run. One process reads the run."""
    for case in ("user model in groups", "user model resumed"):
        weights, losses = results[case]
        assert weights < FLAT
        assert losses < ROUNDING
    assert results["user model raised"] == ["Interrupted"] * 3
    assert results["user model replicated"]
    assert results["user model recommended"]


def test_a_damaged_file_and_an_unsupported_option_are_refused(results: Any) -> None:
    (message,) = [text for kind, text in results["damaged"] if kind == "InputError"]
    assert "is damaged (its checksum does not match)" in message
    assert {kind for kind, _ in results["refused"]} == {"InputError"}
    assert "select=value cannot be used by several processes" in results["refused"][0][1]


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a run of two ranks by torchrun."""
    random = np.random.default_rng(0)
    sessions = [[int(item) for item in random.integers(0, 30, 5)] for _ in range(60)]
    dataset = write_dataset(folder, sessions, splits=(40, 10, 10), items=30)
    settings = ("network.width=4", "training.batch_size=64", "training.epochs=12", "algorithm.neighbours=0")
    command = ["-m", "offrec", "train", str(dataset.path), "--out", str(folder / "run"), "--track", "none"]
    command += [word for one in (*settings, "training.patience=99", "device=cpu") for word in ("--set", one)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    return subprocess.Popen(
        [*launch, *command, *arguments], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_a_killed_rank_is_restarted_from_the_last_checkpoint(tmp_path: Path) -> None:
    """Rank 1 is killed while a checkpoint is written. The restarted ranks finish all epochs."""
    run = start(tmp_path)
    try:
        until = time.monotonic() + 120
        while not list((tmp_path / "run").glob(".last-*partial*")) and time.monotonic() < until:
            time.sleep(0.0005)
        ranks = sorted(_children(run.pid))
        os.kill(ranks[1], signal.SIGKILL)
        _, errors = run.communicate(timeout=240)
    finally:
        with_group = os.getpgid(run.pid) if run.poll() is None else None
        if with_group is not None:
            os.killpg(with_group, signal.SIGKILL)
    assert run.returncode == 0, errors[-3000:]
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, 13))


def test_bad_input_is_one_sentence_of_one_rank(tmp_path: Path) -> None:
    run = start(tmp_path, "--catalogue-ranks", "3")
    _, errors = run.communicate(timeout=240)
    assert run.returncode != 0
    sentences = [line for line in errors.splitlines() if line.startswith("offrec:")]
    assert len(set(sentences)) == 1
    assert "--catalogue-ranks must divide the 2 processes" in sentences[0]
    assert not (tmp_path / "run").exists()


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found
