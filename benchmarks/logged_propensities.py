"""Measure what PG earns with logged propensities, compared with the fitted π̂_b, in shops with lists of one item.

    python benchmarks/logged_propensities.py --out FILE.json [--seeds 10,11,12] [--sessions 800] [--visitors 4000]

The shops are `tiny` ones in which visitors may pick nothing (`none_utility` .5). π̂_b is then fitted to picks, so it
also contains the probability that a shown item is picked; logged propensities do not.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from earnings_plan import PLAN
from evidence import learner, world, write_results
from offrec.console import Console
from offrec.runs.train import train
from offrec.shop import WORLDS, Shop
from shop_list_dataset import write_shop_list_dataset

NONE_UTILITY = 0.5
SOURCES = ("fitted", "logged")
SETTINGS: dict[str, Any] = {"diagnostics": "some", "network.width": 8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="10,11,12,13,14,15,16,17,18,19")
    parser.add_argument("--sessions", type=int, default=800)
    parser.add_argument("--visitors", type=int, default=4000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    PLAN.check_tuning(seeds)
    stamp = {how: learner({**SETTINGS, "algorithm.logging": how}, "served", algorithm="pg") for how in SOURCES}
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        rows += measure(seed, options.sessions, options.visitors)
        write_results(options.out, rows, stamp | {"tiny": world("tiny")})


def measure(seed: int, sessions: int, visitors: int) -> list[dict[str, Any]]:
    """Return what PG earns with each source of π̂_b, sampled and by its top item."""
    shop = Shop(replace(WORLDS["tiny"], none_utility=NONE_UTILITY), seed)
    logging = shop.rollout("logging", visitors, seed=PLAN.visitors_seed).reward.mean
    rows: list[dict[str, Any]] = [{"seed": seed, "policy": "logging", "sample": logging}]
    with tempfile.TemporaryDirectory() as name:
        dataset = write_shop_list_dataset(shop, sessions, Path(name, "data"))
        for how in SOURCES:
            started = time.time()
            settings = {**SETTINGS, "algorithm.logging": how}
            out = Path(name, how)
            policy = train(dataset, out, algorithm="pg", device="cpu", settings=settings, console=Console(quiet=True))
            row: dict[str, Any] = {"seed": seed, "policy": how, "seconds": time.time() - started}
            for play in ("sample", "topk"):
                row[play] = shop.rollout(policy, visitors, play, seed=PLAN.visitors_seed).reward.mean
            rows.append(row)
            print(row, flush=True)
    return rows


if __name__ == "__main__":
    main()
