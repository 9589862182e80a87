"""Group the estimates of estimate_trust.py by the number of lists per session.

    python benchmarks/estimate_trust_horizon.py               simulates the sessions' lengths, a few minutes on one core

Reads results/estimates-trust.csv.gz, which has one row per log, policy, blend and estimator, but no lengths. The
served policy of each shop is therefore trained again and serves 1,000 sessions.
"""

import argparse
import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch

import estimate_plan as plan
from estimate_trust_logs import LOG_SEED
from estimate_trust_table import NORMAL, clustered_share
from evidence import world, write_results
from offrec.shop import Shop
from offrec.shop.worlds import WORLDS
from served_rounds import Sampled, logging_player, train, write_log

RESULTS = Path(__file__).parent.parent / "results"
SOURCE, OUT = RESULTS / "estimates-trust.csv.gz", RESULTS / "estimates-trust-horizon.json"
SESSIONS = 1_000
GROUPS = (("1", 0.0, 1.0), ("2 to 6", 1.0, 6.0), ("6 to 7", 6.0, 7.0), ("7 to 8", 7.0, 8.0), ("above 8", 8.0, np.inf))
NAMES = ("pick", "self_normalised", "importance", "order_free", "cascade")


def lists_per_session(name: str, seed: int) -> float:
    """Return the mean number of lists that the served policy of a shop shows per session."""
    shop = Shop(WORLDS[name], seed)
    first = write_log(shop, logging_player(shop), plan.FIRST_SESSIONS, LOG_SEED)
    served = train([first], shop.world.items, {"served": plan.SERVED}, seed=0)["served"]
    return write_log(shop, Sampled(shop, served), SESSIONS, LOG_SEED + 10).steps_per_session


def is_right(row: dict[str, str]) -> bool:
    """Return whether an interval contains the ground truth, allowing for its standard error."""
    estimate, truth, error = (float(row[key]) for key in ("estimate", "truth", "truth_error"))
    low, high = (abs(float(row[side]) - estimate) if row[side] else np.inf for side in ("low", "high"))
    return bool(estimate - np.hypot(low, NORMAL * error) <= truth <= estimate + np.hypot(high, NORMAL * error))


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return bias, coverage and how often trust holds."""
    trusted = [row for row in rows if row["verdict"] == "trust"]
    held, error = clustered_share(trusted, "right")
    return {
        "shops": len({(row["world"], row["seed"]) for row in rows}),
        "estimates": len(rows),
        "bias": float(np.median([float(row["estimate"]) / float(row["truth"]) - 1 for row in rows])),
        "coverage": clustered_share(rows, "right")[0],
        "trusted": len(trusted),
        "trust_holds": held if trusted else None,
        "trust_holds_error": error if trusted else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with gzip.open(SOURCE, "rt") as file:
        rows: list[dict[str, Any]] = [{**row, "right": is_right(row)} for row in csv.DictReader(file)]
    shops = sorted({(row["world"], row["seed"]) for row in rows})
    lengths = {shop: lists_per_session(shop[0], int(shop[1])) for shop in shops}
    result = []
    for name in NAMES:
        for label, above, limit in GROUPS:
            part = [
                row
                for row in rows
                if row["estimator"] == name
                and above < (1.0 if row["kind"] == "one step" else lengths[row["world"], row["seed"]]) <= limit
            ]
            if part:
                result.append({"lists": label, "estimator": name, **summarise(part)})
    named = {f"{name} {seed}": length for (name, seed), length in lengths.items()}
    write_results(options.out, {"lengths": named, "groups": result}, {name: world(name) for name in plan.WORLDS})
    print("| lists per session | estimator | shops | estimates | bias | coverage | trusted | trust holds |")
    print("|---" * 8 + "|")
    for row in result:
        holds = f"{row['trust_holds']:.1%} ± {row['trust_holds_error']:.1%}" if row["trusted"] else ""
        figures = f"{row['shops']} | {row['estimates']} | {row['bias']:+.1%} | {row['coverage']:.1%}"
        print(f"| {row['lists']} | {row['estimator']} | {figures} | {row['trusted']} | {holds} |")


if __name__ == "__main__":
    main()
