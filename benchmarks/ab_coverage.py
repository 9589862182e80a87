"""Measure how often the intervals of `offrec ab` miss the true difference if somebody looks after every session.

    python benchmarks/ab_coverage.py [--experiments 1000] [--sessions 40000] [--out results/ab-coverage.json]

Simulated tests with a share of 10 % or 50 % for the second policy. `clicks` are rewards of 0.2 per click; `purchases`
are rare (3 % of the sessions) and lognormal; `orders` (8 %, lognormal with a heavier tail) were not used to choose the
rule for the first look. Looks begin when `offrec ab` shows an interval. `missed` is the share of
tests in which some interval misses the true difference, `missed_one_look` the same for an ordinary 95 % interval.
`width_ratio` compares the lengths of both at the last session.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from evidence import script_arguments, write_results
from offrec.estimation.ab_test import has_enough_sessions
from offrec.estimation.confidence_sequence import asymptotic_confidence_sequence, boundary, difference_terms

ALPHA, ONE_LOOK = 0.05, 1.96
CHUNK = 50  # tests at once
PLANNED = 10_000
EFFECT = 0.1  # how much more the second policy earns, as a share
PURCHASES = {"purchases": (0.03, 0.7), "orders": (0.08, 1.3)}  # share of the sessions, and σ of the logarithm
MEANS = {"clicks": 0.1} | {kind: rate * math.exp(spread**2 / 2) for kind, (rate, spread) in PURCHASES.items()}


def rewards(kind: str, random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return the rewards of sessions."""
    if kind == "clicks":
        return 0.2 * random.poisson(0.5, shape)
    rate, spread = PURCHASES[kind]
    return np.where(random.random(shape) < rate, random.lognormal(0.0, spread, shape), 0.0)


def misses(kind: str, share: float, experiments: int, sessions: int, random: np.random.Generator) -> dict[str, Any]:
    """Run the tests of one setting."""
    missed, missed_one_look = 0, 0
    count = np.arange(1.0, sessions + 1)
    unit = boundary(count, ALPHA, PLANNED)
    for _ in range(experiments // CHUNK):
        treated = (random.random((CHUNK, sessions)) < share).astype(np.int64)
        outcome = rewards(kind, random, treated.shape) * (1 + EFFECT * treated)
        sequence = asymptotic_confidence_sequence(
            difference_terms(outcome, treated, np.full(outcome.shape, share)), ALPHA, PLANNED
        )
        is_late = has_enough_sessions(outcome, treated)
        error = np.abs(sequence.mean - EFFECT * MEANS[kind])
        missed += int(((error > sequence.radius) & is_late).any(1).sum())
        one_look = ONE_LOOK * sequence.radius / unit / np.sqrt(count)
        missed_one_look += int(((error > one_look) & is_late).any(1).sum())
    tests = experiments // CHUNK * CHUNK
    return {
        "rewards": kind,
        "share": share,
        "tests": tests,
        "missed": missed / tests,
        "missed_one_look": missed_one_look / tests,
        "width_ratio": round(float(unit[-1] * np.sqrt(sessions) / ONE_LOOK), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=40_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    random, rows = np.random.default_rng(0), []
    for kind in MEANS:
        for share in (0.1, 0.5):
            rows.append(misses(kind, share, args.experiments, args.sessions, random))
            print(rows[-1], flush=True)
    if args.out is not None:
        write_results(args.out, rows, {"script": script_arguments(args)})


if __name__ == "__main__":
    main()
