"""Measure the true reward of policies in simulated shops, as results/earnings-plan.json says.

    python benchmarks/earnings.py --out FOLDER --seeds 100,101 --policies logging,informed,user-model,dc,dc:myopic
                                  [--worlds demo,stay] [--jobs 16] [--device cpu] [--limit SECONDS]
    python benchmarks/earnings.py --out FOLDER --series second [--groups cuda] [--jobs 16] [--limit SECONDS]
    python benchmarks/earnings.py --table FOLDER… [--collect results/earnings.json]

A policy is one of the shop's own policies (logging, informed, informed:myopic), a baseline, or a learner with default
options. `NAME:myopic` is a learner's twin without look-ahead, `NAME:picks` is a learner trained without the log's
lists, and `NAME:key=value;key=value` has other settings. SL is also played by sampling and without recent picks.
Every result is one JSON file in FOLDER; repeat the command to continue. Learners need numpy, torch and safetensors;
baselines also need scipy.
"""

import argparse
import json
import os
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one thread per process

import torch

from earnings_plan import PLAN
from evidence import learner, read_results, script_arguments, world, write_results
from offrec.algorithms import LEARNERS
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.runs.train import train
from offrec.shop import Shop
from offrec.shop.informed import Informed
from offrec.shop.store import SHOP_POLICIES
from offrec.studies.machine import describe_machine
from shop_list_dataset import write_shop_list_dataset

Task = tuple[str, str, int]  # policy, world, seed of the shop
Group = dict[str, Any]  # policies, worlds and seeds of tasks, and their device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worlds", default=",".join(PLAN.worlds))
    parser.add_argument("--seeds", default=",".join(map(str, PLAN.tuning_seeds[:3])))
    parser.add_argument("--policies", default="logging,user-model,user-model:myopic")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sessions", type=int, help="logged sessions; by default as the plan says")
    parser.add_argument("--visitors", type=int, default=PLAN.visitors)
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no run after this many seconds")
    parser.add_argument("--series", choices=sorted(PLAN.series), help="run the groups of this series of the plan")
    parser.add_argument("--groups", choices=["cpu", "cuda"], help="with --series: only the groups for this device")
    parser.add_argument("--table", type=Path, nargs="+", help="print the results in these folders or files")
    parser.add_argument("--collect", type=Path, help="with --table: write all results into one file")
    options = parser.parse_args()
    if options.table is not None:
        _report(options.table, options.collect, options)
        return
    if options.out is None:
        parser.error("give --out FOLDER, or --table")
    options.out.mkdir(parents=True, exist_ok=True)
    group = {
        "policies": options.policies.split(","),
        "worlds": options.worlds.split(","),
        "seeds": [int(seed) for seed in options.seeds.split(",")],
        "device": options.device,
    }
    groups: list[Group] = list(PLAN.series[options.series]) if options.series else [group]
    groups = [one for one in groups if options.groups in (None, one["device"])]
    tasks = [(task, one["device"]) for one in groups for task in _tasks(one) if not _file(options.out, task).exists()]
    shops = list(dict.fromkeys(task[1:] for one in groups for task in _tasks(one)))
    stop = time.time() + options.limit
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(_write_dataset, [options.out] * len(shops), shops, [options.sessions] * len(shops)))
        waiting = [pool.submit(_measure, options.out, task, device, options.visitors, stop) for task, device in tasks]
        for done in as_completed(waiting):
            print(done.result(), flush=True)
    _report([options.out], None, options)


def _tasks(group: Group) -> list[Task]:
    return [
        (policy, world, seed) for policy in group["policies"] for world in group["worlds"] for seed in group["seeds"]
    ]


def _file(out: Path, task: Task) -> Path:
    policy, name, seed = task
    return out / f"{name}-{seed}-{policy.replace(':', '-').replace('=', '-').replace(';', '-')}.json"


