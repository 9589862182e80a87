"""Measure what baselines earn in the shops of results/learners-shops.json, with the same logs and the same visitors.

    python benchmarks/shop_baselines.py demo 0-4 --sessions 20000 --out results/baselines-shops.json
    python benchmarks/shop_baselines.py medium 0-4 --sessions 60000 --out results/baselines-shops.json

The logging policy is measured as well: its reward must equal the one in results/learners-shops.json. Results are added
to the file; those that it contains are not repeated.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import offrec
from evidence import baseline as baseline_options
from evidence import read_results, world, write_results
from offrec.shop import Shop, write_log
from shop_learners import VISITORS_SEED

VISITORS = 4000


def measure(shop: Shop, dataset: offrec.Dataset, name: str) -> dict[str, Any]:
    """Return the next-item metrics and the true reward of a policy."""
    started = time.time()
    own = name == "logging"
    policy: Any = name if own else offrec.baseline(name, dataset)
    metrics = {} if own else {"test": dict(offrec.evaluate(policy, dataset).metrics["all"].values)}
    reward = shop.rollout(policy, VISITORS, seed=VISITORS_SEED).reward
    seconds = time.time() - started
    return {
        "algorithm": name,
        **metrics,
        "reward": reward.mean,
        "low": reward.low,
        "high": reward.high,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world")
    parser.add_argument("seeds", help="FIRST-LAST")
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--baselines", default="logging,mean-reward,recent,vsknn")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    first, last = map(int, options.seeds.split("-"))
    results = read_results(options.out) if options.out.exists() else []
    made_with = {name: baseline_options(name) for name in options.baselines.split(",")}
    made_with |= {options.world: world(options.world)}
    present = {(result["dataset"], result["algorithm"]) for result in results}
    for seed in range(first, last + 1):
        name = f"{options.world}-{seed}"
        missing = [baseline for baseline in options.baselines.split(",") if (name, baseline) not in present]
        if not missing:
            continue
        shop = Shop.open(options.world, seed)
        with tempfile.TemporaryDirectory() as folder:
            write_log(shop, options.sessions, Path(folder, "log"), seed=seed)
            dataset = offrec.prepare(Path(folder, "log/events.parquet"), out=Path(folder, "data"))
            for baseline in missing:
                result = {"name": f"{name}-{baseline}", "dataset": name, **measure(shop, dataset, baseline)}
                results.append(result)
                print(f"{result['name']:24s} reward {result['reward']:.3f}", flush=True)
                write_results(options.out, results, made_with)


if __name__ == "__main__":
    main()
