"""SL updates over catalogues of 10 thousand to 10 million items on one device: time, and memory beside the plan.

    python benchmarks/scale.py [--items 10000 100000 1000000 10000000] [--set network.width=64 …] [--json FILE]

The log is made up (sessions of 5 random items): what is timed does not depend on what is in it. Each size in a process
of its own, so that peak memory is its own.
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

SESSIONS, LENGTH, STEPS = 30_000, 5, 40


def made_up(folder: Path, items: int, length: int = LENGTH) -> Path:
    from offrec.data.dataset import FORMAT_VERSION
    from offrec.data.protocol import Protocol

    random = np.random.default_rng(0)
    np.save(folder / "items.npy", random.integers(0, items, SESSIONS * length).astype(np.int32))
    np.save(folder / "behaviours.npy", np.zeros(SESSIONS * length, dtype=np.uint8))
    np.save(folder / "offsets.npy", np.arange(0, SESSIONS * length + 1, length, dtype=np.int64))
    np.save(folder / "item_ids.npy", np.arange(items, dtype=np.int64))
    meta = {
        "format_version": FORMAT_VERSION,
        "data_hash": "made-up",
        "counts": {"sessions": SESSIONS, "events": SESSIONS * length, "items": items},
        "behaviours": ["view"],
        "item_id_type": "int",
        "protocol": Protocol().as_json(),
        "splits": {"train": [0, SESSIONS - 20], "validation": [SESSIONS - 20, SESSIONS - 10],
                   "test": [SESSIONS - 10, SESSIONS]},
    }  # fmt: skip
    (folder / "dataset.json").write_text(json.dumps(meta))
    return folder


def one(items: int, settings: list[str]) -> dict[str, Any]:
    import torch

    from epoch import trainer_of
    from offrec.data.dataset import Dataset
    from offrec.runs.loading import pick_device
    from offrec.runs.option_text import parse_settings
    from offrec.runs.options import resolve_options
    from offrec.runs.plan import plan_run
    from offrec.runs.shared_data import SharedData

    flat = {"network.width": 64, "training.batch_size": 1024, **parse_settings(settings)}
    with tempfile.TemporaryDirectory() as name:
        dataset = Dataset.open(made_up(Path(name), items))
        shared = SharedData(dataset)
        options = resolve_options(flat, dataset.protocol.format)
        device = pick_device(options.device)
        plan = plan_run(shared, options, device).memory
        trainer = trainer_of(dataset, shared, flat)
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
    found = {"items": items, "ms_per_update": took * 1e3, "loss": sums["cross_entropy"] / (20 + STEPS)}
    found |= {"planned_mb": (plan.peak + shared.bytes(device)) / 2**20}
    if device.type == "cuda":
        found["peak_allocated_mb"] = torch.cuda.max_memory_allocated() / 2**20
        found["peak_reserved_mb"] = torch.cuda.max_memory_reserved() / 2**20
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--set", action="append", default=[], help="an option of the run, as in `offrec train`")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(one(asked.one, asked.set)))
        return
    found = []
    for items in asked.items:
        chosen = [word for pair in asked.set for word in ("--set", pair)]
        command = [sys.executable, __file__, "--one", str(items), *chosen]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode == 0:
            row = json.loads(process.stdout)
        else:
            row = {"items": items, "failed": process.stderr.splitlines()[-1]}
        found.append(row | {"settings": asked.set})
        print(json.dumps(found[-1]), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
