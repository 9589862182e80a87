"""Hide items of a simulated shop from training, and measure how well they are recommended by their features.

    python benchmarks/hidden_items.py --seeds 100,101,102 --out results/hidden-items.json

In each shop, a random 8 % of the items are hidden: their events are removed from training and validation sessions. The
test sessions keep them. SL is trained with and without item features, with and without hidden items. HR@20 is measured
for the test events of hidden items and of all other items; `first` counts only events whose item does not occur earlier
in the session, because an item of the history is easy to recommend again. `shown` is the share of hidden items in the
top 20. `bonus` repeats the measurement with other values of network.new_item_bonus.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence import baseline as baseline_option
from evidence import learner, script_arguments, world, write_results
from offrec.baselines import baseline
from offrec.catalogue import top_k
from offrec.console import Console
from offrec.data import folder
from offrec.data.dataset import Dataset
from offrec.data.item_files import ItemRows, encode_properties
from offrec.evaluation import ScoredEvents
from offrec.models.agent import Agent
from offrec.models.network import frozen_tables
from offrec.models.network_policy import NetworkPolicy
from offrec.policy import Policy
from offrec.runs.train import train
from offrec.shop import Shop
from offrec.shop.catalogue_table import item_table
from shop_dataset import write_shop_dataset

WORLD, SHARE, K = "demo", 0.08, 20
BONUSES = (0.0, 0.5, 0.75, 1.0)
SETTINGS: dict[str, Any] = {"network.width": 64}
VARIANTS: dict[str, tuple[bool, dict[str, Any]]] = {  # name → (whether items are hidden, settings)
    "features, hidden": (True, {}),
    "features, all": (False, {}),
    "no features, hidden": (True, {"network.features": "off"}),
    "no features, all": (False, {"network.features": "off"}),
    "features without dropout, hidden": (True, {"network.free_dropout": 0.0}),
}
COPIED = ("behaviours", "item_id_type", "protocol", "shop")  # entries of dataset.json that hiding does not change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="100,101,102", help="seeds of the shops")
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--variants", default=";".join(VARIANTS), help="names of variants, separated by semicolons")
    parser.add_argument("--free-dropout", type=float, help="another network.free_dropout for runs with features")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.variants.split(";")
    more = {} if options.free_dropout is None else {"network.free_dropout": options.free_dropout}
    settings = {name: {**SETTINGS, **more, **VARIANTS[name][1]} for name in names}
    stamps = {name: learner(one, algorithm="sl") for name, one in settings.items()}
    stamps |= {WORLD: world(WORLD), "content-neighbours": baseline_option("content-neighbours")}
    rows: list[dict[str, Any]] = []
    for seed in map(int, options.seeds.split(",")):
        with tempfile.TemporaryDirectory() as place:
            complete, hidden, is_hidden = write_datasets(seed, options.sessions, Path(place))
            content = baseline("content-neighbours", hidden)
            rows.append({"seed": seed, "policy": "content-neighbours", **measure(content, hidden, is_hidden)})
            print(rows[-1], flush=True)
            for name in names:
                dataset = hidden if VARIANTS[name][0] else complete
                policy = train(
                    dataset,
                    Path(place) / "run",
                    algorithm="sl",
                    settings=settings[name],
                    device="cpu",
                    force=True,
                    console=Console(quiet=True),
                )
                rows.append({"seed": seed, "policy": name, **measure(policy, dataset, is_hidden)})
                if name.startswith("features") and VARIANTS[name][0]:
                    rows[-1]["bonus"] = [
                        {"bonus": bonus, **measure(with_bonus(policy, bonus), dataset, is_hidden)} for bonus in BONUSES
                    ]
                print(rows[-1], flush=True)
                write_results(options.out, rows, stamps | {"arguments": script_arguments(options, "out")})


def write_datasets(seed: int, sessions: int, place: Path) -> tuple[Dataset, Dataset, np.ndarray]:
    """Write the log of a shop twice, complete and with hidden items. Also return [A] which items are hidden."""
    shop = Shop.open(WORLD, seed)
    log = write_shop_dataset(shop, sessions, place / "log")
    table = item_table(shop.dynamics.items, seed)
    rows = ItemRows("items.parquet", [str(item) for item in table["item"]], table.drop("item"))
    properties = encode_properties(rows, log.vocabulary)
    is_hidden = np.zeros(log.n_items, bool)
    is_hidden[np.random.default_rng(seed).permutation(log.n_items)[: round(SHARE * log.n_items)]] = True
    datasets = []
    for name, removed in (("complete", np.zeros_like(is_hidden)), ("hidden", is_hidden)):
        arrays, meta = without_items(log, removed)
        meta |= {key: log.meta[key] for key in COPIED} | {"item_properties": properties.as_json()}
        folder.write(place / name, arrays | dict(log.item_id_arrays) | properties.arrays(), lambda meta=meta: meta)
        datasets.append(Dataset.open(place / name))
    return datasets[0], datasets[1], is_hidden


def without_items(log: Dataset, removed: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Remove the events of items [A] from training and validation sessions, and sessions that become empty."""
    items, offsets = np.asarray(log.sessions.items), np.asarray(log.sessions.offsets)
    keep = ~removed[items]
    keep[offsets[log.meta["splits"]["test"][0]] :] = True
    before = np.concatenate([[0], np.cumsum(keep)])[offsets]
    lengths = np.diff(before)
    count = np.concatenate([[0], np.cumsum(lengths > 0)])
    arrays = {
        "items": items[keep],
        "behaviours": np.asarray(log.sessions.behaviours)[keep],
        "offsets": np.concatenate([[0], np.cumsum(lengths[lengths > 0])]),
    }
    splits = {name: [int(count[edge]) for edge in edges] for name, edges in log.meta["splits"].items()}
    counts = {"sessions": int(count[-1]), "events": int(keep.sum()), "items": log.n_items}
    return arrays, {"splits": splits, "counts": counts}


def with_bonus(policy: NetworkPolicy, bonus: float) -> NetworkPolicy:
    assert isinstance(policy.agent, Agent)
    policy.agent.options = replace(policy.agent.options, new_item_bonus=bonus)
    return policy


@torch.no_grad()
def measure(policy: Policy, dataset: Dataset, is_hidden: np.ndarray) -> dict[str, float]:
    """Return HR@20 of hidden and other items, and the share of hidden items in the top 20."""
    events = ScoredEvents.for_policy(policy, dataset, "test")
    agent = policy.agent if isinstance(policy, NetworkPolicy) else torch.nn.Module()
    with frozen_tables(agent):
        ranks = events.ranks(policy)
        shown = np.concatenate([is_hidden[top_k(policy.head(batch), K)[1].numpy()] for batch in events.batches()])
    items, offsets = np.asarray(dataset.sessions.items), np.asarray(dataset.sessions.offsets)
    session = np.searchsorted(offsets, ranks.event, side="right") - 1
    is_first = np.array(
        [items[event] not in items[offsets[one] : event] for event, one in zip(ranks.event, session, strict=True)]
    )
    hit, hidden = ranks.rank <= K, is_hidden[items[ranks.event]]
    return {
        "hidden": float(hit[hidden].mean()),
        "hidden_first": float(hit[hidden & is_first].mean()),
        "others": float(hit[~hidden].mean()),
        "others_first": float(hit[~hidden & is_first].mean()),
        "shown": float(shown.mean()),
        "hidden_events": int(hidden.sum()),
        "hidden_first_events": int((hidden & is_first).sum()),
    }


if __name__ == "__main__":
    main()