def _write_dataset(out: Path, shop: tuple[str, int], sessions: int | None) -> None:
    torch.set_num_threads(1)
    folder = out / "data" / f"{shop[0]}-{shop[1]}"
    if not (folder / "dataset.json").exists():
        write_shop_list_dataset(Shop.open(*shop), sessions or PLAN.sessions[shop[0]], folder)


def _measure(out: Path, task: Task, device: str, visitors: int, stop: float) -> str:
    """Train one policy in one shop, play it, and store its reward."""
    if time.time() > stop:
        return f"{task} not started"
    torch.set_num_threads(1)
    started = time.time()
    policy, name, seed = task
    result: dict[str, Any] = {"policy": policy, "world": name, "seed": seed, "visitors": visitors}
    try:
        dataset = Dataset.open(out / "data" / f"{name}-{seed}")
        shop = Shop.from_meta(dataset.meta["shop"])
        run = out / "runs" / _file(out, task).stem
        built, play, skip, result["options"] = _build(policy, dataset, shop, run, device)
        result["train_seconds"] = time.time() - started
        if policy == "sl":  # a simple policy, whose best form counts
            forms = {
                f"{form}, skip {picks}": (form, picks) for form in ("topk", "sample") for picks in PLAN.skip_recent
            }
            result["forms"] = {
                label: shop.rollout(built, visitors, form, skip_recent=picks, seed=PLAN.visitors_seed).reward.mean
                for label, (form, picks) in forms.items()
            }
        rollout = shop.rollout(built, visitors, play, skip_recent=skip, seed=PLAN.visitors_seed)
        result |= {"reward": rollout.reward.mean, "lists": float(rollout.steps.mean()), "skip_recent": skip}
        result |= {"picks": rollout.length.mean, "purchases": rollout.purchases.mean}
    except Exception as error:  # a failed run is a result; the others continue
        result["failure"] = "".join(traceback.format_exception(error))
    result |= {"seconds": time.time() - started, "machine": describe_machine(device)}
    temporary = _file(out, task).with_suffix(".tmp")
    temporary.write_text(json.dumps(result) + "\n")
    temporary.rename(_file(out, task))
    return f"{name}-{seed} {policy}: {result.get('reward', 'failed')} {result['seconds']:.0f} s"


def _build(policy: str, dataset: Dataset, shop: Shop, folder: Path, device: str) -> tuple[Any, Any, int, Any]:
    """Return a policy, how it is played, how many recent picks it skips, and its settings."""
    name, _, form = policy.partition(":")
    if name == "informed" and form == "myopic":
        return Informed(shop.dynamics, horizon=0), "topk", 0, None
    if name in SHOP_POLICIES:
        return name, "topk", 0, None
    if name not in LEARNERS:
        from offrec.baselines import BASELINES, baseline

        skip = int(form.removeprefix("skip=")) if form else BASELINES[name].skip_recent
        return baseline(name, dataset, device=device), "topk", skip, None
    record, settings = LEARNERS[name], {"seed": 0, "device": device}
    if form == "myopic":
        assert record.myopic is not None
        settings |= record.myopic
    elif form == "picks":
        dataset = replace(dataset, decisions=None)
    elif "=" in form:
        settings |= dict(part.split("=") for part in form.split(";"))
    trained = train(dataset, folder, algorithm=name, settings=settings, force=True, console=Console(quiet=True))
    return trained, "topk", record.skip_recent, settings


