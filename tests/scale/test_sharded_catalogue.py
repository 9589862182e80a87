"""Catalogues that several ranks store give the results of one process: losses, gradients, ranks, draws and updates."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "rank_checks.py"
WORLDS = ("1", "2", "3", "4")


@pytest.fixture(scope="module")
def results() -> dict[str, list[dict[str, Any]]]:
    """Return the results of each rank, by world size."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=500, check=False, env=environment
    )
    assert run.returncode == 0, run.stderr[-3000:]
    answer: dict[str, list[dict[str, Any]]] = json.loads(run.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("world", WORLDS)
def test_losses_and_gradients_equal_those_of_one_process(results: Any, world: str) -> None:
    """Sizes below and not divisible by the world, a masked shard, corrections in one shard, weights per row."""
    for rank in results[world]:
        for dtype, limit in (("torch.float64", 1e-12), ("torch.float32", 1e-5)):
            assert rank["functions"][dtype]["loss"] < limit
            assert rank["functions"][dtype]["gradient"] < limit


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_lists_and_draws_equal_those_of_one_process(results: Any, world: str) -> None:
    for rank in results[world]:
        assert {errors["search"] for errors in rank["functions"].values()} == {0.0}
        assert rank["lookup"] < 1e-6
        assert rank["random_rows"]


@pytest.mark.parametrize("world", WORLDS)
def test_updates_equal_those_of_one_process(results: Any, world: str) -> None:
    for rank in results[world]:
        for name, errors in rank["agents"].items():
            limit = 1e-10 if errors["dtype"] == 64 else 1e-4
            assert errors["start"] == 0.0, name
            assert errors["replicated"] == 0.0, name
            assert errors["ranks"] == 0.0, name
            assert max(errors[key] for key in ("loss", "weights", "diagnostics")) < limit, (name, errors)


@pytest.mark.parametrize("world", WORLDS)
def test_user_models_equal_those_of_one_process(results: Any, world: str) -> None:
    """Choice by logit and place by place, features, rewards of items, empty shards, logs without lists."""
    for rank in results[world]:
        assert rank["user models"]
        for name, errors in rank["user models"].items():
            limit = 1e-12 if errors["dtype"] == 64 else 1e-5
            assert errors["replicated"] == errors["ranks"] == errors["selected"] == 0.0, name
            assert max(errors[key] for key in ("start", "loss", "weights", "diagnostics")) < limit, (name, errors)


def test_every_learner_with_a_network_is_checked(results: Any) -> None:
    from offrec.algorithms import LEARNERS

    names = {name.split()[1] for name in results["2"][0]["agents"]}
    assert names == {name for name in LEARNERS if LEARNERS[name].family != "planner"}
