"""Simulate the served logs of `estimate_plan.py`, with the ratios of the next round's policies and ground truth.

    python benchmarks/estimate_trust_logs.py LOGS                       the reported shops
    python benchmarks/estimate_trust_logs.py LOGS --seeds 20-22         calibration shops, for setting limits

Needs torch and numpy alone. LOGS gets one file per log, which `estimate_trust.py` assesses; logs that it contains are
skipped. Nothing in these files depends on an estimator, an interval or a limit. `--limit` ends the simulation after
this many seconds.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import estimate_plan as plan
from offrec.catalogue.lists import position_log_probs
from offrec.estimation.list_ratios import inclusion_time, prefix_log_ratio, set_log_prob, with_mean_1
from offrec.estimation.trajectories import Trajectories
from offrec.shop import Shop
from offrec.shop.worlds import WORLDS
from offrec.types import Doubles
from served_rounds import (
    MAX_STEPS,
    Blend,
    PickPolicy,
    Sampled,
    ServedLog,
    logging_player,
    simulate_blends,
    train,
    write_log,
)

TRUTH_SEED, LOG_SEED = 1_000_000, 2_000_000
ROWS = 256  # decisions per batch, which then stay in the cache
TOLERANCE, MIN_MISSING = 1e-5, 1e-6  # of the number of included items; smallest probability of the other items
Ratios = dict[str, Doubles]
Truths = dict[str, tuple[float, float]]  # "policy@blend" → value per session and its standard error


@dataclass(frozen=True)
class SimulatedLog:
    """A served log, the log ratios of each policy, and the ground truth of its blends."""

    about: dict[str, Any]  # world, seed, kind, log, value of the served policy
    truth: Truths
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    reward: Doubles
    ratios: dict[str, Ratios]  # policy → weighting → [D]; "log_b" has the log propensities

    def trajectories(self, policy: str) -> Trajectories:
        """Return the trajectories of a policy alone."""
        own = self.ratios[policy]
        parts = {name: ratio for name, ratio in own.items() if name not in ("lists", "log_b")}
        zeros = np.zeros(len(self.reward))
        return Trajectories(
            self.offsets, self.reward, own["lists"] + own["log_b"], own["log_b"], rare_mass=zeros, log_ratios=parts
        )

    def save(self, path: Path) -> None:
        """Write the log to a temporary file, then rename it."""
        columns = {f"{policy}/{name}": values for policy, own in self.ratios.items() for name, values in own.items()}
        text = json.dumps({"about": self.about, "truth": self.truth})
        temporary = path.with_suffix(".part")
        with temporary.open("wb") as file:
            np.savez(file, text=np.array(text), offsets=self.offsets, reward=self.reward, **columns)
        os.replace(temporary, path)

    @staticmethod
    def load(path: Path) -> "SimulatedLog":
        """Read a log that `save` wrote."""
        with np.load(path) as file:
            text = json.loads(str(file["text"]))
            ratios: dict[str, Ratios] = {}
            for name in file.files:
                if "/" in name:
                    ratios.setdefault(name.split("/")[0], {})[name.split("/")[1]] = file[name]
            truth = {name: (value, error) for name, (value, error) in text["truth"].items()}
            return SimulatedLog(text["about"], truth, file["offsets"], file["reward"], ratios)


@torch.no_grad()
def log_ratios(log: ServedLog, policies: dict[str, PickPolicy], served: PickPolicy) -> dict[str, Ratios]:
    """Return, for each policy, the log ratios of each weighting and log b of the lists."""
    is_pick = log.lists == log.item[:, None]
    place = torch.where(is_pick.any(1), is_pick.int().argmax(1), -1)
    pick = torch.where(place >= 0, log.item, -1)
    b = ListParts.of(served, log, pick)
    result = {}
    for name, policy in policies.items():
        pi = ListParts.of(policy, log, pick)
        ratios = {
            "lists": pi.places.sum(1) - b.places.sum(1),
            "log_b": b.places.sum(1),
            "sets": pi.sets - b.sets,
            "prefixes": prefix_log_ratio(pi.places, b.places, place),
        }
        result[name] = {key: values.numpy() for key, values in ratios.items()}
        result[name]["picks"] = with_mean_1((pi.picks - b.picks).numpy())
    return result


@dataclass(frozen=True)
class ListParts:
    """Log-probabilities of logged lists under one policy, in double precision."""

    places: Tensor  # [D, k] of each item given the items before it
    sets: Tensor  # [D] of the list in any order
    picks: Tensor  # [D] of the pick being in the list; 0 if nothing was picked

    @staticmethod
    def of(policy: PickPolicy, log: ServedLog, pick: Tensor) -> "ListParts":
        """Pass over the catalogue in single precision; only sums over it and the logits of the lists are kept."""
        k, parts = log.lists.shape[1], []
        for rows in torch.arange(len(log.item)).split(ROWS):
            z, shown = policy.logits(log.memory[rows]), log.lists[rows]
            p = z.softmax(1)
            rate = p.gather(1, pick[rows].clamp(min=0)[:, None]).double()
            others = 1 - p.gather(1, shown).double().sum(1, keepdim=True)
            log_included = (-torch.expm1(-rate * inclusion_time(p, k, TOLERANCE).double())).log()
            parts.append(torch.cat([z.gather(1, shown).log_softmax(1).double(), others, log_included], 1))
        columns = torch.cat(parts)
        within, missing, included = columns[:, :k], columns[:, k], columns[:, k + 1]
        shown = within + torch.log1p(-missing)[:, None]  # log p of the items of the list
        others = missing.clamp(min=MIN_MISSING).log()
        picks = torch.where(pick >= 0, included, 0.0)
        return ListParts(position_log_probs(shown, others), set_log_prob(shown, others), picks)


def train_rounds(shop: Shop, scale: float) -> tuple[PickPolicy, dict[str, PickPolicy]]:
    """Return the served policy and the next round's policies of a shop."""
    items = shop.world.items
    first = write_log(shop, logging_player(shop), int(plan.FIRST_SESSIONS * scale), LOG_SEED)
    served = train([first], items, {"served": plan.SERVED}, seed=0)["served"]
    second = write_log(shop, Sampled(shop, served), int(plan.SERVED_SESSIONS * scale), LOG_SEED + 1)
    return served, train([first, second], items, plan.NEXT_ROUND, seed=1, served=served)


