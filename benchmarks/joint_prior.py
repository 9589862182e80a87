"""Measure what shrinking the effects of items towards their joint distribution changes.

    python benchmarks/joint_prior.py RUN DATASET… [--visitors 3000] [--components 1,2,3] [--out FILE]

Each RUN is a user model that was fitted with `algorithm.item_prior=separate`, and each DATASET the log of the simulated
shop that it was fitted to: RUN DATASET RUN DATASET … Its effects are shrunk here, and both models serve the same
visitors. `--components` also measures mixtures with at most this many components: 1 is a single normal distribution.
"""

import argparse
import json
from copy import deepcopy
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import offrec
from earnings_plan import PLAN
from evidence import world, write_results
from offrec.data.dataset import Dataset
from offrec.data.list_log import read_lists
from offrec.models import joint_prior
from offrec.models.user_agent import UserModelAgent
from offrec.shop import Shop
from offrec.shop.rollout import mean_with_interval


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--visitors", type=int, default=3000)
    parser.add_argument("--components", default=str(joint_prior.COMPONENTS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, worlds = [], {}
    for run, data in zip(options.paths[::2], options.paths[1::2], strict=True):
        policy, dataset = offrec.load(run, "cpu"), Dataset.open(data)
        shop, fitted = Shop.from_meta(dataset.meta["shop"]), policy.agent
        PLAN.check_tuning([shop.seed])
        assert isinstance(fitted, UserModelAgent)
        cpu, memory = torch.device("cpu"), fitted.learner.memory
        train, validation = (read_lists(dataset, split, memory, 1, cpu) for split in ("train", "validation"))
        row: dict[str, Any] = {"world": shop.world.name, "seed": shop.seed, "visitors": options.visitors}
        before = shop.rollout(policy, options.visitors, seed=PLAN.visitors_seed)
        with torch.no_grad():
            row["separate"] = {
                "reward": before.reward.mean,
                "choice log-likelihood": fitted.choice_likelihood(validation),
            }
        for components in map(int, options.components.split(",")):
            joint_prior.COMPONENTS = components
            agent = deepcopy(fitted)
            agent._planner = None
            start = perf_counter()
            joint_prior.shrink_item_effects(agent, train)
            seconds = perf_counter() - start
            figures = agent.validate(validation, True, 0)
            policy.agent = agent
            after = shop.rollout(policy, options.visitors, seed=PLAN.visitors_seed)
            change = mean_with_interval(after.rewards - before.rewards)
            row[f"at most {components}"] = {
                "reward": after.reward.mean,
                "gain": change.mean,
                "half width of the gain": (change.high - change.low) / 2,
                "choice log-likelihood": figures["choice log-likelihood"],
                "seconds": round(seconds, 1),
            }
        rows.append(row)
        worlds[shop.world.name] = world(shop.world.name)
        print(json.dumps(row), flush=True)
    if options.out is not None:
        write_results(options.out, rows, worlds)


if __name__ == "__main__":
    main()
