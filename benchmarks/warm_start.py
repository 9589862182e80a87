"""Compare runs that start from an earlier run with runs from random weights, on logs that grow.

    python benchmarks/warm_start.py weeks events.csv.gz --work FOLDER --json results/warm-start.json [--weeks 12,13,14]
    python benchmarks/warm_start.py shop --world demo --seeds 100,101 --work FOLDER --json results/warm-start.json

`weeks` cuts a RetailRocket log by time. The first dataset has the events of the first weeks, each later one also those
of the next week. Sessions are split by time: no earlier run saw a test session of a later dataset. Each warm run starts
from the warm run of the week before.

`shop` simulates one log of 20,000 sessions; the earlier run is trained on the first 12,000. Sessions keep their order,
so test sessions of the longer log are new to the earlier run.

For each pair of runs, a row contains the updates until the best epoch and in total, the updates after which the run is
within 0.2 % of the best validation figure of the fresh run, the test metrics and, for shops, the true reward.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence import learner, protocol, script_arguments, world, write_results
from offrec.console import Console
from offrec.data import folder
from offrec.data.arrays import Arrays
from offrec.data.dataset import Dataset
from offrec.evaluation import evaluate
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.train import train
from offrec.shop import Shop
from shop_list_dataset import SPLITS, write_shop_list_dataset

WEEK = 7 * 24 * 3600 * 1000  # milliseconds
EARLY, WHOLE = 12_000, 20_000  # sessions of a shop's log
VISITORS = 4000
MARGIN = 0.002  # early stopping ignores smaller differences, too
Row = dict[str, Any]


def measure(
    dataset: Dataset, out: Path, settings: Row, start: Path | None, shop: Shop | None = None
) -> tuple[Row, NetworkPolicy]:
    """Train one run, unless it exists, and return its row."""
    policy = train(
        dataset,
        out,
        settings={"diagnostics": "some", "device": "cpu", **settings},
        start_from=start,
        resume=(out / "run.json").exists(),
        console=Console(quiet=True),
    )
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    facts, trained = json.loads((out / "run.json").read_text()), epochs[-1]["epoch"]
    per_epoch = _updates_per_epoch(out, trained)
    figures = {epoch["epoch"]: epoch["validation"].get("NDCG@10") for epoch in epochs}  # epoch 0: before any update
    metrics = evaluate(policy, dataset, "test").metrics["all"]
    row = {
        "start": "fresh" if start is None else "warm",
        "epochs": trained,
        "updates": per_epoch * trained,
        "updates_to_best": per_epoch * epochs[-1]["best_epoch"],
        "updates_per_epoch": per_epoch,
        "validation": figures,
        "test": {name: metrics[name] for name in ("HR@5", "NDCG@5", "HR@10", "NDCG@10", "HR@20")},
        "events": metrics.events,
        "items": (facts["start"] or {}).get("items"),
    }
    if shop is not None:
        rollout = shop.rollout(policy, sessions=VISITORS)
        row["reward"] = float(rollout.rewards.mean())
        row["reward_error"] = float(rollout.rewards.std() / len(rollout) ** 0.5)
    return row, policy


def _updates_per_epoch(out: Path, epochs: int) -> int:
    from offrec.training import checkpoint

    _, facts = checkpoint.load(out / "last.safetensors")
    return int(facts["progress"]["updates"] // epochs)


def reached_after(run: Row, fresh: Row) -> int | None:
    """Return the updates after which a run comes within MARGIN of the best validation figure of the fresh run."""
    best = max(fresh["validation"].values())
    epoch = next((number for number, figure in run["validation"].items() if figure >= (1 - MARGIN) * best), None)
    return None if epoch is None else epoch * run["updates_per_epoch"]


def cut_weeks(source: Path, weeks: int, out: Path, sample: float) -> Dataset:
    """Prepare the events of the first weeks, of a share of the visitors."""
    import polars as pl

    from offrec.data.options import PrepareOptions
    from offrec.data.prepare import prepare

    if not (out / "dataset.json").exists():
        log = pl.read_csv(source)
        end = log["timestamp"].min() + weeks * WEEK
        part = log.filter((pl.col("timestamp") < end) & (pl.col("visitorid").hash(0) % 1000 < 1000 * sample))
        out.parent.mkdir(parents=True, exist_ok=True)
        events = out.with_suffix(".csv")
        part.write_csv(events)
        prepare(events, out=out, options=PrepareOptions(format="retailrocket", protocol="paper", split="time"))
        events.unlink()
    return Dataset.open(out)


def weeks(options: argparse.Namespace) -> list[Row]:
    rows, chosen = [], [int(week) for week in options.weeks.split(",")]
    for algorithm in options.algorithms.split(","):
        settings = {"algorithm.name": algorithm, **parse(options.set)}
        before: Path | None = None
        for week in chosen:
            dataset = cut_weeks(options.log, week, options.work / f"week-{week}", options.sample)
            name = f"{algorithm}-{week}"
            fresh, _ = measure(dataset, options.work / f"fresh-{name}", settings, None)
            about = {"log": "retailrocket-events", "algorithm": algorithm, "week": week}
            rows.append({**about, **fresh, "updates_to_fresh": reached_after(fresh, fresh)})
            if before is None:
                before = options.work / f"fresh-{name}"
            else:
                out = options.work / f"warm-{name}{options.tag}"
                warm, _ = measure(dataset, out, {**settings, **parse(options.warm)}, before)
                rows.append({**about, **warm, "updates_to_fresh": reached_after(warm, fresh)})
                before = out
            show(rows[-2:])
    return rows


def first_sessions(dataset: Dataset, count: int, out: Path) -> Dataset:
    """Write the first sessions of a shop's dataset as a dataset with the same proportions of the splits."""
    sessions, decisions, meta = dataset.sessions, dataset.decisions, dict(dataset.meta)
    assert decisions is not None
    events, lists = int(sessions.offsets[count]), int(decisions.offsets[count])
    arrays: Arrays = {
        "items": sessions.items[:events],
        "behaviours": sessions.behaviours[:events],
        "offsets": sessions.offsets[: count + 1],
        **dataset.item_id_arrays,
        "decision_offsets": decisions.offsets[: count + 1],
        **{
            f"decision_{name}": getattr(decisions, name)[:lists]
            for name in ("positions", "items", "log_propensity", "event")
        },
    }
    edges = [0, round(SPLITS[0] * count), round(SPLITS[1] * count), count]
    meta |= {
        "counts": {**meta["counts"], "sessions": count, "events": events},
        "splits": {name: edges[i : i + 2] for i, name in enumerate(("train", "validation", "test"))},
        "decisions": {**meta["decisions"], "count": lists},
        "shop": {**meta["shop"], "sessions": count},
    }
    for key in ("fingerprint", "data_hash", "arrays", "sha256", "format_version"):
        meta.pop(key, None)
    folder.write(out, {name: np.array(array) for name, array in arrays.items()}, lambda: meta)
    return Dataset.open(out)


