"""Check the goals for GPU memory: constant over runs, little more reserved than used, and expected correctly.

    python benchmarks/gpu_memory.py [--runs 10] [--json FILE] [--strict]         # also: make speed ONLY=memory

Ten DC runs, one after the other in one process, and then eight DC runs concurrently. The log is random and as large as
the demo's: 20,000 sessions of 2 to 29 events over 2,000 items. Expected memory is what offrec prints before a run.
Needs a GPU, torch, triton, numpy and safetensors. --strict exits with 1 if a goal is missed.
"""

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence import learner, script_arguments, write_results
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.runs.options import resolve_options
from offrec.runs.plan import plan_runs
from offrec.runs.train import train_many

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from small_datasets import write_dataset

ITEMS, SESSIONS = 2000, 20_000
CONCURRENT = 8  # trainings of the demo's size, which together must fit into CARD bytes
CARD = 24 * 10**9
GOALS = {"growth": 1.02, "reserved / in use": 1.5, "expected / reserved": 1.3}
Row = dict[str, Any]


def random_log(folder: Path, sessions: int, items: int) -> Dataset:
    """Write a dataset with random sessions, of which 5 % are for validation and test."""
    random = np.random.default_rng(0)
    lists = [random.integers(0, items, random.integers(2, 30)).tolist() for _ in range(sessions)]
    held_out = max(1, sessions // 40)
    return write_dataset(folder, lists, splits=(sessions - 2 * held_out, held_out, held_out), items=items)


def measure(
    dataset: Dataset, runs: int, concurrent: int, device: torch.device, settings: dict[str, Any], out: Path
) -> list[Row]:
    """Train runs one after the other, then several at once, and return the memory of each step."""
    rows = [measure_runs(dataset, 1, device, settings, out / f"run-{number}") for number in range(runs)]
    return [*rows, measure_runs(dataset, concurrent, device, settings, out / "concurrent")]


def measure_runs(dataset: Dataset, number: int, device: torch.device, settings: dict[str, Any], out: Path) -> Row:
    """Train runs concurrently and return the memory that was expected, reserved and used."""
    flat = {f"seed-{seed}": {**settings, "seed": seed, "device": str(device)} for seed in range(number)}
    options = {name: resolve_options(one, dataset.protocol.format) for name, one in flat.items()}
    plans = plan_runs(dataset, options, Console(quiet=True))
    shared = next(iter(plans.values())).shared
    expected = sum(plan.memory.peak for plan in plans.values()) + shared.bytes(device)
    del plans, shared
    _release(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    train_many(dataset, flat, out, console=Console(quiet=True))
    gc.collect()
    reserved_after, peak_reserved, peak_in_use = _statistics(device)
    row = {"concurrent_runs": number, "reserved_after": reserved_after, "peak_reserved": peak_reserved}
    print(json.dumps(row := {**row, "peak_in_use": peak_in_use, "expected": expected}), flush=True)
    return row


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _statistics(device: torch.device) -> tuple[int, int, int]:
    if device.type != "cuda":
        return 0, 0, 0
    return (
        torch.cuda.memory_reserved(device),
        torch.cuda.max_memory_reserved(device),
        torch.cuda.max_memory_allocated(device),
    )


def check_goals(rows: Sequence[Row]) -> dict[str, bool]:
    """Return for each goal, with its figure, whether it is met."""
    alone = [row for row in rows if row["concurrent_runs"] == 1]
    together = max(row["peak_reserved"] for row in rows if row["concurrent_runs"] == CONCURRENT)
    after = [row["reserved_after"] for row in alone]
    growth = max(after) / min(after)
    reserved = max(row["peak_reserved"] / row["peak_in_use"] for row in rows)
    factors = [row["expected"] / row["peak_reserved"] for row in rows]
    low, high = min(factors), max(factors)
    limit = GOALS["expected / reserved"]
    return {
        f"reserved after {len(alone)} runs, largest / smallest: {growth:.2f}, at most {GOALS['growth']}": growth
        <= GOALS["growth"],
        f"peak reserved / in use: {reserved:.2f}, at most {GOALS['reserved / in use']}": reserved
        <= GOALS["reserved / in use"],
        f"expected / reserved: {low:.2f} to {high:.2f}, at most a factor of {limit}": 1 / limit <= low
        and high <= limit,
        f"{CONCURRENT} concurrent trainings reserve {together / 1e9:.1f} GB, at most {CARD / 1e9:.0f}": together
        <= CARD,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_memory.py measures GPU memory; this machine has no CUDA device.")
    settings = {"algorithm.name": "dc", "training.epochs": 3}
    with tempfile.TemporaryDirectory() as folder:
        dataset = random_log(Path(folder), SESSIONS, ITEMS)
        rows = measure(dataset, options.runs, CONCURRENT, torch.device("cuda"), settings, Path(folder))
    goals = check_goals(rows)
    for goal, is_met in goals.items():
        print(f"{'met' if is_met else 'MISSED':8s}{goal}")
    if options.json:
        made_with = {"dc": learner(settings), "script": script_arguments(options)}
        write_results(options.json, rows, made_with, device="cuda")
    return 1 if options.strict and not all(goals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
