"""GPU memory of several DC runs in one process: reserved after each run, and reserved and in use at the peak.

    python benchmarks/gpu_memory.py [--runs 3] [--json FILE]

The log is random: 20,000 sessions of 2 to 29 events over 2,000 items. Needs a GPU.
"""

import argparse
import gc
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import offrec
from offrec.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from small_datasets import write_dataset

ITEMS, SESSIONS = 2000, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_memory.py measures GPU memory; this machine has no CUDA device.")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(0)
        sessions = [random.integers(0, ITEMS, random.integers(2, 30)).tolist() for _ in range(SESSIONS)]
        dataset = write_dataset(Path(folder), sessions, splits=(SESSIONS - 1000, 500, 500), items=ITEMS)
        for number in range(options.runs):
            torch.cuda.reset_peak_memory_stats()
            settings = {"training.epochs": 3}
            out = Path(folder) / f"run-{number}"
            offrec.train(dataset, out, algorithm="dc", device="cuda", settings=settings, console=Console(quiet=True))
            gc.collect()
            row = {
                "run": number + 1,
                "reserved_after": torch.cuda.memory_reserved(),
                "peak_reserved": torch.cuda.max_memory_reserved(),
                "peak_in_use": torch.cuda.max_memory_allocated(),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