def shops(options: argparse.Namespace) -> list[Row]:
    rows = []
    for seed in map(int, options.seeds.split(",")):
        shop = Shop.open(options.world, seed)
        whole, early = (options.work / f"{options.world}-{seed}-{count}" for count in (WHOLE, EARLY))
        if not whole.exists():
            first_sessions(write_shop_list_dataset(shop, WHOLE, whole), EARLY, early)
        for algorithm in options.algorithms.split(","):
            settings = {"algorithm.name": algorithm, **parse(options.set)}
            about = {"log": f"{options.world} shop", "shop": seed, "algorithm": algorithm}
            name = f"{algorithm}-{seed}"
            first = options.work / f"early-{name}"
            measure(Dataset.open(early), first, settings, None)
            fresh, _ = measure(Dataset.open(whole), options.work / f"fresh-{name}", settings, None, shop)
            out = options.work / f"warm-{name}{options.tag}"
            warm, _ = measure(Dataset.open(whole), out, {**settings, **parse(options.warm)}, first, shop)
            if fresh["validation"][1] is not None:
                for run in (fresh, warm):
                    run["updates_to_fresh"] = reached_after(run, fresh)
            rows += [{**about, **fresh}, {**about, **warm}]
            show(rows[-2:])
    return rows


def parse(text: str) -> Row:
    return dict(pair.split("=", 1) for pair in text.split(",") if pair)


def show(rows: list[Row]) -> None:
    keys = ("algorithm", "week", "shop", "start", "epochs", "updates", "updates_to_best", "updates_to_fresh")
    for row in rows:
        best = max((figure for figure in row["validation"].values() if figure is not None), default=np.nan)
        print(
            {key: row[key] for key in keys if key in row},
            f"validation {best:.4f} test {row['test']['NDCG@10']:.4f} HR@10 {row['test']['HR@10']:.4f}",
            f"reward {row.get('reward', np.nan):.3f} {row['items'] or ''}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("weeks", "shop"))
    parser.add_argument("log", type=Path, nargs="?", help="weeks: RetailRocket's events")
    parser.add_argument("--work", type=Path, required=True, help="folder for datasets and runs; finished runs are kept")
    parser.add_argument("--json", type=Path, help="results file; its other rows are kept")
    parser.add_argument("--algorithms", default="sl")
    parser.add_argument("--weeks", default="12,13,14,15,16,17,18,19,20")
    parser.add_argument("--sample", type=float, default=1.0, help="weeks: share of the visitors")
    parser.add_argument("--world", default="demo")
    parser.add_argument("--seeds", default="10")
    parser.add_argument("--set", default="", help="settings of all runs: key=value,…")
    parser.add_argument("--warm", default="", help="settings of warm runs")
    parser.add_argument("--tag", default="", help="end of the names of warm runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = weeks(options) if options.mode == "weeks" else shops(options)
    if options.json is not None:
        save(options, rows)


def save(options: argparse.Namespace, rows: list[Row]) -> None:
    from evidence import read_results

    kept = read_results(options.json) if options.json.exists() else []
    used = {name: learner({"algorithm.name": name, **parse(options.set)}) for name in options.algorithms.split(",")}
    if options.mode == "shop":
        used[options.world] = world(options.world)
    else:
        used["protocol"] = protocol(**replace_protocol())
    used["arguments"] = script_arguments(options, "work", "json", "log")
    write_results(options.json, [*kept, *rows], used)


def replace_protocol() -> Row:
    from offrec.data.protocol import Protocol

    return replace(Protocol(), format="retailrocket", sessions="user", split="time").as_json()


if __name__ == "__main__":
    main()
