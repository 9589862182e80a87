"""Profile captured updates of DC on a GPU: the time of the kernels by kind, and how many run at once.

    python benchmarks/profile_update.py [--width 64] [--precision float32] [--updates 20] [--json FILE]

The updates are those of `update.py`. Kernels of different streams overlap, so their sum is larger than the time of an
update. Needs a GPU, torch, triton and numpy.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import scale
import update
from evidence import learner, script_arguments, write_results
from offrec.data.dataset import Dataset
from offrec.runs.shared_data import SharedData
from offrec.training.loop import Trainer
from offrec.types import Size

# The first pattern that matches the name of a kernel determines its kind.
KINDS = (
    ("recurrent networks", r"^(forward|backward)_steps|RNN|GRU"),
    ("passes over the catalogue", r"^forward|^backward_rows"),
    ("gradients of tables", r"^backward_table"),
    (
        "few items or sums per row",
        r"^(combine|state_gradient|distribute|round_states|count_pairs|place_pairs|values|unique_items|sum_matching|sum_rows|score)",
    ),
    ("batches", r"^gather"),
    ("matrix products of the networks", r"gemm|cutlass|sgemm|xmma|nvjet|splitK"),
    ("Adam, target network and norms", r"multi_tensor|foreach|adam|lerp"),
    ("lookups and sorting", r"index|gather|scatter|embedding|sort"),
    ("element-wise", r"elementwise|vectorized|reduce|softmax|cat|fill|copy|Memset|Memcpy"),
    ("other kernels", r""),
)
Event = tuple[str, float, float]  # name, start and duration in microseconds


def kind_of(name: str) -> str:
    """Return the kind of a kernel."""
    return next(kind for kind, pattern in KINDS if re.search(pattern, name))


def busy(events: Sequence[Event]) -> float:
    """Return the microseconds in which at least one kernel runs."""
    total, until = 0.0, 0.0
    for _, start, duration in sorted(events, key=lambda event: event[1]):
        total += max(0.0, start + duration - max(start, until))
        until = max(until, start + duration)
    return total


def summary(events: Sequence[Event], updates: int, update_ms: float) -> list[dict[str, Any]]:
    """Return one row per kind, the largest first, and rows for the whole update; times per update."""
    times, counts = dict.fromkeys((kind for kind, _ in KINDS), 0.0), dict.fromkeys((kind for kind, _ in KINDS), 0)
    for name, _, duration in events:
        times[kind_of(name)] += duration
        counts[kind_of(name)] += 1
    rows = [
        {"part": kind, "kernels": counts[kind] / updates, "microseconds": times[kind] / updates}
        for kind in sorted(times, key=lambda kind: -times[kind])
        if counts[kind]
    ]
    rows.append(
        {"part": "all kernels", "kernels": len(events) / updates, "microseconds": sum(times.values()) / updates}
    )
    rows.append({"part": "at least one kernel runs", "kernels": None, "microseconds": busy(events) / updates})
    rows.append({"part": "an update, without the profiler", "kernels": None, "microseconds": 1e3 * update_ms})
    return rows


def begin(trainer: Trainer, epoch: int) -> list[Size]:
    """Begin an epoch and return the sizes of its batches."""
    sizes = list(trainer.task.batches.begin(epoch))
    trainer.update.begin(0, {})
    return sizes


def record(shared: SharedData, flat: dict[str, Any], updates: int, folder: Path) -> tuple[list[Event], float]:
    """Return the kernels of captured updates, and the milliseconds of one without the profiler."""
    _, trainer = update.make_trainer(shared, update.make_plan(shared, flat), folder)
    clock = update.Clock(torch.device("cuda"))
    with trainer.active():
        trainer.task.module.train()
        for size in begin(trainer, 0):  # every batch size occurs often enough to be captured
            trainer.update(size)
        for size in begin(trainer, 1):
            clock(lambda size=size: trainer.update(size))
        milliseconds = clock.median()
        sizes = begin(trainer, 2)[:updates]
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for size in sizes:
                trainer.update(size)
            torch.cuda.synchronize()
        trainer.update.read()
    events = [event for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [(event.name, event.time_range.start, event.time_range.elapsed_us()) for event in events], milliseconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("profile_update.py profiles GPU kernels; this machine has no CUDA device.", file=sys.stderr)
        return 2
    flat = {
        "algorithm.name": "dc",
        "network.width": options.width,
        "network.dropout": 0.0,
        "training.batch_size": update.ROWS,
        "training.memory_check": False,
        "training.precision": options.precision,
        "critic.returns": 0.0,
    }
    with tempfile.TemporaryDirectory() as name:
        shared = SharedData(Dataset.open(scale.random_dataset(Path(name), update.ITEMS, length=4)))
        events, milliseconds = record(shared, flat, options.updates, Path(name))
    rows = summary(events, options.updates, milliseconds)
    for row in rows:
        print(f"{row['microseconds']:8.1f} µs  {row['kernels'] or 0:6.1f} kernels  {row['part']}")
    names: dict[str, list[float]] = {}
    for kernel, _, duration in events:
        names.setdefault(kernel, []).append(duration)
    for kernel, spent in sorted(names.items(), key=lambda pair: -sum(pair[1]))[:25]:
        each = sum(spent) / options.updates
        print(f"{each:8.1f} µs  {len(spent) / options.updates:6.1f} of  {kind_of(kernel)}: {kernel[:90]}")
    if options.json:
        write_results(options.json, rows, {"dc": learner(flat), "script": script_arguments(options)}, device="cuda")
    return 0


if __name__ == "__main__":
    sys.exit(main())
