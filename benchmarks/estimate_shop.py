"""Measure how well estimates choose among policies trained in simulated shops, where the true reward is known.

    python benchmarks/estimate_shop.py DATASETS RUNS --out FOLDER [--jobs 8] [--visitors 4000] [--device auto]
    python benchmarks/estimate_shop.py DATASETS RUNS --out FOLDER --summary results/estimates.json

DATASETS contains prepared logs of shops. RUNS contains run folders at any depth; the data hash in run.json identifies
the log of each. A run is also evaluated on every other log of its shop with its catalogue (`offrec prepare
--catalogue`). These logs can have new visitors, lists of another length, or propensities. The first command writes
FOLDER/<run>.json and .npz for each run and skips existing ones; it needs only torch, numpy and safetensors.

The second command also needs scipy. It prints Spearman's correlation of each metric with the true reward (mean over
shops), and the true reward of the policy that the metric would choose, relative to the best one. It also prints how
often intervals cover the true reward, by verdict. One of the metrics is the negative mean rank by value@5 and direct.
The true reward comes from new visitors, the same for every policy of a shop, and is not discounted.

There are two ways to play a policy: `topk` shows the k best items, `sample` samples k items. Weights are of whole lists
if the log has propensities, and of single picks otherwise.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from evidence import estimate, read_results, trained, world, write_results

VISITORS_SEED = 1_000_000
GAMMA = 1.0
# Variants of fitted Q, compared by how well they choose.
VARIANTS: dict[str, dict[str, Any]] = {
    "direct": {},
    "direct, gamma 0.9": {"gamma": 0.9},
    "direct, ungrounded": {"ground": 0},
    "direct, patience 0.8": {"patience": 0.8},
}
ORDERED = ("value@5", "direct")


def logs_of(datasets: Path) -> list[Any]:
    import offrec

    opened = [offrec.Dataset.open(path.parent) for path in sorted(datasets.rglob("dataset.json"))]
    return [dataset for dataset in opened if "shop" in dataset.meta]


def runs_of(folder: Path, logs: list[Any]) -> dict[str, tuple[Path, Path]]:
    """Return name → (run, dataset) of every run, on its own log and on other logs of its shop."""
    from offrec.data.vocabulary import read_catalogue

    result = {}
    for path in sorted(folder.rglob("run.json")):
        run, facts = path.parent, json.loads(path.read_text())
        if not (run / "best.safetensors").exists():
            continue
        name, items = "__".join(run.relative_to(folder).parts), read_catalogue(run)
        for log in logs:
            own, shop = log.meta["data_hash"] == facts["data_hash"], log.meta["shop"]
            if own or (same_shop(shop, facts["shop"]) and log.vocabulary == items):
                result[name if own else f"{name}@{log.path.name}"] = (run, log.path)
    return result


def same_shop(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (one["world"], one["seed"]) == (other["world"], other["seed"])


def one(name: str, run: Path, data: Path, arguments: argparse.Namespace) -> None:
    import numpy as np
    import torch

    torch.set_num_threads(1)
    import offrec
    from offrec.estimation.logged_decisions import LoggedDecisions
    from offrec.shop.store import Shop

    started = time.time()
    dataset = offrec.Dataset.open(data)
    policy = offrec.load(run, arguments.device)
    shop = Shop.from_meta(dataset.meta["shop"], policy.device)
    own, figures = policy.data_hash == dataset.meta["data_hash"], {}
    if own:
        scored = offrec.evaluate(policy, dataset, "test").metrics["all"].values
        figures = {key: scored[key] for key in ("HR@5", "NDCG@10")} | {"value@5": value_at_5(policy, dataset)}
    settings = json.loads((run / "run.json").read_text())["options"]
    made_with = {name: trained(settings, dataset.protocol.format), shop.world.name: world(shop.world.name)}
    made_with["fitted Q"] = estimate(updates=arguments.updates, batch_size=arguments.batch_size)
    result: dict[str, Any] = {
        "name": name,
        "dataset": data.name,
        "algorithm": settings["algorithm.name"],
        "figures": figures,
        "plays": {},
    }
    arrays: dict[str, Any] = {}
    served = LoggedDecisions.load(dataset, "test").has_lists
    for play in arguments.plays.split(",") if policy.stochastic else ("topk",):
        if served != (play == "sample") and not arguments.every:
            continue
        truth = shop.rollout(policy, arguments.visitors, play=play, seed=VISITORS_SEED)
        steps, values, again, error = fit_variants(policy, dataset, play, shop.world.k, arguments)
        reward = truth.reward
        result["plays"][play] = {
            "truth": reward.mean,
            "low": reward.low,
            "high": reward.high,
            "direct": values,
            "refits": again,
            "propensity_error": error,
            "served": served,
        }
        columns = ("offsets", "reward", "log_pi", "log_b", "q", "v", "rare_mass")
        parts = {c: getattr(steps, c) for c in columns if getattr(steps, c) is not None}
        parts |= {f"log_ratios.{weighting}": ratio for weighting, ratio in steps.log_ratios.items()}
        arrays |= {f"{play}.{c}": part if c == "offsets" else part.astype(np.float32) for c, part in parts.items()}
    result["seconds"] = time.time() - started
    temporary = arguments.out / f".{name}.npz"
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    temporary.replace(arguments.out / f"{name}.npz")
    command = "python benchmarks/estimate_shop.py DATASETS RUNS --out FOLDER"
    write_results(arguments.out / f"{name}.json", result, made_with, command=command, device=policy.device.type)
    line = {
        play: (round(part["truth"], 2), round(part["direct"]["direct"], 2)) for play, part in result["plays"].items()
    }
    print(f"{name:40s} truth and direct {line}  {result['seconds']:.0f} s", flush=True)


def value_at_5(policy: Any, dataset: Any) -> float:
    """Compute the metric of --select value on all validation sessions."""
    from offrec.studies import value

    return value.compute_value_at_5(policy, dataset, {})


def fit_variants(policy: Any, dataset: Any, play: Any, k: int, arguments: argparse.Namespace) -> tuple[Any, ...]:
    """Return the trajectories, the direct values, the refits and the error of the propensities.

    The trajectories have Q and V of the first variant. Direct values are those of every variant; refits are those of
    the first variant.
    """
    from offrec.console import Console
    from offrec.data.rewards import event_rewards
    from offrec.estimation import fitted_q
    from offrec.estimation.collect import collect_trajectories, load_logging_model
    from offrec.estimation.decision_values import ValueOptions
    from offrec.estimation.list_policy import ListPolicy
    from offrec.estimation.logged_decisions import LoggedDecisions
    from offrec.models.network import NetworkOptions
    from offrec.training.loop import TrainingOptions

    quiet, rewards, decisions = (
        Console(quiet=True),
        event_rewards(dataset, {}),
        LoggedDecisions.load(dataset, "test"),
    )
    base = ValueOptions(updates=arguments.updates, batch_size=arguments.batch_size, capture=not arguments.no_capture)
    network = NetworkOptions(width=base.network.width, history=policy.history)
    logging = load_logging_model(dataset, network, TrainingOptions(), policy.device, quiet)
    weighed = ListPolicy(policy, play, decisions.k if play == "sample" else k)
    steps = collect_trajectories(weighed, LoggedDecisions.load(dataset, "test"), rewards, logging, with_clusters=True)
    played, values = ListPolicy(policy, play, k), {}

    def direct(options: Any, gamma: float, resample: int | None = None) -> Any:
        critic = fitted_q.fit_q(played, dataset, rewards, gamma, options, quiet, resample_seed=resample)
        result = critic.values(decisions)
        whole = replace(steps, q=result.q, v=result.v)
        return whole, float(whole.start_values.mean())

    for label, change in list(VARIANTS.items())[: arguments.variants]:
        if decisions.has_lists and label != "direct" and "gamma" not in change:
            continue
        critic = replace(base.critic, ground=change.get("ground", base.critic.ground))
        options = replace(base, critic=critic, patience=change.get("patience", base.patience))
        whole, values[label] = direct(options, change.get("gamma", GAMMA))
        steps = whole if label == "direct" else steps
    again = [direct(replace(base, seed=n), GAMMA, n)[1] for n in range(1, arguments.refits + 1)]
    return steps, values, again, logging.calibration.get("calibration_error")


def spearman(a: list[float], b: list[float]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


def summary(arguments: argparse.Namespace) -> None:
    """Write and print how well each metric chooses policies, and the coverage of the intervals."""
    files = sorted(arguments.out.glob("*.json"))
    rows = [read_results(path) for path in files]
    table: list[dict[str, Any]] = []
    for row in rows:
        for play, part in row["plays"].items():
            estimates = {**row["figures"], **part["direct"]}
            table.append(
                {**row, **part, "play": play, "estimates": estimates, "covered": assessed(row, part, play, arguments)}
            )
            for name, result in table[-1]["covered"].items():
                if name != "direct":
                    estimates[name] = result["estimate"]
    result: dict[str, Any] = {"policies": len(rows), "choice": [], "coverage": coverage(table)}
    for play in ("topk", "sample"):
        selected = ordered([row for row in table if row["play"] == play])
        for name in dict.fromkeys(name for row in selected for name in row["estimates"]):
            result["choice"].append({"play": play, "figure": name, **chosen(selected, name)})
    content = {**result, "rows": [without_details(row) for row in table]}
    write_results(arguments.summary, content, {}, made_from=files)
    for row in result["choice"]:
        shops = " ".join(f"{value:.2f}" for value in row["by_shop"].values())
        what = f"{row['play']:7s} {row['figure']:26s} policies {row['policies']:3d}"
        shares = " ".join(f"{value:.2f}" for value in row["share_by_shop"].values())
        print(
            f"{what}  correlation {row['correlation']:6.3f} ({shops})  picked {row['share']:.3f} ({shares}) of the best"
        )
    for row in result["coverage"]:
        print(row)


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the negative mean rank of two metrics within a shop, if both exist."""
    from offrec.estimation.mean_rank import order_by_mean_rank

    result, missing = [], float("nan")
    for shop in dict.fromkeys(row["dataset"] for row in rows):
        selected = [row for row in rows if row["dataset"] == shop]
        places = order_by_mean_rank(*([row["estimates"].get(name, missing) for row in selected] for name in ORDERED))
        for row, place in zip(selected, places, strict=True):
            order = {} if place is None else {" and ".join(ORDERED): -place}
            result.append({**row, "estimates": row["estimates"] | order})
    return result


