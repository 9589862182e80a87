"""Measure whether `critic.returns` must charge the logged return for its divergence from the prior.

    python benchmarks/critic_returns.py DATASETS --out FILE.json [--shops demo-10,demo-11,demo-12] [--jobs 16]

With `critic.returns` = λ the critic's target contains (1 − λ) V(s′) + λ G′. V contains the cost α KL(π‖prior) of every
later step; the logged return G′ does not. For DC and RE nothing is missing: the prior is π̂_b, and the logging policy
does not diverge from itself. For SDAC, SC and SR the prior is uniform, so three targets are compared:

    mixed     as in offrec: V with the cost, G′ without
    charged   G′ − α C′, where C′ is the discounted sum of log π̂_b(a|s) + log|A| over the later logged items
    free      V without the cost: E_π[Q̄]; the actor is regularised as before

DATASETS contains the prepared logs of shops, in folders WORLD-SEED. All policies of a shop meet the same visitors.
"""

import argparse
import json
import math
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offrec
from evidence import learner as learner_options
from evidence import world, write_results
from offrec import losses
from offrec.algorithms import LEARNERS, Needs, Symbols, register_learner
from offrec.algorithms.actor_critic import ActorCritic
from offrec.algorithms.dual_constraint import DualConstraint
from offrec.algorithms.supervised_regularisation import SupervisedRegularisation
from offrec.algorithms.symbols import LossTerms
from offrec.catalogue import reduce
from offrec.console import Console
from offrec.logging_policy import LoggingPolicy
from offrec.runs import train as runs
from offrec.runs.option_text import parse_settings
from offrec.shop.store import Shop
from shop_learners import VISITORS_SEED

VISITORS = 4000


class ChargedReturn(ActorCritic):
    """The logged return minus its cost. The buffer of log π̂_b contains the cost of the later items."""

    @property
    def needs(self) -> Needs:
        return replace(super().needs, logging="values")

    def critic(self, x: Symbols) -> torch.Tensor:
        return super().critic(replace(x, next_return_to_go=x.next_return_to_go - self.alpha * x.log_b))


class FreeValue(ActorCritic):
    """E_π[Q̄] in the targets."""

    def critic(self, x: Symbols) -> torch.Tensor:
        ignored = reduce(x.pi.detach(), [(1.0, x.target_q)]).mean if x.grounded else None
        return self.td_loss(x, x.rewards, reduce(x.next_pi, [(1.0, x.next_q)]).mean, ignored)


@dataclass(frozen=True)
class ChargedSDAC(ChargedReturn):
    pass


@dataclass(frozen=True)
class FreeSDAC(FreeValue):
    pass


@dataclass(frozen=True)
class ChargedSR(SupervisedRegularisation, ChargedReturn):
    pass


@dataclass(frozen=True)
class FreeSR(SupervisedRegularisation, FreeValue):
    pass


@dataclass(frozen=True)
class FreeDC(DualConstraint):
    def loss(self, x: Symbols) -> LossTerms:
        value = losses.soft_value(x.pi, x.q.detach(), self.alpha, x.b)
        ignored = reduce(x.pi.detach(), [(1.0, x.target_q)]).mean if x.grounded else None
        next_value = reduce(x.next_pi, [(1.0, x.next_q)]).mean
        return {"critic": self.td_loss(x, x.rewards, next_value, ignored), "actor": -value / self.alpha}


VARIANTS: dict[str, dict[str, Any]] = {
    "sdac": {"charged": ChargedSDAC, "free": FreeSDAC},
    "sr": {"charged": ChargedSR, "free": FreeSR},
    "dc": {"free": FreeDC},
}
for _name, _classes in VARIANTS.items():
    for _variant, _learner in _classes.items():
        register_learner(replace(LEARNERS[_name], name=f"{_name}-{_variant}", learner=_learner))


def cost_of_later_items(dataset: offrec.Dataset, log_b: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return the discounted cost after each event [E]: Σ γ^(j−1) (log π̂_b(a|s) + log|A|) of the items that follow."""
    cost = log_b.double().cpu().numpy() + math.log(dataset.n_items)
    offsets = np.asarray(dataset.split("train").offsets)
    later = np.zeros_like(cost)
    for start, stop in pairwise(offsets):
        for event in range(stop - 2, start - 1, -1):
            later[event] = cost[event + 1] + gamma * later[event + 1]
    return torch.from_numpy(later).to(log_b)


def charge_logging_policy() -> None:
    """Replace log π̂_b of the events by the cost of the later items, which the charged variants read."""
    load = runs._logging_policy

    def load_cost(plan: Any, console: Console, loaded: Any) -> LoggingPolicy:
        policy = load(plan, console, loaded)
        if policy.log_b is None:
            return policy
        return replace(policy, log_b=cost_of_later_items(plan.dataset, policy.log_b, plan.options.gamma))

    runs._logging_policy = load_cost


charge_logging_policy()  # every process imports this module once


def measure(job: tuple[Path, str, str, int, dict[str, Any]]) -> dict[str, Any]:
    folder, shop, learner, seed, given = job
    torch.set_num_threads(1)
    started = time.time()
    dataset = offrec.Dataset.open(folder / shop)
    settings: dict[str, Any] = {"diagnostics": "some", **given}
    with tempfile.TemporaryDirectory() as out:
        policy = offrec.train(
            dataset, Path(out, "run"), algorithm=learner, seed=seed, settings=settings, console=Console(quiet=True)
        )
        last = json.loads(Path(out, "run/metrics.jsonl").read_text().splitlines()[-1])
    cost = {}
    if learner.endswith("charged"):
        later = policy.agent.log_b
        later = later[~later.isnan()]
        facts = policy.agent.facts
        cost = {"mean_cost": float(policy.agent.learner.alpha * later.mean()), "unit": facts.unit}
    reward = Shop.from_meta(dataset.meta["shop"]).rollout(policy, VISITORS, seed=VISITORS_SEED).reward
    name, _, variant = learner.partition("-")
    row = {"shop": shop, "learner": name, "target": variant or "mixed", "seed": seed, **reward.as_json(), **cost}
    row |= {"last": last, "seconds": round(time.time() - started, 1)}
    print(json.dumps({key: value for key, value in row.items() if key != "last"}), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shops", default="demo-10,demo-11,demo-12")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="an option of the runs, as in `offrec train`")
    parser.add_argument("--only", default=",".join(VARIANTS), help="learners")
    parser.add_argument("--jobs", type=int, default=16)
    options = parser.parse_args()
    only = options.only.split(",")
    names = [f"{name}-{variant}" for name in only for variant in VARIANTS[name]]
    learners = [name for name in names if name.endswith("charged")]  # these fit π̂_b and take longest
    learners += [*only, *(name for name in names if name not in learners)]
    given = parse_settings(options.set)
    jobs = [
        (options.datasets, shop, learner, seed, given)
        for seed in range(options.seeds)
        for learner in learners
        for shop in options.shops.split(",")
    ]
    context = torch.multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        rows = list(pool.map(measure, jobs))
    made_with = {name: learner_options(given, algorithm=name) for name in only}
    made_with |= {shop.rsplit("-", 1)[0]: world(shop.rsplit("-", 1)[0]) for shop in options.shops.split(",")}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    write_results(options.out, rows, made_with, device=device)


if __name__ == "__main__":
    main()
