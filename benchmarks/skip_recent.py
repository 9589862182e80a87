"""Choose `skip_recent` of every learner and baseline: the better of 0 and 8 by true reward in tuning shops.

    python benchmarks/skip_recent.py --out FOLDER [--worlds demo,stay] [--seeds 10,11,12] [--policies sl,dc,mean-reward]
                                     [--jobs 16] [--device cpu] [--limit SECONDS]
    python benchmarks/skip_recent.py --table FOLDER --collect results/skip-recent.json

Each policy is trained once per shop with default options and played with both values on the same visitors. SL is also
played by sampling. Seeds must be tuning seeds of results/earnings-plan.json. Every result is one JSON file in FOLDER;
repeat the command to continue. Needs numpy, torch and safetensors; baselines also need scipy.
"""

import argparse
import json
import os
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one thread per process

import torch

from earnings_plan import PLAN
from offrec.algorithms import LEARNERS
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.runs.train import train
from offrec.shop import Shop
from offrec.studies.machine import describe_machine
from shop_dataset import write_shop_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worlds", default=",".join(PLAN.worlds))
    parser.add_argument("--seeds", default="10,11,12")
    parser.add_argument("--policies", default=",".join(_known()))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sessions", type=int, help="logged sessions; by default as the plan says")
    parser.add_argument("--visitors", type=int, default=PLAN.visitors)
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no run after this many seconds")
    parser.add_argument("--table", type=Path, help="print the results in this folder or collected file")
    parser.add_argument("--collect", type=Path, help="with --table: write all results into one file")
    options = parser.parse_args()
    if options.table is not None:
        _report(options.table, options.collect)
        return
    if options.out is None:
        parser.error("give --out FOLDER, or --table")
    seeds = [int(seed) for seed in options.seeds.split(",")]
    PLAN.check_tuning(seeds)
    options.out.mkdir(parents=True, exist_ok=True)
    shops = [(world, seed) for world in options.worlds.split(",") for seed in seeds]
    # All shops of a policy before the next policy: processes that need the same π̂_b then rarely wait for each other.
    tasks = [(policy, *shop) for policy in options.policies.split(",") for shop in shops]
    tasks = [task for task in tasks if not _file(options.out, task).exists()]
    stop = time.time() + options.limit
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(_write_dataset, [options.out] * len(shops), shops, [options.sessions] * len(shops)))
        waiting = [pool.submit(_measure, options.out, task, options.device, options.visitors, stop) for task in tasks]
        for done in as_completed(waiting):
            print(done.result(), flush=True)
    _report(options.out, None)


def _known() -> list[str]:
    """Return the names of all learners, and of the baselines that this machine can compute."""
    if find_spec("scipy") is None:
        print("scipy is not installed, so baselines are left out", flush=True)
        return list(LEARNERS)
    from offrec.baselines import BASELINES

    return [*BASELINES, *LEARNERS]


def _file(out: Path, task: tuple[str, str, int]) -> Path:
    policy, world, seed = task
    return out / f"{world}-{seed}-{policy}.json"


def _write_dataset(out: Path, shop: tuple[str, int], sessions: int | None) -> None:
    torch.set_num_threads(1)
    folder = out / "data" / f"{shop[0]}-{shop[1]}"
    if not (folder / "dataset.json").exists():
        write_shop_dataset(Shop.open(*shop), sessions or PLAN.sessions[shop[0]], folder)


def _measure(out: Path, task: tuple[str, str, int], device: str, visitors: int, stop: float) -> str:
    """Train one policy in one shop, play it with every setting, and store the rewards."""
    if time.time() > stop:
        return f"{task} not started"
    torch.set_num_threads(1)
    started = time.time()
    policy, world, seed = task
    result: dict[str, Any] = {"policy": policy, "world": world, "seed": seed, "machine": describe_machine(device)}
    try:
        dataset = Dataset.open(out / "data" / f"{world}-{seed}")
        built = _build(policy, dataset, out / "runs" / f"{world}-{seed}-{policy}", device)
        result["train_seconds"] = time.time() - started
        shop = Shop.from_meta(dataset.meta["shop"], built.device)
        plays = ("topk", "sample") if policy == "sl" else ("topk",)
        for play in plays:
            for picks in PLAN.skip_recent:
                rollout = shop.rollout(built, visitors, play, skip_recent=picks, seed=PLAN.visitors_seed)
                result.setdefault("rewards", {}).setdefault(play, {})[str(picks)] = rollout.reward.mean
    except Exception as error:  # a failed run is a result; the others continue
        result["failure"] = "".join(traceback.format_exception(error))
    result["seconds"] = time.time() - started
    temporary = _file(out, task).with_suffix(".tmp")
    temporary.write_text(json.dumps(result) + "\n")
    temporary.rename(_file(out, task))
    return f"{world}-{seed} {policy}: {result.get('rewards', 'failed')} {result['seconds']:.0f} s"


def _build(policy: str, dataset: Dataset, folder: Path, device: str) -> Any:
    if policy in LEARNERS:
        settings = {"seed": 0, "device": device}
        return train(dataset, folder, algorithm=policy, settings=settings, force=True, console=Console(quiet=True))
    from offrec.baselines import baseline

    return baseline(policy, dataset, device=device)


def _report(source: Path, collect: Path | None) -> None:
    """Print the mean true reward per policy and setting, and the better setting."""
    files = sorted(source.glob("*.json")) if source.is_dir() else []
    results = [json.loads(file.read_text()) for file in files] or json.loads(source.read_text())
    if collect is not None:
        collect.write_text("[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")
    rewards: dict[str, dict[str, list[float]]] = {}
    for result in results:
        for play, by_picks in result.get("rewards", {}).items():
            name = result["policy"] if play == "topk" else f"{result['policy']}, sampled"
            for picks, reward in by_picks.items():
                rewards.setdefault(name, {}).setdefault(picks, []).append(reward)
    print("| policy | shops | " + " | ".join(f"skip {picks}" for picks in PLAN.skip_recent) + " | better |")
    print("|---" * (3 + len(PLAN.skip_recent)) + "|")
    for name, by_picks in rewards.items():
        means = {picks: fmean(values) for picks, values in by_picks.items()}
        cells = [f"{means[str(picks)]:.3f}" for picks in PLAN.skip_recent]
        shops = len(next(iter(by_picks.values())))
        print(f"| {name} | {shops} | {' | '.join(cells)} | {max(means, key=lambda picks: means[picks])} |")
    failed = [f"{one['world']}-{one['seed']} {one['policy']}" for one in results if "failure" in one]
    if failed:
        print(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
