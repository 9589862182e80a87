"""Measure which changes to the critic make learners earn more, on tuning shops.

    python benchmarks/critic_variants.py --out FILE.json [--worlds demo,stay,diverse] [--seeds 10] [--jobs 12]
    python benchmarks/critic_variants.py --table FILE.json

The log of each shop is simulated, each variant is trained on it, and its top k meet the same visitors, once as they are
and once without the visitor's last 8 picks. Variants are trained in the order of VARIANTS, so that a run with --limit
measures the first ones. None of the changes is part of offrec, so this script contains them (`VariantAgent`). It needs
torch, numpy and safetensors only.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from earnings_plan import PLAN
from evidence import learner, read_results, world, write_results
from offrec import losses
from offrec.algorithms import LossTerms, Symbols
from offrec.catalogue import Head, logsumexp
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.data.transitions import transitions
from offrec.models.agent import Agent
from offrec.policy import Policy
from offrec.runs import train as runs
from offrec.shop import Shop
from offrec.types import Batch
from shop_list_dataset import write_shop_list_dataset

PSEUDO_EVENTS = 20  # strength of the shrinkage of item statistics
SHOWN_ITEMS = 8  # largest number of ignored items per event


@dataclass(frozen=True)
class Variant:
    """A learner with a changed critic.

    Args:
        algorithm: The learner.
        settings: Its options, in addition to the defaults.
        shown: Train on the items that were shown and ignored in the same state, instead of sampled ones.
        value: Target of an unlogged item: that of an ignored item, or Q̄ of the item that was logged.
        item_start: Initialise the critic's item bias at the item's shrunk mean reward.
        item_reward: Let an unlogged item earn its shrunk mean reward, instead of 0.
        conservative: Weight of log Σ exp Q(s,·) − Q(s,a) (CQL).
    """

    algorithm: str
    settings: dict[str, Any] = field(default_factory=dict)
    shown: bool = False
    value: Literal["ignored", "logged"] = "ignored"
    item_start: bool = False
    item_reward: bool = False
    conservative: float = 0.0


VARIANTS = {
    "dqn": Variant("dqn"),
    "dqn, shown": Variant("dqn", shown=True),
    "dqn, shown, logged": Variant("dqn", shown=True, value="logged"),
    "dqn, logged": Variant("dqn", value="logged"),
    "dqn, γ 0": Variant("dqn", {"gamma": 0.0}),
    "dqn, start": Variant("dqn", item_start=True),
    "dqn, shown, weight 8": Variant("dqn", {"critic.ground_weight": 8.0}, shown=True),
    "dqn, shown, logged, weight 8": Variant("dqn", {"critic.ground_weight": 8.0}, shown=True, value="logged"),
    "dqn, item reward": Variant("dqn", item_reward=True),
    "dqn, conservative": Variant("dqn", conservative=0.05),
    "dqn, returns 1": Variant("dqn", {"critic.returns": 1.0}),
    "dqn, shown, γ 0": Variant("dqn", {"gamma": 0.0}, shown=True),
    "dqn, logged, weight .3": Variant("dqn", {"critic.ground_weight": 0.3}, value="logged"),
    "dqn, γ .3": Variant("dqn", {"gamma": 0.3}),
    "dqn, γ .6": Variant("dqn", {"gamma": 0.6}),
    "dc": Variant("dc"),
    "dc, shown": Variant("dc", shown=True),
    "dc, shown, logged": Variant("dc", shown=True, value="logged"),
    "dc, γ .5": Variant("dc", {"gamma": 0.5}),
    "sr": Variant("sr"),
    "sr, shown": Variant("sr", shown=True),
    "sr, shown, logged": Variant("sr", shown=True, value="logged"),
}


class VariantAgent(Agent):
    """An agent whose critic has the changes of a variant."""

    shown: Tensor
    item_means: Tensor

    def __init__(self, *given: Any, variant: Variant, dataset: Dataset, **more: Any) -> None:
        super().__init__(*given, **more)
        self.variant = variant
        self.register_buffer("shown", shown_and_ignored(dataset) if variant.shown else None, persistent=False)
        means = torch.tensor(item_statistics(dataset)["mean reward"], dtype=torch.float32) / self.facts.unit
        self.register_buffer("item_means", means, persistent=False)
        if variant.item_start and self.critic is not None and self.target is not None:
            with torch.no_grad():
                self.critic.bias.copy_(means)
                self.target.network.bias.copy_(means)

    def symbols(self, batch: Batch) -> Symbols:
        x, variant = super().symbols(batch), self.variant
        if variant.shown:
            items = self.shown[batch.event].long()
            weight = x.ground_weight * (items < self.n_items)
            items = items.clamp(max=self.n_items - 1)
            like = x.rewards[:, 1:2].expand_as(items)  # every unlogged item has the same reward and discount
            x = replace(x, actions=torch.cat([x.logged, items], 1), rewards=torch.cat([x.rewards[:, :1], like], 1))
            like = x.discounts[:, 1:2].expand_as(items)
            x = replace(x, discounts=torch.cat([x.discounts[:, :1], like], 1), ground_weight=weight)
        if variant.item_reward:
            rewards = x.rewards[:, 1:] + self.item_means[x.actions[:, 1:]]
            x = replace(x, rewards=torch.cat([x.rewards[:, :1], rewards], 1))
        if variant.value == "logged":
            value = x.target_q.at(x.logged).detach().expand(-1, x.actions.shape[1] - 1)
            x = replace(x, rewards=torch.cat([x.rewards[:, :1], value], 1))
            x = replace(x, discounts=torch.cat([x.discounts[:, :1], torch.zeros_like(value)], 1))
        self.last_symbols = x
        return x

    def loss(self, batch: Batch) -> LossTerms:
        terms = super().loss(batch)
        if self.variant.conservative > 0:
            x = self.last_symbols
            terms["conservative"] = self.variant.conservative * (logsumexp(x.q) - x.q.at(x.logged)[:, 0])
        return terms


def _grounded(errors: Tensor, weight: float | Tensor) -> Tensor:
    """Compute `losses.grounded` with a weight of each unlogged item, [B, n], as well."""
    if not isinstance(weight, Tensor):
        return GROUNDED(errors, weight)
    return errors[:, 0] + (weight * errors[:, 1:]).mean(1)


GROUNDED = losses.grounded
losses.grounded = _grounded  # every process imports this module once


def shown_and_ignored(dataset: Dataset) -> Tensor:
    """Return the items that were shown and not picked in the state before each training event, [E, SHOWN_ITEMS].

    A state has lists without a pick, and the list of its event. Lists after the last event of a session have no event.
    """
    sessions, lists = dataset.split("train"), dataset.split_decisions("train")
    assert lists is not None
    first, last = int(lists.offsets[0]), int(lists.offsets[-1])
    session = np.repeat(np.arange(len(sessions)), np.diff(lists.offsets))
    event = np.asarray(sessions.offsets)[session] + np.asarray(lists.positions[first:last])
    has_event = event < np.asarray(sessions.offsets)[session + 1]
    items = np.asarray(lists.items[first:last])[has_event]
    event, items = np.repeat(event[has_event], items.shape[1]), items.ravel()
    is_ignored = (items < dataset.n_items) & (items != np.asarray(sessions.items)[event])
    event, items = event[is_ignored], items[is_ignored]
    order = np.lexsort((np.random.default_rng(0).random(len(event)), event))
    event, items = event[order], items[order]
    rank = np.arange(len(event)) - np.searchsorted(event, event)
    shown = np.full((int(sessions.offsets[-1]), SHOWN_ITEMS), dataset.n_items, dtype=np.int32)
    chosen = rank < SHOWN_ITEMS
    shown[event[chosen], rank[chosen]] = items[chosen]
    return torch.from_numpy(shown)


class ItemScores(Policy):
    """Ranks items by fixed scores. The baselines of offrec need scipy, this does not."""

    def __init__(self, dataset: Dataset, name: str, scores: np.ndarray[Any, Any]) -> None:
        super().__init__(dataset.vocabulary, 50, torch.device("cpu"), dataset.meta["data_hash"])
        self.name, self.bias = name, torch.tensor(scores, dtype=torch.double)
        self.table = torch.zeros(len(scores), 0, dtype=torch.double)

    def head(self, batch: Batch) -> Head:
        return Head(torch.zeros(len(batch), 0, dtype=torch.double), self.table, self.bias)


def item_statistics(dataset: Dataset) -> dict[str, np.ndarray[Any, Any]]:
    """Return scores of items [A], shrunk towards means over all events; the baseline pick-rate is one of them."""
    train_split, lists = dataset.split("train"), dataset.split_decisions("train")
    assert lists is not None
    items = np.asarray(train_split.items[: train_split.events])
    mdp = transitions(train_split, event_rewards(dataset, {}), 0.9)
    picks = np.bincount(items, minlength=dataset.n_items)
    shows = np.bincount(np.asarray(lists.items[: len(lists)]).ravel(), minlength=dataset.n_items)

    def shrunk(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        total = np.bincount(items, weights=values, minlength=dataset.n_items)
        return (total + PSEUDO_EVENTS * values.mean()) / (picks + PSEUDO_EVENTS)

    rate = (picks + PSEUDO_EVENTS * picks.sum() / shows.sum()) / (shows + PSEUDO_EVENTS)
    reward, value = shrunk(mdp.reward), shrunk(mdp.return_to_go)
    none_share = float(np.mean(np.asarray(lists.event[: len(lists)]) < 0))
    return {
        "mean reward": reward,
        "mean return": value,
        "pick rate": rate,
        "pick rate × reward": rate * reward,
        "pick rate × (reward − mean)": rate * (reward - mdp.reward.mean()),
        "pick rate × (return − mean)": rate * (value - mdp.return_to_go.mean()),
        "pick rate × (reward − best list)": rate * (reward - best_list_reward(rate, reward, none_share, lists.k)),
    }


def best_list_reward(rate: Any, reward: Any, none_share: float, k: int) -> float:
    """Return the largest Σ rate · reward / (none + Σ rate) over all lists of k items (Dinkelbach's algorithm)."""
    best = 0.0
    while True:
        top = np.argsort(-rate * (reward - best), kind="stable")[:k]
        value = float((rate[top] * reward[top]).sum() / (none_share + rate[top].sum()))
        if value <= best:
            return best
        best = value


def make(folder: Path, name: str, seed: int, sessions: int) -> None:
    torch.set_num_threads(1)
    write_shop_list_dataset(Shop.open(name, seed), sessions, folder / f"{name}-{seed}")


def play(shop: Shop, policy: Policy | str, visitors: int) -> dict[str, float]:
    """Return the true reward per session, with and without the last picks."""
    skips = {"reward": 0} if isinstance(policy, str) else {"reward": 0, "reward_skip_8": 8}
    return {
        key: shop.rollout(policy, visitors, seed=PLAN.visitors_seed, skip_recent=skip).reward.mean
        for key, skip in skips.items()
    }


def measure_simple(folder: Path, name: str, seed: int, visitors: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    shop, dataset = Shop.open(name, seed), Dataset.open(folder / f"{name}-{seed}")
    policies: dict[str, Policy | str] = {"logging": "logging"}
    policies |= {label: ItemScores(dataset, label, scores) for label, scores in item_statistics(dataset).items()}
    return [
        {"world": name, "seed": seed, "variant": label, **play(shop, policy, visitors)}
        for label, policy in policies.items()
    ]


def measure(folder: Path, name: str, seed: int, label: str, visitors: int, more: dict[str, Any]) -> dict[str, Any]:
    """Train a variant and return what it earns."""
    torch.set_num_threads(1)
    started = time.time()
    shop, dataset = Shop.open(name, seed), Dataset.open(folder / f"{name}-{seed}")
    variant = VARIANTS[label]
    settings = {"diagnostics": "some", **variant.settings, **more}
    runs.Agent = partial(VariantAgent, variant=variant, dataset=dataset)
    with tempfile.TemporaryDirectory() as out:
        run = Path(out, "run")
        policy = runs.train(dataset, run, algorithm=variant.algorithm, settings=settings, console=Console(quiet=True))
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    result = {"world": name, "seed": seed, "variant": label, "algorithm": variant.algorithm, "settings": settings}
    result |= {"trained": time.time() - started, "last": last, **play(shop, policy, visitors)}
    return result | {"seconds": time.time() - started}


def table(results: list[dict[str, Any]]) -> str:
    """Format the mean over the shops of each world, as they are / without the last picks."""
    worlds = list(dict.fromkeys(result["world"] for result in results))
    lines = ["| variant | " + " | ".join(worlds) + " | mean |", "|---" * (len(worlds) + 2) + "|"]
    for variant in dict.fromkeys(result["variant"] for result in results):
        rows = [result for result in results if result["variant"] == variant]
        cells, means = [], []
        for name in worlds:
            here = [row for row in rows if row["world"] == name]
            if not here:
                cells.append("–")
                continue
            plain, skip = (fmean(row.get(key, row["reward"]) for row in here) for key in ("reward", "reward_skip_8"))
            means.append((plain, skip))
            cells.append(f"{plain:.2f} / {skip:.2f} ({len(here)})")
        complete = len(means) == len(worlds)
        mean = " / ".join(f"{fmean(part):.2f}" for part in zip(*means, strict=True)) if complete else "–"
        lines.append(f"| {variant} | " + " | ".join(cells) + f" | {mean} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the results in this file")
    parser.add_argument("--worlds", default="demo,stay,diverse")
    parser.add_argument("--seeds", default="10")
    parser.add_argument(
        "--variants", default="all", help="names separated by semicolons, or none for simple policies only"
    )
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--visitors", type=int, default=1500)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no training after this many seconds")
    parser.add_argument("--set", dest="more", action="append", default=[], help="KEY=VALUE for all variants")
    options = parser.parse_args()
    if options.table is not None:
        print(table(read_results(options.table)))
        return
    if options.out is None:
        parser.error("give --out or --table")
    started, results = time.time(), list[dict[str, Any]]()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    PLAN.check_tuning(seeds)
    shops = [(name, seed) for name in options.worlds.split(",") for seed in seeds]
    labels = {"all": list(VARIANTS), "none": []}.get(options.variants, options.variants.split(";"))
    more = dict(pair.split("=", 1) for pair in options.more)
    stamp = {
        label: learner({**VARIANTS[label].settings, **more}, "served", algorithm=VARIANTS[label].algorithm)
        for label in labels
    } | {name: world(name) for name, _ in shops}
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def store(rows: list[dict[str, Any]]) -> None:
        results.extend(rows)
        for row in rows:
            print(f"{time.time() - started:5.0f} s {row['world']}-{row['seed']} {row['variant']}", flush=True)
        write_results(options.out, results, stamp, device=device)

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        folder = Path(name)
        list(pool.map(make, *zip(*((folder, *shop, options.sessions) for shop in shops), strict=True)))
        pending = [
            pool.submit(measure, folder, *shop, label, options.visitors, more) for label in labels for shop in shops
        ]
        simple = [pool.submit(measure_simple, folder, *shop, options.visitors) for shop in shops]
        for done in as_completed([*pending, *simple]):
            if time.time() - started > options.limit:
                for task in pending:
                    task.cancel()
            if done.cancelled():
                continue
            if (error := done.exception()) is not None:
                print(f"failed: {error!r}", flush=True)
                continue
            rows = done.result()
            store(rows if isinstance(rows, list) else [rows])
    print(table(results))


if __name__ == "__main__":
    main()
