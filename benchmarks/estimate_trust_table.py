"""Summarise the rows of estimate_trust.py: tables for the evidence page, and the results file.

    python benchmarks/estimate_trust_table.py ROWS.jsonl --out results/estimates-trust.json

All rows are written next to the results file, as a compressed table.

An interval counts as right if it contains the ground truth, allowing for the standard error of the ground truth: both
halves of the interval are widened to √(half² + (1.96 error)²). The share of right intervals has a standard error that
is clustered by log.
"""

import argparse
import csv
import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import estimate_plan as plan
from evidence import world, write_results

NORMAL = 1.959964
Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in rows if row["estimator"] != "certify"]
    for row in rows:
        estimate, truth, error = row["estimate"], row["truth"], NORMAL * row["truth_error"]
        low, high = (np.inf if row[side] is None else abs(row[side] - estimate) for side in ("low", "high"))
        row["plain"] = estimate - low <= truth <= estimate + high
        row["right"] = estimate - np.hypot(low, error) <= truth <= estimate + np.hypot(high, error)
        row["distance"], row["width"] = estimate / truth - 1, (low + high) / 2 / truth
        row["trust"] = row["verdict"] == "trust"
    return rows


def clustered_share(rows: list[Row], key: str) -> tuple[float, float]:
    """Return the share of rows with a property, and its standard error over logs."""
    if not rows:
        return float("nan"), float("nan")
    share = float(np.mean([row[key] for row in rows]))
    logs: dict[Any, float] = {}
    for row in rows:
        log = (row["world"], row["seed"], row["log"])
        logs[log] = logs.get(log, 0.0) + row[key] - share
    return share, float(np.sqrt(sum(total**2 for total in logs.values())) / len(rows))


def summarise(rows: list[Row]) -> Row:
    trusted = [row for row in rows if row["trust"]]
    right, error = clustered_share(trusted, "right")
    covered, covered_error = clustered_share(rows, "right")
    bounded = [row["width"] for row in rows if np.isfinite(row["width"])]
    return {
        "estimates": len(rows),
        "logs": len({(row["world"], row["seed"], row["log"]) for row in rows}),
        "bias": float(np.mean([row["distance"] for row in rows])),
        "median_bias": float(np.median([row["distance"] for row in rows])),
        "coverage": covered,
        "coverage_error": covered_error,
        "half_width": float(np.median(bounded)) if bounded else None,
        "trusted": len(trusted),
        "trusted_right": right if trusted else None,
        "trusted_right_error": error if trusted else None,
        "trusted_right_plain": clustered_share(trusted, "plain")[0] if trusted else None,
        "trusted_logs": len({(row["world"], row["seed"], row["log"]) for row in trusted}),
    }


def grouped(rows: Iterable[Row], key: Callable[[Row], tuple[Any, ...]]) -> dict[str, Row]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {" · ".join(map(str, name)): summarise(groups[name]) for name in sorted(groups, key=str)}


def policies_trusted(rows: list[Row], estimator: str) -> dict[str, Any]:
    """Return the share of policies, per log, that are trusted at some blend of at least .3."""
    best: dict[tuple[Any, ...], bool] = {}
    for row in rows:
        if row["estimator"] == estimator and row["kind"] == "sessions":
            policy = (row["world"], row["seed"], row["log"], row["policy"])
            best[policy] = best.get(policy, False) or (row["trust"] and row["blend"] >= 0.3)
    names = plan.NEXT_ROUND
    by_policy = {name: float(np.mean([yes for key, yes in best.items() if key[3] == name])) for name in names}
    return {"policies": len(best), "share": float(np.mean(list(best.values()))), "by_policy": by_policy}


def table(groups: dict[str, Row]) -> str:
    lines = [
        "| group | estimates | median bias | coverage | half width | trusted | trusted and right |",
        "|---" * 7 + "|",
    ]
    for name, one in groups.items():
        width = "unbounded" if one["half_width"] is None else f"{one['half_width']:.1%}"
        right = f"{one['trusted_right']:.1%} ± {one['trusted_right_error']:.1%}" if one["trusted"] else "–"
        lines.append(
            f"| {name} | {one['estimates']} | {one['median_bias']:+.1%} | {one['coverage']:.1%} | {width} | "
            f"{one['trusted'] / one['estimates']:.0%} | {right} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = read_rows(arguments.rows)
    result: dict[str, Any] = {
        "shops": sorted({f"{row['world']} {row['seed']}" for row in rows}),
        "policies_trusted": policies_trusted(rows, "pick"),
    }
    for kind in ("sessions", "one step"):
        part = [row for row in rows if row["kind"] == kind]
        result[kind] = {
            "by_estimator": grouped(part, lambda row: (row["estimator"],)),
            "by_estimator_and_world": grouped(part, lambda row: (row["estimator"], row["world"])),
            "by_estimator_and_blend": grouped(part, lambda row: (row["estimator"], row["blend"])),
        }
        for name in ("by_estimator", "by_estimator_and_blend", "by_estimator_and_world"):
            print(f"\n{kind}, {name}\n\n{table(result[kind][name])}")
    print("\npolicies trusted at a blend of .3 or more:", result["policies_trusted"])
    if arguments.out:
        with gzip.open(arguments.out.with_suffix(".csv.gz"), "wt", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        command = (
            "python benchmarks/estimate_trust_logs.py LOGS; python benchmarks/estimate_trust.py LOGS --out ROWS; "
            "python benchmarks/estimate_trust_table.py ROWS --out results/estimates-trust.json"
        )
        write_results(arguments.out, result, {name: world(name) for name in plan.WORLDS}, command=command)


COLUMNS = ("world", "seed", "kind", "log", "policy", "blend", "estimator", "truth", "truth_error", "estimate", "low",
        "high", "effective", "tail", "contribution_tail", "bias", "bias_error", "mean_weight", "verdict")  # fmt: skip


if __name__ == "__main__":
    main()