def chosen(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Average the rank correlation and the chosen policy's relative reward over shops."""
    selected = [row for row in rows if name in row["estimates"]]
    shops: dict[str, list[dict[str, Any]]] = {}
    for row in selected:
        shops.setdefault(row["dataset"], []).append(row)
    several = {shop: part for shop, part in shops.items() if len(part) > 2}
    by_shop = {s: spearman([r["estimates"][name] for r in p], [r["truth"] for r in p]) for s, p in several.items()}
    shares = {
        shop: max(part, key=lambda r: r["estimates"][name])["truth"] / max(r["truth"] for r in part)
        for shop, part in several.items()
    }
    count = max(1, len(several))
    return {"policies": len(selected), "correlation": sum(by_shop.values()) / count,
            "share": sum(shares.values()) / count, "by_shop": by_shop, "share_by_shop": shares}  # fmt: skip


def assessed(row: dict[str, Any], part: dict[str, Any], play: str, arguments: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from offrec.estimation.options import available_estimators
    from offrec.estimation.trajectories import Trajectories
    from offrec.estimation.verdict import assess

    stored = np.load(arguments.out / f"{row['name']}.npz")
    selected = {key.partition(".")[2]: stored[key] for key in stored.files if key.startswith(f"{play}.")}
    steps = Trajectories(
        **{key: part if key == "offsets" else part.astype(np.float64) for key, part in selected.items()}
    )
    refits = np.array(part["refits"]) if len(part["refits"]) > 1 else None
    result = {}
    for name in available_estimators(steps):
        one = assess(
            name,
            steps,
            gamma=GAMMA,
            refits=refits if name == "direct" else None,
            propensity_error=part["propensity_error"],
        )
        around = one.interval
        result[name] = {"estimate": around.estimate, "low": around.low, "high": around.high, "verdict": one.verdict,
                       "withheld": one.is_withheld, "reason": one.reason,
                       "covers": around.low <= part["truth"] <= around.high}  # fmt: skip
    return result


def coverage(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how often an interval contains the true reward, by play, estimator and verdict."""
    count: dict[tuple[str, str, str], list[bool]] = {}
    for row in table:
        for name, result in row["covered"].items():
            count.setdefault((row["play"], name, result["verdict"]), []).append(bool(result["covers"]))
    return [
        {"play": play, "estimator": name, "verdict": verdict, "policies": len(hits), "covered": sum(hits) / len(hits)}
        for (play, name, verdict), hits in sorted(count.items())
    ]


def without_details(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("name", "dataset", "algorithm", "play", "truth", "estimates", "covered")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--visitors", type=int, default=4000)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--refits", type=int, default=4)
    parser.add_argument("--variants", type=int, default=len(VARIANTS), help="number of fitted Q's variants")
    parser.add_argument("--plays", default="topk,sample")
    parser.add_argument(
        "--every", action="store_true", help="both plays on every log; else topk on picks, sample on lists"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-capture", action="store_true", help="do not use CUDA graphs in fitted Q")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no run after this many seconds")
    parser.add_argument("--summary", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.summary is not None:
        summary(arguments)
        return
    result = runs_of(arguments.runs, logs_of(arguments.datasets))
    if arguments.one is not None:
        one(arguments.one, *result[arguments.one], arguments)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    waiting = [name for name in result if not (arguments.out / f"{name}.json").exists()]
    print(f"{len(result)} runs, {len(waiting)} to evaluate", flush=True)
    running: list[subprocess.Popen[bytes]] = []
    started = time.time()
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < arguments.jobs and time.time() - started < arguments.limit:
            running.append(subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--one", waiting.pop(0)]))
        if not running:
            break
        time.sleep(0.2)


if __name__ == "__main__":
    main()
