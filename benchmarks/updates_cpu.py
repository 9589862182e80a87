"""Time SL updates on a CPU: float32, bf16, the defaults with counted neighbours, and an earlier version.

    python benchmarks/updates_cpu.py DATASET [--before SOURCE BEFORE_DATASET] [--updates 6] [--rounds 5] [--json FILE]

`--before` is the source folder of version 0.1 and the same log prepared by it. Each version runs in its own process.
The processes take turns: each makes `--updates` updates per round. The figure is CPU time per update, the minimum over
the rounds, because other load changes it least.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from evidence import script_arguments, write_results

CHILD = """
import json, sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(int(sys.argv[3]))
sys.path.insert(0, sys.argv[4])
import epoch
from offrec.data.dataset import Dataset
dataset, flat = Dataset.open(Path(sys.argv[1])), json.loads(sys.argv[2])
if hasattr(epoch, "make_trainer"):
    trainer = epoch.make_trainer(dataset, epoch.SharedData(dataset), flat)
    steps, active, state = trainer.epoch(epoch.NEVER), trainer.active, lambda: trainer.progress
else:  # version 0.1
    trainer = epoch.trainer_of(dataset, epoch.Shared(dataset), flat)
    steps, active, state = trainer._epoch(epoch.NEVER), trainer.turn, lambda: trainer.place
print("ready", flush=True)
for line in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    with active():
        for _ in range(int(line)):
            next(steps)
    print(json.dumps([time.process_time() - cpu, time.perf_counter() - wall]), flush=True)
"""
VERSIONS = {
    "float32": {"algorithm.neighbours": 0},
    "bf16": {"algorithm.neighbours": 0, "training.precision": "bf16"},
    "float32, 50 neighbours": {},
}


class Version:
    """A process that makes updates on request."""

    def __init__(self, dataset: Path, options: dict[str, Any], source: Path, threads: int) -> None:
        words = [str(dataset), json.dumps({"algorithm.name": "sl", "seed": 0, **options}), str(threads)]
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *words, str(source.parent / "benchmarks")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._read()
        self.cpu, self.wall = list[float](), list[float]()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def run(self, updates: int) -> None:
        """Make updates, and record the time of one."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{updates}\n")
        self.process.stdin.flush()
        cpu, wall = json.loads(self._read())
        self.cpu.append(cpu / updates)
        self.wall.append(wall / updates)

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--before", type=Path, nargs=2, help="source folder and dataset of version 0.1")
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    source = Path(__file__).parent.parent / "src"
    versions = {name: Version(options.dataset, flat, source, options.threads) for name, flat in VERSIONS.items()}
    if options.before:
        old, dataset = options.before
        versions = {"version 0.1, float32": Version(dataset, {}, old, options.threads), **versions}
    load = []
    for round_ in range(options.rounds + 1):  # the first is a warm-up
        load.append(os.getloadavg()[0])
        for version in versions.values():
            version.run(options.updates if round_ else 2)
    rows = []
    for name, version in versions.items():
        version.stop()
        cpu, wall = version.cpu[1:], version.wall[1:]
        rows.append({"version": name, "cpu_ms": 1000 * min(cpu), "median_cpu_ms": 1000 * median(cpu)})
        rows[-1] |= {"wall_ms": 1000 * min(wall), "times_faster": rows[0]["cpu_ms"] / rows[-1]["cpu_ms"]}
        print(json.dumps(rows[-1]), flush=True)
    print(f"load average {min(load):.1f} to {max(load):.1f}")
    if options.json:
        results = {"threads": options.threads, "load_average": [min(load), max(load)], "rows": rows}
        write_results(options.json, results, {"script": script_arguments(options)})


if __name__ == "__main__":
    main()
