"""Compare ways to choose a policy from a small log of picks: value@5, direct, the order of both, and BVFT.

    python benchmarks/estimate_selection.py --out results/estimates-selection.json

Shops of `demo` that are used for tuning, with 5,000 sessions each. The policies are baselines and briefly trained
learners; they show their top five. Q of each policy is fitted with three numbers of updates. BVFT either chooses one of
the three fits per policy, or lowers the estimate of the longest fit by its loss times the decisions per session
(pessimism). The true reward comes from a roll-out with the same visitors for all policies.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offrec
from evidence import estimate, learner, world, write_results
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.estimation import fitted_q, value_at_5
from offrec.estimation.collect import reward_trajectories
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimators import td_residual
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.mean_rank import order_by_mean_rank
from offrec.estimation.sharpe_ratio import sharpe_ratio
from offrec.policy import Policy
from offrec.shop import Shop
from selection_methods import bvft_losses
from shop_dataset import write_shop_dataset

SHOPS, SESSIONS, EPOCHS, VISITORS, VISITORS_SEED = (10, 11), 5_000, 3, 4_000, 1_000_000
BASELINES = ("popular", "recent", "markov", "item-neighbours", "mean-reward", "total-reward")
LEARNERS = ("sl", "dc", "sdac", "dqn")
UPDATES = (100, 300, 1000)
METHODS = ("value@5", "direct", "order", "BVFT chooses Q", "BVFT pessimism")
QUIET = Console(quiet=True)


def policies_of(dataset: Dataset, folder: Path) -> Iterator[tuple[str, Policy]]:
    """Yield the baselines and the trained policies."""
    settings = {"training.epochs": EPOCHS}
    for name in LEARNERS:
        yield name, offrec.train(dataset, folder / name, algorithm=name, device="cpu", settings=settings, console=QUIET)
    for name in BASELINES:
        yield name, offrec.baseline(name, dataset)


def timed(seconds: dict[str, float], name: str, function: Callable[[], Any]) -> Any:
    """Call a function and add its CPU seconds to the sum of its name."""
    started = time.process_time()
    result = function()
    seconds[name] = seconds.get(name, 0.0) + time.process_time() - started
    return result


def measure_policy(policy: Policy, dataset: Dataset, k: int, seconds: dict[str, float]) -> dict[str, Any]:
    """Return the figures of a policy: value@5, the direct estimate of each fit, and its BVFT loss."""
    rewards, test = event_rewards(dataset, {}), LoggedDecisions.load(dataset, "test")
    score = timed(
        seconds,
        "fit of value@5",
        lambda: value_at_5.scorer_for(dataset, "test", rewards, ValueOptions(), policy, QUIET),
    )
    figures: dict[str, Any] = {"value@5": timed(seconds, "value@5", lambda: score(policy))}
    steps, q, targets, estimates = reward_trajectories(test, rewards), [], [], []
    for updates in UPDATES:
        options = ValueOptions(updates=updates).with_history(policy.history)
        played = ListPolicy(policy, "topk", k)
        values = timed(
            seconds,
            f"fit of Q, {updates} updates",
            lambda options=options, played=played: fitted_q.fit_q(
                played, dataset, rewards, 1.0, options, QUIET, label="Q"
            ).values(test),
        )
        whole = replace(steps, q=values.q, v=values.v)
        estimates.append(float(np.mean(whole.start_values)))
        q.append(values.q)
        targets.append(td_residual(steps.reward, np.zeros_like(values.q), values.v, steps.step, 1.0))
    figures["direct by updates"] = estimates
    losses = timed(seconds, "BVFT", lambda: bvft_losses(q, targets))
    figures["BVFT losses"] = losses.tolist()
    figures["direct"] = estimates[-1]
    figures["BVFT chooses Q"] = estimates[int(losses.argmin())]
    figures["BVFT pessimism"] = estimates[-1] - float(losses[-1]) * float(np.mean(steps.lengths))
    return figures


def measure_shop(seed: int, folder: Path, seconds: dict[str, float]) -> dict[str, Any]:
    """Return the figures and the true reward of every policy of a shop."""
    shop = Shop.open("demo", seed)
    dataset = write_shop_dataset(shop, SESSIONS, folder / f"demo-{seed}")
    rows = []
    for name, policy in policies_of(dataset, folder / f"runs-{seed}"):
        truth = shop.rollout(policy, VISITORS, seed=VISITORS_SEED).reward
        figures = measure_policy(policy, dataset, shop.world.k, seconds)
        rows.append({"policy": name, "truth": truth.mean, **figures})
        print(seed, name, {key: rows[-1][key] for key in ("truth", "value@5", "direct")}, flush=True)
    places = order_by_mean_rank([row["value@5"] for row in rows], [row["direct"] for row in rows])
    for row, place in zip(rows, places, strict=True):
        row["order"] = -(place or len(rows))
    logged = shop.rollout("logging", VISITORS, seed=VISITORS_SEED).reward.mean
    return {"seed": seed, "logging": logged, "policies": rows, "methods": assess_methods(rows, logged, METHODS)}


def assess_methods(rows: list[dict[str, Any]], logged: float, methods: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return, for each method, how well it orders and chooses policies, by their true reward."""
    from scipy.stats import spearmanr

    truth, result = [row["truth"] for row in rows], {}
    for name in methods:
        values = [row[name] for row in rows]
        result[name] = {
            "correlation": float(spearmanr(values, truth).statistic),
            "share of the best": truth[int(np.argmax(values))] / max(truth),
            "SharpeRatio@3": sharpe_ratio(values, truth, logged, min(3, len(rows))),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        shops = [measure_shop(seed, Path(folder), seconds) for seed in SHOPS]
    made_with = {name: learner({"training.epochs": EPOCHS}, algorithm=name) for name in LEARNERS}
    content = {"sessions": SESSIONS, "updates": UPDATES, "cpu_seconds": seconds, "shops": shops}
    write_results(options.out, content, {**made_with, "demo": world("demo"), "fitted Q": estimate(updates=UPDATES[-1])})
    for shop in shops:
        for name, row in shop["methods"].items():
            print(shop["seed"], name, {key: round(value, 2) for key, value in row.items()})
    print({name: round(value, 1) for name, value in seconds.items()})


if __name__ == "__main__":
    main()
