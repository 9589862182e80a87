"""Measure what each learner earns in the simulated shop, compared with SL, the logging policy and the oracle.

    python benchmarks/shop_learners.py DATASETS PLAN.json --out FOLDER [--jobs 2] [--visitors 4000] [--limit SECONDS]
    python benchmarks/shop_learners.py --table FOLDER --collect RESULTS.json

DATASETS contains folders WORLD-SEED, each a prepared log of the shop WORLD with that seed. PLAN.json is a list of
{"name": …, "dataset": "demo-0", "algorithm": "dc", "seed": 0, "settings": {…}}. Instead of an algorithm it may name one
of the shop's own policies (random, logging, greedy, oracle). Runs are executed concurrently. Each writes a JSON file
into FOLDER; existing results are not repeated. All policies of a shop meet the same visitors. The second command writes
all results into one file and prints them as Markdown.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evidence import read_results, write_results

OWN = ("random", "logging", "greedy", "oracle")
VISITORS_SEED = 1_000_000


def one(datasets: Path, out: Path, task: dict[str, Any], visitors: int) -> None:
    import torch

    torch.set_num_threads(1)
    import offrec
    from evidence import learner, world
    from offrec.console import Console
    from offrec.shop.store import Shop
    from offrec.training.module_state import load_module

    started = time.time()
    dataset = offrec.Dataset.open(datasets / task["dataset"])
    shop = Shop.from_meta(dataset.meta["shop"])
    results: dict[str, Any] = dict(task)
    made_with = {shop.world.name: world(shop.world.name)}
    if task["algorithm"] in OWN:
        policy: Any = task["algorithm"]
    else:
        settings = {**task.get("settings", {}), "algorithm.name": task["algorithm"]}
        made_with[_label(task)] = learner(settings, dataset.protocol.format)
        folder = out / "runs" / task["name"]
        policy = offrec.train(
            dataset,
            folder,
            algorithm=task["algorithm"],
            seed=task["seed"],
            settings=task.get("settings", {}),
            force=True,
            console=Console(quiet=True),
        )
        if task.get("checkpoint") == "last":
            load_module(policy.agent, folder / "last.safetensors")
        results["trained"] = time.time() - started
        results["test"] = dict(offrec.evaluate(policy, dataset, "test").metrics["all"].values)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        results["epochs"], results["last"] = len(lines), lines[-1]
    rollout = shop.rollout(policy, visitors, seed=VISITORS_SEED)
    reward = rollout.reward
    results |= {"reward": reward.mean, "low": reward.low, "high": reward.high, "length": rollout.length.mean}
    results |= {"purchases": rollout.purchases.mean, "cut": rollout.cut, "seconds": time.time() - started}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    write_results(out / f"{task['name']}.json", results, made_with, command=_command(), device=device)
    figure = results.get("test", {}).get("HR@5")
    print(f"{task['name']:40s} reward {reward.mean:6.3f}  HR@5 {figure}  {results['seconds']:.0f} s", flush=True)


def _label(task: dict[str, Any]) -> str:
    settings = ",".join(f"{key}={value}" for key, value in sorted(task.get("settings", {}).items()))
    return f"{task['algorithm']} {settings}".strip()


def _command() -> str:
    """Return the command that started all runs, without the number of this run's task."""
    words = ["python", "benchmarks/shop_learners.py", *sys.argv[1:]]
    return " ".join(words[: words.index("--task")] if "--task" in words else words)


def table(results: list[dict[str, Any]]) -> str:
    """Format one row per learner and world; p is of two-sided paired t-tests over shops, not corrected."""
    from statistics import fmean, stdev

    from scipy.stats import ttest_rel

    def paired(one: dict[int, Any], other: dict[int, Any]) -> str:
        shops = sorted(one.keys() & other.keys())
        mine, theirs = ([runs[shop]["reward"] for shop in shops] for runs in (one, other))
        return f"{fmean(mine) - fmean(theirs):+.2f} (p = {ttest_rel(mine, theirs).pvalue:.4f})"

    by: dict[str, dict[str, dict[int, Any]]] = {}
    for run in results:
        world, shop = run["dataset"].rsplit("-", 1)
        by.setdefault(world, {}).setdefault(run["algorithm"], {})[int(shop)] = run
    lines = ["| world | policy | HR@5 | NDCG@10 | true reward | over SL | over logging | each shop |", "|---" * 8 + "|"]
    for world, policies in by.items():
        for name, runs in sorted(policies.items(), key=lambda pair: fmean(r["reward"] for r in pair[1].values())):
            rewards = [runs[shop]["reward"] for shop in sorted(runs)]
            figures = [
                f"{fmean(r['test'][key] for r in runs.values()):.3f}" if name not in OWN else "–"
                for key in ("HR@5", "NDCG@10")
            ]
            against = [paired(runs, policies[o]) if o != name and o in policies else "–" for o in ("sl", "logging")]
            each = " · ".join(f"{reward:.2f}" for reward in rewards)
            mean = f"{fmean(rewards):.2f} ± {stdev(rewards):.2f}"
            lines.append(f"| {world} | {name} | {' | '.join(figures)} | {mean} | {' | '.join(against)} | {each} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path, nargs="?")
    parser.add_argument("plan", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the results in this folder or collected file")
    parser.add_argument("--collect", type=Path, help="with --table: write all results into one file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--visitors", type=int, default=4000)
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no run after this many seconds")
    parser.add_argument("--task", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table is not None:
        files = sorted(arguments.table.glob("*.json")) if arguments.table.is_dir() else []
        results = [read_results(file) for file in files] or read_results(arguments.table)
        if arguments.collect is not None:
            write_results(arguments.collect, results, {}, made_from=files or [arguments.table])
        print(table(results))
        return
    if arguments.datasets is None or arguments.plan is None or arguments.out is None:
        parser.error("give DATASETS, PLAN.json and --out, or --table")
    tasks = json.loads(arguments.plan.read_text())
    if arguments.task is not None:
        one(arguments.datasets, arguments.out, tasks[arguments.task], arguments.visitors)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    waiting = [i for i, task in enumerate(tasks) if not (arguments.out / f"{task['name']}.json").exists()]
    running: list[subprocess.Popen[bytes]] = []
    started = time.time()
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < arguments.jobs and time.time() - started < arguments.limit:
            command = [sys.executable, __file__, *sys.argv[1:], "--task", str(waiting.pop(0))]
            running.append(subprocess.Popen(command))
        if not running:
            break
        time.sleep(0.2)


if __name__ == "__main__":
    main()
