"""Measure whether "trust" is right: estimates of the next round's policies compared with ground truth in shops.

    python benchmarks/estimate_trust_logs.py LOGS                      simulate the shops of estimate_plan.py
    python benchmarks/estimate_trust.py LOGS --out ROWS.jsonl          assess them
    python benchmarks/estimate_trust_table.py ROWS.jsonl               the tables of the evidence page

ROWS gets one line of JSON per log, policy, blend and estimator, and one per certificate, as soon as a log is assessed;
logs that it contains are skipped. One core takes about 5 seconds per log of 5,000 sessions.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import estimate_plan as plan
from estimate_trust_logs import SimulatedLog
from offrec.estimation.certify import certify
from offrec.estimation.trajectories import Trajectories, blended
from offrec.estimation.verdict import Assessment, assess

NAMES = ("importance", "self_normalised", "order_free", "cascade", "pick")
CERTIFY_RESAMPLES = 500


def summarise_assessment(one: Assessment) -> dict[str, Any]:
    support, interval = one.support, one.interval
    return {
        "estimate": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "error": interval.standard_error,
        "effective": support.effective_sessions,
        "effective_last": support.effective_sessions_by_step[-1] if support.effective_sessions_by_step else None,
        "tail": support.tail_shape,
        "contribution_tail": support.contribution_tail_shape,
        "mean_weight": support.mean_weight,
        "mean_weight_error": support.mean_weight_error,
        "bias": one.assumption_bias.bias,
        "bias_error": one.assumption_bias.standard_error,
        "largest": interval.largest_session_share,
        "verdict": one.verdict,
        "reasons": [reason.code for reason in one.reasons],
    }


def measure_log(log: SimulatedLog, names: tuple[str, ...], resamples: int) -> Iterator[dict[str, Any]]:
    """Yield one row per policy, blend and estimator, and one per certificate."""
    seed = log.about["log"] if log.about["kind"] == "sessions" else 0
    shares = plan.BLENDS if log.about["kind"] == "sessions" else (1.0,)
    about = {**log.about, "served": log.truth["served"][0], "sessions": len(log.offsets) - 1}
    for policy in log.ratios:
        alone = log.trajectories(policy)
        for share in shares:
            trajectories = blended(alone, share)
            for name in names:
                one = assess(name, trajectories, seed=seed, resamples=resamples, breakdown=False)
                row = {"policy": policy, "blend": share, "estimator": name, **summarise_assessment(one)}
                yield {**about, **_truth(log, policy, share), **row}
        if len(shares) > 1:
            row = {"policy": policy, **certificate(alone, seed, shares)}
            yield {**about, **_truth(log, policy, row["blend"]), **row}


def _truth(log: SimulatedLog, policy: str, share: float) -> dict[str, float]:
    value, error = log.truth[f"{policy}@{share}"]
    return {"truth": value, "truth_error": error}


def certificate(alone: Trajectories, seed: int, shares: Sequence[float]) -> dict[str, Any]:
    """Return the largest certified share of a policy, or the smallest share if none is certified."""
    (one,) = certify({"": alone}, estimator="pick", shares=shares, seed=seed, resamples=CERTIFY_RESAMPLES).policies
    trusted, certified = one.largest_trusted, one.certified
    row: dict[str, Any] = {"estimator": "certify", "blend": min(shares), "certified": certified is not None}
    row["trusted_share"] = None if trusted is None else trusted.share
    if certified is None or certified.intervals is None:
        return row
    value, difference = certified.intervals.value, certified.intervals.difference
    return {**row, "blend": certified.share, "low": value.low, "high": value.high, "gain": difference.low}


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Round numbers to six digits; infinite ones become None."""
    return {
        name: (float(f"{value:.6g}") if np.isfinite(value) else None) if isinstance(value, float) else value
        for name, value in row.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of estimate_trust_logs.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resamples", type=int, default=100)
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {_key(row) for row in map(json.loads, lines)}
    for path in sorted(options.folder.glob("*.npz")):
        log, started = SimulatedLog.load(path), time.process_time()
        if _key(log.about) not in done:
            rows = [json.dumps(_rounded(row)) for row in measure_log(log, NAMES, options.resamples)]
            with options.out.open("a") as file:
                file.write("".join(f"{row}\n" for row in rows))
            print(f"{path.stem}: {time.process_time() - started:.1f} CPU s", flush=True)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["world"], row["seed"], row["kind"], row["log"]


if __name__ == "__main__":
    main()
