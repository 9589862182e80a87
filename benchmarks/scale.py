"""Measure time and memory of SL updates over catalogues of 10 thousand to 10 million items on one device.

    python benchmarks/scale.py [--items 10000 100000 1000000 10000000] [--set network.width=64 …] [--json FILE]

The log is random (sessions of 5 items); time does not depend on its content. Each size runs in its own process, so
that its peak memory can be measured.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from evidence import learner, script_arguments, write_results

SESSIONS, LENGTH, STEPS = 30_000, 5, 40


def random_dataset(folder: Path, items: int, length: int = LENGTH) -> Path:
    """Write a dataset folder with random sessions."""
    from offrec.data.folder import write
    from offrec.data.protocol import Protocol

    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "items": random.integers(0, items, SESSIONS * length).astype(np.int32),
        "behaviours": np.zeros(SESSIONS * length, dtype=np.uint8),
        "offsets": np.arange(0, SESSIONS * length + 1, length, dtype=np.int64),
        "item_ids": np.arange(items, dtype=np.int64),
    }
    meta = {
        "counts": {"sessions": SESSIONS, "events": SESSIONS * length, "items": items},
        "behaviours": ["view"],
        "item_id_type": "int",
        "protocol": Protocol().as_json(),
        "splits": {"train": [0, SESSIONS - 20], "validation": [SESSIONS - 20, SESSIONS - 10],
                   "test": [SESSIONS - 10, SESSIONS]},
    }  # fmt: skip
    write(folder, arrays, lambda: meta)
    return folder


def measure(items: int, settings: list[str]) -> dict[str, Any]:
    import torch

    from epoch import make_trainer
    from offrec.data.dataset import Dataset
    from offrec.runs.loading import pick_device
    from offrec.runs.option_text import parse_settings
    from offrec.runs.options import resolve_options
    from offrec.runs.plan import plan_run
    from offrec.runs.shared_data import SharedData

    flat = {"network.width": 64, "training.batch_size": 1024, **parse_settings(settings)}
    with tempfile.TemporaryDirectory() as name:
        dataset = Dataset.open(random_dataset(Path(name), items))
        shared = SharedData(dataset)
        options = resolve_options(flat, dataset.protocol.format)
        device = pick_device(options.device)
        plan = plan_run(shared, options, device).memory
        trainer = make_trainer(dataset, shared, flat)
        with trainer.active():
            sizes = trainer.task.batches.begin(0)
            trainer.task.module.train()
            trainer.update.begin(0, {})
            for size in sizes[:20]:
                trainer.update(size)
            trainer.update.read()
            started = time.perf_counter()
            for size in sizes[20 : 20 + STEPS]:
                trainer.update(size)
            sums, _ = trainer.update.read()
            took = (time.perf_counter() - started) / STEPS
    row = {"items": items, "ms_per_update": took * 1e3, "loss": sums["cross_entropy"] / (20 + STEPS)}
    row |= {"planned_mb": (plan.peak + shared.bytes(device)) / 2**20}
    if device.type == "cuda":
        row["peak_allocated_mb"] = torch.cuda.max_memory_allocated() / 2**20
        row["peak_reserved_mb"] = torch.cuda.max_memory_reserved() / 2**20
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--set", action="append", default=[], help="an option of the run, as in `offrec train`")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(measure(arguments.one, arguments.set)))
        return
    rows = []
    for items in arguments.items:
        settings = [word for pair in arguments.set for word in ("--set", pair)]
        command = [sys.executable, __file__, "--one", str(items), *settings]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode == 0:
            row = json.loads(process.stdout)
        else:
            row = {"items": items, "failed": process.stderr.splitlines()[-1]}
        rows.append(row | {"settings": arguments.set})
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        import torch

        from offrec.runs.option_text import parse_settings

        made_with = {"script": script_arguments(arguments), "sl": learner(parse_settings(arguments.set))}
        write_results(arguments.json, rows, made_with, device="cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()
