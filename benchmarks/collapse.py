"""Measure the figures that tell a collapsed policy from a healthy one, over learners and logs.

    python benchmarks/collapse.py DATASET… --out results/collapse.json [--jobs 16] [--set network.width=32 …]

Every learner is trained with its defaults, and some with settings that are known to make them collapse. Each row has
the figures of every epoch (entropy, effective items, rare share), the warnings, validation NDCG@10 and, for the log of
a shop, the true reward. docs/explanation/collapse.md describes the figures.
"""

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import offrec
from evidence import learner, write_results
from offrec.console import Console
from offrec.runs.option_text import parse_settings
from offrec.shop.store import Shop
from shop_learners import VISITORS_SEED

VISITORS = 2000
DEFAULTS = ("sl", "sl+dqn", "sl+pg", "dc", "re", "sr", "sc", "pc", "sdac", "dqn", "pg")
FORCED: dict[str, dict[str, Any]] = {
    "sdac, α 0.0001": {"algorithm.name": "sdac", "algorithm.alpha": 1e-4},
    "sdac, not grounded": {"algorithm.name": "sdac", "critic.ground": 0},
    "sdac, paper": {"algorithm.name": "sdac", "preset": "paper"},
    "sc, paper": {"algorithm.name": "sc", "preset": "paper"},
    "dc, α 0.0001": {"algorithm.name": "dc", "algorithm.alpha": 1e-4},
    "dqn, not grounded": {"algorithm.name": "dqn", "critic.ground": 0},
    "dqn, paper": {"algorithm.name": "dqn", "preset": "paper"},
    "pg, paper": {"algorithm.name": "pg", "preset": "paper"},
    "pg, learning rate 0.03": {"algorithm.name": "pg", "training.learning_rate": 0.03},
}


def measure(job: tuple[Path, str, dict[str, Any]]) -> dict[str, Any]:
    path, name, settings = job
    torch.set_num_threads(1)
    started, dataset = time.time(), offrec.Dataset.open(path)
    with tempfile.TemporaryDirectory() as out:
        policy = offrec.train(dataset, Path(out, "run"), settings=settings, console=Console(quiet=True))
        curve = [json.loads(line) for line in Path(out, "run/metrics.jsonl").read_text().splitlines()]
    row: dict[str, Any] = {"log": path.name, "run": name, "forced": name in FORCED, "settings": settings}
    row |= {"selected_epoch": curve[-1]["best_epoch"], "warnings": list(policy.warnings)}
    if "shop" in dataset.meta:
        shop = Shop.from_meta(dataset.meta["shop"])
        row["reward"] = shop.rollout(policy, VISITORS, seed=VISITORS_SEED).reward.mean
    keys = ("epoch", "validation", "diagnostics", "lists", "warnings")
    row["curve"] = [{key: line[key] for key in keys if key in line} for line in curve]
    row["seconds"] = round(time.time() - started, 1)
    selected = row["curve"][row["selected_epoch"] - 1]
    entropy = selected.get("diagnostics", {}).get("entropy")
    lists = {key: round(value, 3) for key, value in selected["lists"].items()}
    ndcg = round(selected["validation"]["NDCG@10"], 4)
    print(path.name, name, "entropy", entropy, lists, "NDCG@10", ndcg, "reward", row.get("reward"),
          list(selected.get("warnings", {})), row["seconds"], flush=True)  # fmt: skip
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="names of the runs, separated by semicolons")
    parser.add_argument("--set", action="append", default=[], help="an option of all runs, as in `offrec train`")
    parser.add_argument("--jobs", type=int, default=16)
    options = parser.parse_args()
    runs: dict[str, dict[str, Any]] = {name: {"algorithm.name": name} for name in DEFAULTS} | FORCED
    names = options.only.split(";") if options.only else list(runs)
    given = parse_settings(options.set)
    runs = {name: {**given, **runs[name]} for name in names}
    jobs = [(path, name, runs[name]) for name in names for path in options.datasets]
    context = torch.multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        rows = list(pool.map(measure, jobs))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    write_results(options.out, rows, {name: learner(runs[name]) for name in names}, device=device)


if __name__ == "__main__":
    main()