def ground_truths(
    shop: Shop, served: PickPolicy, blends: dict[str, Blend], visitors: tuple[int, int], max_steps: int = MAX_STEPS
) -> Truths:
    """Return the value per session of each blend and of "served", and its standard error.

    A value is that of the served policy, from many visitors, plus a difference over fewer, common visitors.
    """
    everyone = simulate_blends(shop, served, [Blend(served)], visitors[1], TRUTH_SEED, max_steps)[0]
    value, variance = float(everyone.mean()), float(everyone.var() / len(everyone))
    rewards = simulate_blends(shop, served, [Blend(served), *blends.values()], visitors[0], TRUTH_SEED + 1, max_steps)
    result = {"served": (value, variance**0.5)}
    for name, reward in zip(blends, rewards[1:], strict=True):
        difference = reward - rewards[0]
        paired = float((variance + difference.var() / len(difference)) ** 0.5)
        alone = float(reward.std() / len(reward) ** 0.5)
        if paired < alone:
            result[name] = (value + float(difference.mean()), paired)
        else:  # the policies are too different for common visitors to help
            result[name] = (float(reward.mean()), alone)
    return result


def simulate_shop(world: str, seed: int, options: argparse.Namespace) -> None:
    """Simulate one shop and write its logs."""
    size, shop = options.scale, Shop(WORLDS[world], seed)
    names = {number: f"{world}-{seed}-sessions-{number}" for number in range(options.logs)}
    last, with_one_step = f"{world}-{seed}-one-step", seed in plan.ONE_STEP_SEEDS
    expected = [*names.values(), *([f"{last}-{plan.LAST}"] if with_one_step else [])]
    if all((options.folder / f"{name}.npz").exists() for name in expected):
        return
    served, policies = train_rounds(shop, size)
    blends = {f"{name}@{share}": Blend(policy, share) for name, policy in policies.items() for share in plan.BLENDS}
    visitors = (int(size * plan.TRUTH_VISITORS), int(size * plan.SERVED_VISITORS))
    truth = ground_truths(shop, served, blends, visitors)
    about = {"world": world, "seed": seed, "kind": "sessions"}
    for number, name in names.items():
        if time.time() > options.end:
            return
        if not (options.folder / f"{name}.npz").exists():
            log = write_log(shop, Sampled(shop, served), int(plan.LOG_SESSIONS * size), LOG_SEED + 10 + number)
            ratios = log_ratios(log, policies, served)
            SimulatedLog({**about, "log": number}, truth, log.offsets, log.reward, ratios).save(
                options.folder / f"{name}.npz"
            )
    if with_one_step and time.time() < options.end:
        simulate_one_step(shop, served, policies, options, {**about, "kind": "one step"}, last)


def simulate_one_step(
    shop: Shop,
    served: PickPolicy,
    policies: dict[str, PickPolicy],
    options: argparse.Namespace,
    about: dict[str, Any],
    prefix: str,
) -> None:
    """Simulate sessions of one list: the served policy's log estimates another policy, and the other way round."""
    sessions, visitors = (int(options.scale * n) for n in (plan.ONE_STEP_SESSIONS, plan.ONE_STEP_VISITORS))
    truth = ground_truths(shop, served, {name: Blend(one) for name, one in policies.items()}, (visitors, visitors), 1)
    values = {f"{name}@1.0": value for name, value in truth.items()}
    for number, (name, server) in enumerate({"served": served, **policies}.items()):
        log = write_log(shop, Sampled(shop, server), sessions, LOG_SEED + 100 + number, 1)
        evaluated = policies if name == "served" else {"served": served}
        one = SimulatedLog(
            {**about, "log": name},
            {**values, "served": truth[name]},
            log.offsets,
            log.reward,
            log_ratios(log, evaluated, server),
        )
        one.save(options.folder / f"{prefix}-{name}.npz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", help="first and last seed of the shops, such as 20-21; default: the reported seeds")
    parser.add_argument("--worlds", default=",".join(plan.WORLDS))
    parser.add_argument("--logs", type=int, default=plan.LOGS_PER_SHOP)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all numbers of sessions, for a quick check")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no further log is simulated")
    options = parser.parse_args()
    options.end, seeds = time.time() + options.limit, plan.REPORT_SEEDS
    if options.seeds:
        first, last = map(int, options.seeds.split("-"))
        known = plan.CALIBRATION_SEEDS + plan.REPORT_SEEDS
        seeds = tuple(seed for seed in range(first, last + 1) if seed in known)
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for seed in seeds:
        for world in options.worlds.split(","):
            started = time.process_time()
            if time.time() < options.end:
                simulate_shop(world, seed, options)
                print(f"{world} {seed}: {time.process_time() - started:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
