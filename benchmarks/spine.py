"""Evaluate SL with every backbone, three seeds each, and every baseline on prepared datasets.

    python benchmarks/spine.py DATASETS --out FOLDER [--jobs 12] [--limit 560] [--baselines]
    python benchmarks/spine.py DATASETS --out FOLDER --table --json results/spine.json

DATASETS contains the folders yoochoose-64, retailrocket and events, as written by `offrec prepare` (see
docs/evidence/backbones.md). `--jobs` runs are executed concurrently. Each writes a JSON file into FOLDER; existing
results are not repeated. `--table` prints the results, and `--json` writes them to one file. Settings beyond the preset
`strong` were chosen on validation NDCG@10.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evidence import baseline, learner, protocol, read_results, write_results

BACKBONES = ("gru", "cfn", "caser", "nextitnet", "sasrec")
BASELINES = ("popular", "recent", "markov", "sknn", "vsknn")
SETTINGS: dict[str, dict[str, Any]] = {
    "retailrocket": {"training.batch_size": 1024, "training.warmup": 0},
    "yoochoose-64": {"training.batch_size": 1024, "training.warmup": 0, "network.repeat": "bonus"},
    "events": {
        "algorithm.weight": "reward",
        "network.width": 64,
        "network.dropout": 0.5,
        "network.repeat_state": False,
        "training.batch_size": 512,
        "training.learning_rate": 0.008,
        "training.decay": 1.0,
        "training.warmup": 0,
        "training.patience": 5,
        "training.epochs": 25,
    },
}
FIGURES = ("HR@5", "NDCG@5", "HR@10", "NDCG@10")


def one(datasets: Path, out: Path, log: str, name: str, seed: int) -> None:
    """Train and evaluate one run, or evaluate one baseline."""
    import torch

    torch.set_num_threads(1)
    import offrec
    from offrec.console import Console

    dataset = offrec.Dataset.open(datasets / log)
    started = time.time()
    policy: offrec.Policy
    if name in BASELINES:
        policy = offrec.baseline(name, dataset)
    else:
        run = out / "runs" / f"{log}-{name}-{seed}"
        console = Console(quiet=True)
        settings = SETTINGS[log]
        policy = offrec.train(dataset, run, backbone=name, seed=seed, settings=settings, force=True, console=console)
    found = {on: offrec.evaluate(policy, dataset, on).as_json() for on in ("validation", "test")}
    found |= {"log": log, "name": name, "seed": seed, "seconds": time.time() - started, "device": str(policy.device)}
    settings = {**SETTINGS[log], "network.backbone": name}
    own = baseline(name) if name in BASELINES else learner(settings, dataset.protocol.format)
    made_with = {f"{name} on {log}": own, f"protocol of {log}": protocol(**dataset.protocol.as_json())}
    path, command = out / f"{log}-{name}-{seed}.json", "python benchmarks/spine.py DATASETS --out FOLDER"
    write_results(path, found, made_with, command=command, device=policy.device.type)


def everything(arguments: argparse.Namespace) -> None:
    jobs = [(log, name, seed) for seed in range(3) for name in BACKBONES[::-1] for log in SETTINGS]
    if arguments.baselines:
        jobs = [(log, name, 0) for log in SETTINGS for name in BASELINES]
    jobs = [job for job in jobs if not (arguments.out / f"{job[0]}-{job[1]}-{job[2]}.json").exists()]
    running: list[subprocess.Popen[bytes]] = []
    limit = time.time() + arguments.limit
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    while (jobs or running) and time.time() < limit:
        while jobs and len(running) < arguments.jobs:
            words = [
                sys.executable,
                __file__,
                str(arguments.datasets),
                "--out",
                str(arguments.out),
                "--one",
                *map(str, jobs.pop(0)),
            ]
            running.append(subprocess.Popen(words, env=environment))
        running = [process for process in running if process.poll() is None]
        time.sleep(0.2)
    for process in running:
        process.kill()
    print(f"{len(jobs) + len(running)} runs were not started")


def table(out: Path, collect: Path | None) -> None:
    files = sorted(out.glob("*.json"))
    results = [read_results(path) for path in files]
    if collect is not None:
        write_results(collect, results, {}, made_from=files)
    for log in SETTINGS:
        mine = [result for result in results if result["log"] == log]
        if not mine:
            continue
        behaviours = [name for name in mine[0]["test"]["metrics"] if name != "all"] or ["all"]
        head = [f"{b} {f}" for b in behaviours for f in FIGURES]
        print(f"\n### {log} (fingerprint `{mine[0]['test']['fingerprint']}`)\n")
        print("| policy | seeds | " + " | ".join(head) + " | validation NDCG@10 |\n|" + "---|" * (len(head) + 3))
        for name in (*BASELINES, *BACKBONES):
            seeds = [result for result in mine if result["name"] == name]
            if seeds:
                cells = [_cell([s["test"]["metrics"][b][f] for s in seeds]) for b in behaviours for f in FIGURES]
                cells.append(_cell([s["validation"]["metrics"]["all"]["NDCG@10"] for s in seeds]))
                label = name if name in BASELINES else f"SL, {name}"
                print(f"| {label} | {len(seeds)} | " + " | ".join(cells) + " |")


def _cell(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--limit", type=float, default=1e9)
    parser.add_argument("--baselines", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--one", nargs=3, metavar=("LOG", "NAME", "SEED"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        one(arguments.datasets, arguments.out, arguments.one[0], arguments.one[1], int(arguments.one[2]))
    elif arguments.table:
        table(arguments.out, arguments.json)
    else:
        everything(arguments)
        table(arguments.out, arguments.json)


if __name__ == "__main__":
    main()