def _report(sources: list[Path], collect: Path | None, options: argparse.Namespace) -> None:
    """Print mean true rewards per policy and world."""
    results: list[dict[str, Any]] = []
    for source in sources:
        if source.is_dir():
            results += [json.loads(file.read_text()) for file in sorted(source.glob("*.json"))]
        else:
            results += read_results(source)
    if collect is not None:
        names = dict.fromkeys(one["world"] for one in results)
        learners = dict.fromkeys(one["policy"] for one in results if one["policy"].partition(":")[0] in LEARNERS)
        used: dict[str, Any] = {name: world(name) for name in names}
        for policy in learners:
            name, _, form = policy.partition(":")
            settings = dict(LEARNERS[name].myopic or {}) if form == "myopic" else {}
            used[policy] = learner({**settings, "algorithm.name": name}, "decisions")
        write_results(collect, results, {**used, "script": script_arguments(options, "out", "table", "collect")})
    worlds = list(dict.fromkeys(one["world"] for one in results))
    policies = list(dict.fromkeys(one["policy"] for one in results))
    print("| policy | " + " | ".join(worlds) + " |\n" + "|---" * (1 + len(worlds)) + "|")
    for policy in policies:
        cells = []
        for name in worlds:
            of_policy = [one for one in results if (one["policy"], one["world"]) == (policy, name)]
            rewards = [one["reward"] for one in of_policy if "reward" in one]
            spread = f" ± {1.96 * stdev(rewards) / len(rewards) ** 0.5:.2f}" if len(rewards) > 1 else ""
            cells.append(f"{fmean(rewards):.2f}{spread} ({len(rewards)})" if rewards else "")
        print(f"| {policy} | {' | '.join(cells)} |")
    _compare(results, worlds)
    failed = [f"{one['world']}-{one['seed']} {one['policy']}" for one in results if "failure" in one]
    if failed:
        print(f"failed: {', '.join(failed)}\n{next(one['failure'] for one in results if 'failure' in one)}")


def _compare(results: list[dict[str, Any]], worlds: list[str]) -> None:
    """Compare each learner with the best simple policy, its twin and `informed`: paired t-tests over shops, Holm."""
    if find_spec("scipy") is None:
        return
    from scipy.stats import ttest_rel

    def rewards(name: str) -> dict[str, dict[int, float]]:
        rows: dict[str, dict[int, float]] = {}
        for one in results:
            if one["world"] == name and "reward" in one:
                rows.setdefault(one["policy"], {})[one["seed"]] = one["reward"]
        return rows

    print("\n| world | learner | compared with | shops | ratio | shops won | p, Holm |\n" + "|---" * 7 + "|")
    for name in worlds:
        rows = rewards(name)
        learners = [policy for policy in rows if policy.partition(":")[0] in LEARNERS and not policy.startswith("sl")]
        simple = {policy: row for policy, row in rows.items() if policy.partition(":")[0] in PLAN.simple_policies}
        pairs = []
        if simple:
            best = max(simple, key=lambda policy: fmean(simple[policy].values()))
            pairs += [(learner, best) for learner in learners]
        twins = [(one, f"{one}:myopic") for one in learners if f"{one}:myopic" in rows]
        for family in (pairs, twins):
            tests = []
            for first, second in family:
                seeds = sorted(rows[first].keys() & rows[second].keys())
                a, b = ([rows[policy][seed] for seed in seeds] for policy in (first, second))
                p = float(ttest_rel(a, b).pvalue) if len(seeds) > 1 else float("nan")
                tests.append((first, second, a, b, p))
            corrected = _holm([test[-1] for test in tests])
            for (first, second, a, b, _), p in zip(tests, corrected, strict=True):
                won = sum(x > y for x, y in zip(a, b, strict=True))
                cells = f"{len(a)} | {fmean(a) / fmean(b):.2f} | {won} | {p:.1g}"
                print(f"| {name} | {first} | {second} | {cells} |")
        if "informed" in rows:
            for learner in learners:
                seeds = sorted(rows[learner].keys() & rows["informed"].keys())
                if not seeds:
                    continue
                share = fmean(rows[learner][seed] for seed in seeds) / fmean(rows["informed"][seed] for seed in seeds)
                print(f"| {name} | {learner} | informed | {len(seeds)} | {share:.2f} | – | – |")


def _holm(values: list[float]) -> list[float]:
    """Return p-values corrected by Holm's method."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    corrected, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = largest
    return corrected


if __name__ == "__main__":
    main()
