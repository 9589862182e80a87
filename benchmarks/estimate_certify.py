"""Measure how often certified shares of the traffic hold: `offrec estimate --certify` compared with ground truth.

    python benchmarks/estimate_certify.py --out FILE --trust ROWS.jsonl        also summarise rows of estimate_trust.py
    python benchmarks/estimate_certify.py --out FILE --tiny 2 --calibration    a quick check

Tiny: soft-optimal policies in a world whose values are exact, so that the ground truth has no error. Each policy is
certified on each log alone, and all of them together (`boldest` and `best` of the family).

Shops: `estimate_trust.py` certifies every policy on every served log, with ratios of picks (rows with the estimator
"certify").

A certified share holds if the true reward of the blend is inside of its interval and above that of the policy that
served the log.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import estimate_plan as plan
from estimators_tiny import TEMPERATURES, Tiny
from evidence import script_arguments, world, write_results
from offrec.estimation.certify import Candidate, certify
from offrec.estimation.trajectories import Trajectories

TINY_SHOPS, TINY_SESSIONS, RESAMPLES = 5, 2000, 500
Row = dict[str, Any]


def describe(kind: str, policy: str | None, candidate: Candidate | None) -> Row:
    """Return a row about a certified candidate; without one, the share is None."""
    row: Row = {"kind": kind, "policy": policy, "share": None}
    if candidate is None or candidate.intervals is None:
        return row
    value, difference = candidate.intervals.value, candidate.intervals.difference
    return {**row, "share": candidate.share, "low": value.low, "high": value.high, "gain": difference.low}


def compare(row: Row, truth: float, served: float) -> Row:
    """Add the ground truth, and whether the certified statement holds."""
    holds = row["low"] <= truth <= row["high"] and truth > served
    return {**row, "truth": truth, "served": served, "holds": bool(holds), "worse": bool(truth <= served)}


def measure_tiny(seed: int, logs: int) -> list[Row]:
    """Certify soft-optimal policies in one tiny shop."""
    tiny, rows = Tiny.open(seed), []
    b = tiny.mdp.logging().numpy()
    policies, served = {name: tiny.policy(value) for name, value in TEMPERATURES.items()}, tiny.value(b)
    for number in range(logs):
        log = tiny.log(TINY_SESSIONS, 1000 + number)
        at = (log.state, log.item)
        steps = {
            name: Trajectories(log.offsets, log.reward, np.log(policy[at]), np.log(b[at]))
            for name, policy in policies.items()
        }
        found = []
        for name, one in steps.items():
            (alone,) = certify({name: one}, seed=number, resamples=RESAMPLES).policies
            found.append(describe("alone", name, alone.certified))
        family = certify(steps, seed=number, resamples=RESAMPLES)
        for kind, pair in (("boldest", family.boldest), ("best", family.best)):
            found.append(describe(kind, *((pair and (pair[0].name, pair[1])) or (None, None))))
        for row in found:
            row = {"world": "tiny", "seed": seed, "log": number, **row}
            if row["share"] is not None:
                blend = row["share"] * policies[row["policy"]] + (1 - row["share"]) * b
                row = compare(row, tiny.value(blend), served)
            rows.append(row)
    return rows


def read_shops(path: Path) -> list[Row]:
    """Return the certificates among the rows of estimate_trust.py."""
    rows = []
    for one in map(json.loads, path.read_text().splitlines()):
        if one["estimator"] == "certify":
            row = {key: one[key] for key in ("world", "seed", "log", "policy")}
            row |= {
                "kind": "alone",
                "truth_error": one["truth_error"],
                "share": one["blend"] if one["certified"] else None,
            }
            numbers = {key: one.get(key) for key in ("low", "high", "gain")}
            rows.append(compare({**row, **numbers}, one["truth"], one["served"]) if one["certified"] else row)
    return rows


def summarise(rows: list[Row]) -> list[Row]:
    """Count, by world and kind, certificates and how many of them hold, with a standard error clustered by log."""
    groups = defaultdict(list)
    for row in rows:
        for name in {row["world"], "tiny" if row["world"] == "tiny" else "all shops"}:
            groups[name, row["kind"]].append(row)
    return [_summary(name, kind, part) for (name, kind), part in sorted(groups.items())]


def _summary(name: str, kind: str, rows: list[Row]) -> Row:
    certified = [row for row in rows if row["share"] is not None]
    count = {
        "world": name,
        "kind": kind,
        "logs": len({(row["world"], row["seed"], row["log"]) for row in rows}),
        "policies": len(rows),
        "certified": len(certified),
    }
    if not certified:
        return count
    holds = float(np.mean([row["holds"] for row in certified]))
    by_log = defaultdict(list)
    for row in certified:
        by_log[row["world"], row["seed"], row["log"]].append(row["holds"] - holds)
    error = float(np.sqrt(sum(sum(part) ** 2 for part in by_log.values())) / len(certified))
    return {
        **count,
        "at_least_30_percent": sum(row["share"] >= 0.3 for row in certified),
        "mean_share": float(np.mean([row["share"] for row in certified])),
        "holds": holds,
        "holds_error": error,
        "below": sum(row["truth"] < row["low"] for row in certified),
        "above": sum(row["truth"] > row["high"] for row in certified),
        "clear_misses": sum(_is_clear_miss(row) for row in certified),
        "not_better_than_served": sum(row["worse"] for row in certified),
        "median_gain": float(np.median([row["truth"] / row["served"] - 1 for row in certified])),
    }


def _is_clear_miss(row: Row) -> bool:
    """Return whether the interval misses the ground truth by more than two standard errors of the ground truth."""
    margin = 2 * row.get("truth_error", 0.0)
    return bool(row["truth"] + margin < row["low"] or row["truth"] - margin > row["high"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", type=int, default=20, help="logs of each of the five tiny shops")
    parser.add_argument("--trust", type=Path, help="rows of estimate_trust.py")
    parser.add_argument("--calibration", action="store_true", help="calibration seeds instead of the reported ones")
    options = parser.parse_args()
    seeds = (plan.CALIBRATION_SEEDS if options.calibration else plan.REPORT_SEEDS)[:TINY_SHOPS]
    rows = [row for seed in seeds for row in measure_tiny(seed, options.tiny)] if options.tiny else []
    rows += read_shops(options.trust) if options.trust else []
    rows = [{key: _rounded(value) for key, value in row.items()} for row in rows]
    stamp = {name: world(name) for name in {row["world"] for row in rows}}
    stamp["arguments"] = script_arguments(options, "out", "trust")
    summary = summarise(rows)
    write_results(options.out, {"summary": summary, "certificates": rows}, stamp)
    for row in summary:
        print(row)


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
