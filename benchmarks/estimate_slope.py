"""Compare the default estimator of served logs with SLOPE's choice, and measure weights of clusters there.

    python benchmarks/estimate_slope.py --out results/estimates-slope.json
    python benchmarks/estimate_slope.py --shops 12,13,20,21 --out results/estimates-slope-2.json
    python benchmarks/estimate_slope.py --table results/estimates-slope.json results/estimates-slope-2.json

Shops of `demo` that are used for tuning. The rounds are those of `estimate_trust_logs.py`: a served policy, logs of
5,000 sessions with exact propensities, and four policies of the next round, alone and blended. Clusters of items are
learned from the picks of the first log, or the shop's own categories. SLOPE orders the estimators by their standard
errors, and its intervals do not contain the bias of assumptions. `--table` prints the figures of all shops of files.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import estimate_plan as plan
from estimate_selection import assess_methods
from estimate_trust_logs import LOG_SEED, ROWS, Ratios, Truths, ground_truths, log_ratios
from evidence import read_results, world, write_results
from offrec.estimation.cluster_ratios import expected_of_cluster, list_cluster_log_prob
from offrec.estimation.estimators import session_terms
from offrec.estimation.interval import Interval, bootstrap_interval
from offrec.estimation.item_clusters import item_vectors
from offrec.estimation.list_ratios import inclusion, with_mean_1
from offrec.estimation.marginal import CLUSTERS, cluster_items
from offrec.estimation.trajectories import Trajectories, blended
from offrec.estimation.verdict import assess
from offrec.shop import Shop
from offrec.types import Sessions
from selection_methods import slope_choice
from served_rounds import Blend, PickPolicy, Sampled, ServedLog, logging_player, train, write_log

SHOPS, LOGS, RESAMPLES = (10, 11), 2, 200
NAMES = ("self_normalised", "order_free", "cascade", "pick")
CLUSTERED = ("marginal", "marginal_pick")
VISITORS = (4_000, 20_000)
OUT = Path(__file__).parent.parent / "results" / "estimates-slope.json"


@torch.no_grad()
def cluster_ratios(log: ServedLog, pi: PickPolicy, b: PickPolicy, cluster: Tensor) -> Ratios:
    """Return the log ratios of the clusters of lists and of picks."""
    is_pick = log.lists == log.item[:, None]
    place, parts = torch.where(is_pick.any(1), is_pick.int().argmax(1), -1), []
    for rows in torch.arange(len(log.item)).split(ROWS):
        shown, columns = log.lists[rows], []
        for policy in (pi, b):
            z = policy.logits(log.memory[rows])
            expected = expected_of_cluster(inclusion(z, shown.shape[1]), shown, cluster).log()
            at_pick = expected.gather(1, place[rows].clamp(min=0)[:, None])[:, 0]
            columns.append(torch.stack([list_cluster_log_prob(z, shown, cluster), at_pick]))
        parts.append(columns[0] - columns[1])
    of_lists, of_picks = torch.cat(parts, 1)
    picks = torch.where(place >= 0, of_picks, 0.0).numpy()
    return {"clusters": of_lists.numpy(), "pick_clusters": with_mean_1(picks)}


def learned_clusters(log: ServedLog, n_items: int) -> Tensor:
    """[A] clusters from the picks of each session, as `offrec estimate` learns them."""
    picked = (log.item < n_items).numpy()
    session = np.repeat(np.arange(len(log)), np.diff(log.offsets))[picked]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(session, minlength=len(log)))])
    items = log.item.numpy()[picked]
    sessions = Sessions(items.astype(np.int32), np.zeros(len(items), np.uint8), offsets.astype(np.int64))
    return cluster_items(torch.from_numpy(item_vectors(sessions, n_items)).float(), CLUSTERS)


def measure(log: ServedLog, ratios: Ratios, clusters: dict[str, Ratios], share: float, seed: int) -> dict[str, Any]:
    """Return the estimate of each estimator and the choice of SLOPE, for a blend."""
    parts = {name: one for name, one in ratios.items() if name not in ("lists", "log_b")}
    log_pi, log_b, zeros = ratios["lists"] + ratios["log_b"], ratios["log_b"], np.zeros(len(log.reward))
    row: dict[str, Any] = {}
    plain: dict[str, Interval] = {}
    for source, own in clusters.items():
        alone = Trajectories(log.offsets, log.reward, log_pi, log_b, rare_mass=zeros, log_ratios={**parts, **own})
        steps = blended(alone, share)
        for name in (*NAMES, *CLUSTERED):
            label = f"{name}, {source}" if name in CLUSTERED else name
            if label in row:
                continue
            one = assess(name, steps, seed=seed, resamples=RESAMPLES, breakdown=False)
            plain[label] = bootstrap_interval(session_terms(name, steps), seed=seed, resamples=RESAMPLES)
            ends = one.interval
            row[label] = {"estimate": ends.estimate, "low": ends.low, "high": ends.high, "verdict": one.verdict}
    started = time.process_time()
    for label, skipped in {"SLOPE": "categories", "SLOPE, no clusters": "marginal"}.items():
        names = sorted((name for name in plain if skipped not in name), key=lambda name: -plain[name].standard_error)
        chosen = names[slope_choice([plain[name] for name in names])]
        row[label] = {**row[chosen], "chosen": chosen}
    row["seconds"] = time.process_time() - started
    return row


@dataclass(frozen=True)
class Rounds:
    """A shop after two rounds: its first log, the served policy, and those of the next round with their values."""

    shop: Shop
    first: ServedLog
    served: PickPolicy
    policies: dict[str, PickPolicy]
    truth: Truths

    @staticmethod
    def run(seed: int) -> "Rounds":
        """Simulate the rounds of a shop of `demo`."""
        shop = Shop.open("demo", seed)
        items = shop.world.items
        first = write_log(shop, logging_player(shop), plan.FIRST_SESSIONS, LOG_SEED)
        served = train([first], items, {"served": plan.SERVED}, seed=0)["served"]
        second = write_log(shop, Sampled(shop, served), plan.SERVED_SESSIONS, LOG_SEED + 1)
        policies = train([first, second], items, plan.NEXT_ROUND, seed=1, served=served)
        blends = {f"{name}@{share}": Blend(one, share) for name, one in policies.items() for share in plan.BLENDS}
        return Rounds(shop, first, served, policies, ground_truths(shop, served, blends, VISITORS))

    def log(self, number: int) -> ServedLog:
        """Simulate a further log of the served policy."""
        return write_log(self.shop, Sampled(self.shop, self.served), plan.LOG_SESSIONS, LOG_SEED + 10 + number)


def measure_shop(seed: int) -> dict[str, Any]:
    """Return the estimates of all policies and blends of a shop."""
    rounds = Rounds.run(seed)
    shop, first, served, policies, truth = rounds.shop, rounds.first, rounds.served, rounds.policies, rounds.truth
    items = shop.world.items
    categories = shop.dynamics.items.category[:items].long()
    clusters = {"learned": learned_clusters(first, items), "categories": categories}
    rows = []
    for number in range(LOGS):
        log = rounds.log(number)
        ratios = log_ratios(log, policies, served)
        for name, policy in policies.items():
            own = {source: cluster_ratios(log, policy, served, one) for source, one in clusters.items()}
            for share in plan.BLENDS:
                value, error = truth[f"{name}@{share}"]
                about = {"log": number, "policy": name, "blend": share, "truth": value, "truth_error": error}
                rows.append({**about, "estimates": measure(log, ratios[name], own, share, number)})
        print(f"demo {seed}, log {number}: {time.process_time():.0f} CPU s", flush=True)
    return {"seed": seed, "served": truth["served"][0], "rows": rows}


def summarise(shops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return bias, error, coverage and half width by estimator and blend, and how well policies are chosen alone."""
    result = []
    labels = [name for name in shops[0]["rows"][0]["estimates"] if name != "seconds"]
    for share in plan.BLENDS:
        rows = [row for shop in shops for row in shop["rows"] if row["blend"] == share]
        truth = np.array([row["truth"] for row in rows])
        for name in labels:
            found = [row["estimates"][name] for row in rows]
            estimates, low, high = (np.array([one[key] for one in found]) for key in ("estimate", "low", "high"))
            margin = 1.96 * np.array([row["truth_error"] for row in rows])
            line = {
                "estimator": name,
                "blend": share,
                "estimates": len(rows),
                "median bias": float(np.median(estimates / truth - 1)),
                "relative error": float(np.sqrt(np.mean((estimates / truth - 1) ** 2))),
                "coverage": float(np.mean((low - margin <= truth) & (truth <= high + margin))),
                "half width": float(np.median((high - low) / 2 / truth)),
            }
            result.append({**line, **_choices(shops, share, name)})
    return result


