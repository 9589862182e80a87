"""Measure state-marginal weights on served logs, next to full products of the same ratios.

    python benchmarks/estimate_states.py                              shops 10, 11, 14 and 15, minutes on one core
    python benchmarks/estimate_states.py --table                      the table of results/estimates-states.json

Shops of `demo` that are used for tuning, with the rounds of `estimate_slope.py`: two logs of 5,000 sessions with exact
propensities, and four policies of the next round, alone and blended. The classes of `offrec estimate` were chosen on
the shops 10 and 11, after a look at 12 and 13. "One class" averages over all running sessions, "last 2" multiplies the
last two ratios, and "fixed means" is an interval whose resamples keep the means of the classes.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import estimate_plan as plan
from estimate_slope import LOGS, Rounds
from estimate_trust_logs import Ratios, log_ratios
from evidence import read_results, script_arguments, world, write_results
from offrec.estimation.estimators import ESTIMATORS, contributions, terms_of
from offrec.estimation.interval import Interval, bootstrap_interval
from offrec.estimation.state_classes import classify_states
from offrec.estimation.trajectories import Trajectories, blended
from offrec.estimation.verdict import assess
from served_rounds import ServedLog

SHOPS, RESAMPLES = (10, 11, 14, 15), 200
CHOSEN_ON = (10, 11)
NAMES = ("self_normalised", "state_marginal", "pick", "state_marginal_pick")
OUT = Path(__file__).parent.parent / "results" / "estimates-states.json"


def trajectories(log: ServedLog, ratios: Ratios, n_items: int) -> Trajectories:
    """Return the trajectories of a policy alone, with the classes of `offrec estimate`."""
    item = np.where(log.item.numpy() < n_items, log.item.numpy(), -1)
    return Trajectories(
        log.offsets,
        log.reward,
        ratios["lists"] + ratios["log_b"],
        ratios["log_b"],
        rare_mass=np.zeros(len(log.reward)),
        log_ratios={"picks": ratios["picks"]},
        state=classify_states(log.offsets, item, log.reward),
    )


def estimates(steps: Trajectories, seed: int) -> Iterator[tuple[str, Interval, str]]:
    """Yield the interval and the verdict of each estimator; for variants, the estimate alone."""
    for name in NAMES:
        one = assess(name, steps, seed=seed, resamples=RESAMPLES, breakdown=False)
        yield name, one.interval, one.verdict
    for name in ("state_marginal", "state_marginal_pick"):
        one_class = replace(steps, state=np.zeros(steps.decisions, np.int64))
        variants = {"one class": (one_class, 1), "last 2": (steps, 2)}
        for label, (given, last) in variants.items():
            terms = terms_of(replace(ESTIMATORS[name], last_ratios=last), given, 1.0, None)
            value = float(contributions(terms).mean())
            yield f"{name}, {label}", Interval(value, np.nan, np.nan, np.nan), ""
    for name in ("state_marginal", "state_marginal_pick"):  # what the bootstrap misses if it keeps the class means
        terms = terms_of(ESTIMATORS[name], steps, 1.0, None)
        fixed = replace(terms, splice=None, increment=None)
        yield f"{name}, fixed means", bootstrap_interval(fixed, seed=seed, resamples=RESAMPLES), ""


def measure_shop(seed: int) -> list[dict[str, Any]]:
    """Return one row per log, policy, blend and estimator."""
    rounds, rows = Rounds.run(seed), []
    for number in range(LOGS):
        log = rounds.log(number)
        for policy, ratios in log_ratios(log, rounds.policies, rounds.served).items():
            alone = trajectories(log, ratios, rounds.shop.world.items)
            for share in plan.BLENDS:
                truth, error = rounds.truth[f"{policy}@{share}"]
                about = {"seed": seed, "log": number, "policy": policy, "blend": share}
                for name, interval, verdict in estimates(blended(alone, share), number):
                    figures = {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
                    truths = {"truth": truth, "truth_error": error}
                    rows.append({**about, **truths, "estimator": name, **figures, "verdict": verdict})
        print(f"demo {seed}, log {number}", flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return Markdown: per blend the median bias, the relative error, the coverage and half of the median width."""
    lines = ["| estimator | " + " | ".join(f"{share:g}" for share in plan.BLENDS) + " |", "|---" * 4 + "|"]
    for name in dict.fromkeys(row["estimator"] for row in rows):
        cells = []
        for share in plan.BLENDS:
            part = [row for row in rows if (row["estimator"], row["blend"]) == (name, share)]
            estimate, low, high, truth, error = (
                np.array([np.nan if row[key] is None else row[key] for row in part], float)
                for key in ("estimate", "low", "high", "truth", "truth_error")
            )
            relative, margin = estimate / truth - 1, 1.96 * error
            cell = f"{np.median(relative):+.1%}, {np.sqrt(np.mean(relative**2)):.1%}"
            if not np.isnan(low).all():
                covered = np.mean((low - margin <= truth) & (truth <= high + margin))
                cell += f", {covered:.0%}, {np.median((high - low) / 2 / truth):.1%}"
            cells.append(cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shops", default=",".join(map(str, SHOPS)), help="seeds of the shops")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true", help="print the tables of --out, without a measurement")
    options = parser.parse_args()
    if not options.table:
        torch.set_num_threads(1)
        rows = [row for seed in map(int, options.shops.split(",")) for row in measure_shop(seed)]
        given = {"demo": world("demo"), "script": script_arguments(options, "table")}
        write_results(options.out, rows, given)
    rows = read_results(options.out)
    for label, part in (("chosen on", True), ("others", False)):
        chosen = [row for row in rows if (row["seed"] in CHOSEN_ON) is part]
        if chosen:
            print(f"Shops {sorted({row['seed'] for row in chosen})} ({label}):\n{table(chosen)}")


if __name__ == "__main__":
    main()
