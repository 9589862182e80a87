"""Measure log statistics of the shop's worlds, and what the shop's own planners earn in them.

    python benchmarks/worlds.py [--worlds demo,stay] [--seeds 10,11,12] [--visitors 1500] [--jobs 2] --out worlds.json

A world is accepted based on the planners alone, never based on which learner earns most:

    stay      informed earns at least 1.5 times what it earns with horizon 0
    diverse   informed earns at least 1.5 times what it earns without its posterior
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence import world as world_options
from evidence import write_results
from offrec.shop import Shop
from offrec.shop.informed import Informed
from offrec.shop.players import Logging
from offrec.shop.recording import ListRecorder
from offrec.shop.rollout import MAX_STEPS, run_sessions
from offrec.shop.visitors import BEHAVIOURS

WORLDS = "demo,stay,diverse,strong-logging,blind-logging,cascade"
LOGGED = 3000  # sessions of the log used for statistics
VISITORS_SEED = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=WORLDS)
    parser.add_argument("--seeds", default="10,11,12")
    parser.add_argument("--visitors", type=int, default=1500)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    shops = [(world, int(seed)) for world in options.worlds.split(",") for seed in options.seeds.split(",")]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(measure, shops, [options.visitors] * len(shops)))
    for row in rows:
        print(json.dumps(row))
    made_with = {world: world_options(world) for world in options.worlds.split(",")}
    write_results(options.out, {"visitors": options.visitors, "shops": rows}, made_with)


def measure(shop: tuple[str, int], visitors: int) -> dict[str, Any]:
    """Return statistics of a log, and the true reward per session of the shop's policies."""
    torch.set_num_threads(1)
    world, seed = shop
    store = Shop.open(world, seed)
    dynamics = store.dynamics
    policies = {
        "logging": "logging",
        "greedy": "greedy",
        "oracle": "oracle",
        "informed": "informed",
        "informed, horizon 0": Informed(dynamics, horizon=0),
        "informed, no posterior": Informed(dynamics, personal=False),
    }
    earned = {
        name: store.rollout(policy, visitors, seed=VISITORS_SEED).reward.as_json() for name, policy in policies.items()
    }
    return {"world": world, "seed": seed, "log": log_statistics(store), "reward": earned}


@torch.no_grad()
def log_statistics(store: Shop) -> dict[str, float]:
    recorded = ListRecorder()
    run_sessions(store.dynamics, Logging(store.dynamics, recorded), LOGGED, store.seed, MAX_STEPS, recorded.watch)
    columns = {name: torch.cat(parts).numpy() for name, parts in recorded.columns.items()}
    picked = columns["behaviour"] < len(BEHAVIOURS)
    picks = np.bincount(columns["session"][picked], minlength=LOGGED)
    counts = np.bincount(columns["behaviour"], minlength=len(BEHAVIOURS) + 1)
    pairs = np.stack([columns["session"][picked], columns["item"][picked]])
    return {
        "picks_median": float(np.median(picks)),
        "picks_90": float(np.quantile(picks, 0.9)),
        "picks_99": float(np.quantile(picks, 0.99)),
        "repeats": 1 - np.unique(pairs, axis=1).shape[1] / pairs.shape[1],
        "carts": float(counts[1] / counts[:3].sum()),
        "purchases": float(counts[2] / counts[:3].sum()),
        "lists_without_pick": float(counts[3] / counts.sum()),
    }


if __name__ == "__main__":
    main()