def _choices(shops: list[dict[str, Any]], share: float, name: str) -> dict[str, float]:
    """Return the mean over logs of how well the policies are chosen."""
    found = []
    for shop in shops:
        for log in range(LOGS):
            rows = [
                {"truth": row["truth"], name: row["estimates"][name]["estimate"]}
                for row in shop["rows"]
                if (row["log"], row["blend"]) == (log, share)
            ]
            found.append(assess_methods(rows, shop["served"], (name,))[name])
    return {key: float(np.mean([one[key] for one in found])) for key in found[0]}


def table(summary: list[dict[str, Any]]) -> str:
    """Return Markdown: per blend the median bias, relative error, coverage and half width; then how well it chooses."""
    by_key = {(row["estimator"], row["blend"]): row for row in summary}
    lines = ["| estimator | " + " | ".join(f"{share:g}" for share in plan.BLENDS) + " | chooses |", "|---" * 5 + "|"]
    for name in dict.fromkeys(row["estimator"] for row in summary):
        rows = [by_key[name, share] for share in plan.BLENDS]
        cells = [
            f"{row['median bias']:+.1%}, {row['relative error']:.1%}, {row['coverage']:.0%}, {row['half width']:.1%}"
            for row in rows
        ]
        chosen = ", ".join(f"{rows[-1][key]:.2f}" for key in ("correlation", "share of the best", "SharpeRatio@3"))
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {chosen} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shops", default=",".join(map(str, SHOPS)), help="seeds of the shops")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these files, without a measurement")
    options = parser.parse_args()
    if options.table:
        print(table(summarise([shop for path in options.table for shop in read_results(path)["shops"]])))
        return
    torch.set_num_threads(1)
    shops = [measure_shop(seed) for seed in map(int, options.shops.split(","))]
    summary = summarise(shops)
    write_results(options.out, {"summary": summary, "shops": shops}, {"demo": world("demo")})
    print(table(summary))


if __name__ == "__main__":
    main()
