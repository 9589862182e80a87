"""Time the start of a training run on a CPU: from the start of the process to the first update and to the 20th.

    python benchmarks/start_up.py DATASET [--rounds 5] [--threads 1] [--json FILE]

Each round starts a new process, which does what `offrec train` does: it imports offrec, opens and verifies the dataset,
plans the run and makes updates of SL. The files are in the page cache after the warm-up round. Wall time depends on
other load; `cpu_seconds` is the CPU time of the process, the minimum over the rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from evidence import ROOT, script_arguments, write_results

UPDATES = 20
CHILD = """
import json, sys, threading, time

def mark(name):
    print(json.dumps([name, time.time(), time.process_time()]), flush=True)

mark("process started")
import torch
import offrec
torch.set_num_threads(int(sys.argv[2]))
import epoch
from pathlib import Path
from offrec.data.dataset import Dataset
mark("modules imported")
dataset = Dataset.open(Path(sys.argv[1]))
mark("dataset opened and verified")
trainer = epoch.make_trainer(dataset, epoch.SharedData(dataset), {"algorithm.name": "sl", "seed": 0})
steps = trainer.epoch(epoch.NEVER)
mark("run planned")
with trainer.active():
    next(steps)
    mark("first update finished")
    for _ in range(int(sys.argv[3]) - 1):
        next(steps)
mark("update %s finished" % sys.argv[3])
"""


def measure(dataset: Path, threads: int) -> dict[str, tuple[float, float]]:
    """Start a process, and return for each step the wall time and the CPU time since the start."""
    paths = [str(ROOT / "src"), str(ROOT / "benchmarks")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    start = time.time()
    command = [sys.executable, "-c", CHILD, str(dataset), str(threads), str(UPDATES)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {name: (wall - start, cpu) for name, wall, cpu in lines}


def summary(rounds: list[dict[str, tuple[float, float]]]) -> list[dict[str, Any]]:
    """Return one row per step."""
    return [
        {
            "step": step,
            "seconds": median(one[step][0] for one in rounds),
            "least_seconds": min(one[step][0] for one in rounds),
            "cpu_seconds": min(one[step][1] for one in rounds),
        }
        for step in rounds[0]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    rounds, load = [], []
    for _ in range(options.rounds + 1):  # the first is a warm-up
        load.append(os.getloadavg()[0])
        rounds.append(measure(options.dataset, options.threads))
    results = {"load_average": [min(load), max(load)], "rows": summary(rounds[1:])}
    print(json.dumps(results, indent=1))
    if options.json:
        write_results(options.json, results, {"script": script_arguments(options)})


if __name__ == "__main__":
    main()
