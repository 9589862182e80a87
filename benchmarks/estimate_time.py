"""Measure the first estimate of a policy on a log of picks, before and after a change, in turns.

    python benchmarks/estimate_time.py DATASET --before COMMIT [--rounds 3] --out results/estimates-time.json

Each estimate runs as a command on a copy of the dataset without caches. CPU seconds are those of the command and of all
processes that it starts. `other_seconds` are the CPU seconds of all other programs during the estimate: on an idle
machine they are close to 0, and only then does the wall time mean anything.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

from evidence import ROOT, baseline, estimate, world, write_results

POLICY = "mean-reward"
CACHES = ("logging", "values")  # folders of the dataset
IDLE = (3, 4)  # columns of /proc/stat that count idle time: idle and iowait


def source_of(commit: str, folder: Path) -> Path:
    """Write the source of a commit to a folder, and return the folder to import from."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def busy_seconds() -> float:
    """Return the CPU seconds that all programs of this machine have used."""
    columns = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = sum(int(one) for index, one in enumerate(columns) if index not in IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Return the CPU seconds of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(dataset: Path, source: Path, jobs: int) -> dict[str, Any]:
    """Return the time of the first estimate by the code of `source`, and its result."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "log"
        shutil.copytree(dataset, copy, ignore=shutil.ignore_patterns(*CACHES))
        command = [sys.executable, "-m", "offrec", "estimate", "--baselines", POLICY, "--dataset", str(copy)]
        command += ["--play", "topk", "-k", "5", "--jobs", str(jobs), "--json"]
        started, busy, own = time.perf_counter(), busy_seconds(), own_seconds()
        environment = os.environ | {"PYTHONPATH": str(source)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        wall, cpu = time.perf_counter() - started, own_seconds() - own
        others = busy_seconds() - busy - cpu
    policy = json.loads(done.stdout)["policies"][0]
    result = {name: policy["estimates"]["direct"][name] for name in ("estimate", "low", "high", "verdict")}
    times = {"cpu_seconds": cpu, "wall_seconds": wall, "other_seconds": max(0.0, others)}
    return {name: round(value, 1) for name, value in times.items()} | result | {"value@5": policy["value@5"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="a prepared log of picks of a shop")
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    import offrec

    dataset = offrec.Dataset.open(arguments.dataset)
    shop = dataset.meta["shop"]
    facts = {"world": shop["world"], "seed": shop["seed"], "sessions": len(dataset.sessions), "jobs": arguments.jobs}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        sources = {arguments.before: source_of(arguments.before, Path(folder)), "this commit": ROOT / "src"}
        for number in range(arguments.rounds):
            for name, source in sources.items():
                rows.append(
                    {"round": number + 1, "code": name, **facts, **measure(arguments.dataset, source, arguments.jobs)}
                )
                print(rows[-1], flush=True)
    made_with = {"fitted Q": estimate(), POLICY: baseline(POLICY), shop["world"]: world(shop["world"])}
    command = f"python benchmarks/estimate_time.py DATASET --before {arguments.before} --out FILE"
    write_results(arguments.out, rows, made_with, command=command, device="cpu")


if __name__ == "__main__":
    main()
