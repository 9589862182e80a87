"""Write the log of a simulated shop with its lists as a dataset folder, with numpy alone.

    dataset = write_shop_list_dataset(Shop.open("demo", 10), sessions=20_000, out=Path("data"))

The folder has the content that `offrec prepare --format decisions` writes for `full.parquet`, except that it has no
times and that sessions keep their order: the first 80 % are training. `shop_dataset.py` writes a log without lists.
`NumpyLogs` stores the logs and datasets of rounds in this way.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offrec.data import folder
from offrec.data.arrays import Arrays
from offrec.data.dataset import Dataset
from offrec.data.files import publish_folder
from offrec.data.protocol import Protocol
from offrec.rounds.logs import RoundLogs
from offrec.shop import Shop
from offrec.shop.log import ServedPolicy
from offrec.shop.players import Logging
from offrec.shop.recording import ListRecorder
from offrec.shop.rollout import Mean, Progress, mean_with_interval
from offrec.shop.visitors import BEHAVIOURS

SPLITS = (0.8, 0.9)  # training sessions end at the first, validation sessions at the second
SPLIT_SEED = 0  # of the order of the sessions of several rounds
Columns = dict[str, NDArray[Any]]  # one row per list, sorted by session and step


def write_shop_list_dataset(shop: Shop, sessions: int, out: Path) -> Dataset:
    """Simulate the logging policy and write events, lists and propensities as a dataset folder.

    Args:
        shop: The shop; its seed is also the seed of the visitors.
        sessions: The number of visitors.
        out: The folder to write.
    """
    # Visitors are independent and identically distributed, so a split by number is a random split.
    columns = simulate(shop, sessions, shop.seed)
    about = {**shop.as_json(), "sessions": sessions, "log_seed": shop.seed, "version": "benchmark"}
    write_dataset(columns, np.arange(shop.dynamics.items.n_items), about, out)
    return Dataset.open(out)


@torch.no_grad()
def simulate(
    shop: Shop, sessions: int, seed: int, served: ServedPolicy | None = None, progress: Progress | None = None
) -> Columns:
    """Return the lists of simulated sessions and what visitors did."""
    recorded = ListRecorder()
    player = Logging(shop.dynamics, recorded) if served is None else served.player(shop, recorded)
    shop.run_sessions(player, sessions, seed, recorded.watch, progress=progress)
    return _sort({name: torch.cat(parts).numpy() for name, parts in recorded.columns.items()})


def _sort(columns: Columns) -> Columns:
    order = np.lexsort((columns["step"], columns["session"]))
    return {name: values[order] for name, values in columns.items()}


def write_dataset(columns: Columns, item_ids: NDArray[np.int64], about: dict[str, Any], out: Path) -> None:
    """Write lists as a dataset folder.

    Args:
        columns: The lists; items are indices of `item_ids`, and every session from 0 to the last one has a list.
        item_ids: The catalogue.
        about: The description of the shop.
        out: The folder to write.
    """
    sessions = int(columns["session"][-1]) + 1
    is_event = columns["behaviour"] < len(BEHAVIOURS)
    events_before = np.concatenate([[0], np.cumsum(is_event)])
    lists = np.searchsorted(columns["session"], np.arange(sessions + 1))
    offsets = events_before[lists]
    arrays: Arrays = {
        "items": columns["item"][is_event].astype(np.int32),
        "behaviours": columns["behaviour"][is_event].astype(np.uint8),
        "offsets": offsets.astype(np.int64),
        "item_ids": item_ids.astype(np.int64),
        "decision_offsets": lists.astype(np.int64),
        "decision_positions": (events_before[:-1] - offsets[columns["session"]]).astype(np.int32),
        "decision_items": columns["offered"].astype(np.int32),
        "decision_log_propensity": np.log(columns["propensities"]).sum(1),
        "decision_event": np.where(is_event, events_before[:-1], -1).astype(np.int64),
    }
    edges = [0, *(round(share * sessions) for share in SPLITS), sessions]
    count, k = arrays["decision_items"].shape
    meta = {
        "counts": {"sessions": sessions, "events": len(arrays["items"]), "items": len(item_ids)},
        "behaviours": list(BEHAVIOURS),
        "item_id_type": "int",
        "protocol": Protocol(format="decisions").as_json(),
        "splits": {name: edges[i : i + 2] for i, name in enumerate(("train", "validation", "test"))},
        "decisions": {"count": count, "k": k, "notes": []},
        "shop": about,
    }
    folder.write(out, arrays, lambda: meta)


class NumpyLogs(RoundLogs):
    """Stores the logs of rounds as arrays, and prepares their datasets with numpy.

    As `offrec prepare` does, sessions are split at random. The catalogue grows with the logs.
    """

    def write(
        self,
        shop: Shop,
        sessions: int,
        out: Path,
        *,
        seed: int,
        served: ServedPolicy | None,
        first_session: int,
        progress: Progress,
    ) -> None:
        about = {**shop.as_json(), "sessions": sessions, "log_seed": seed, "version": "benchmark"}
        if served is not None:
            about["served"] = served.as_json()
        with publish_folder(out) as temporary:
            np.savez(temporary / "log.npz", **simulate(shop, sessions, seed, served, progress))
            (temporary / "log.json").write_text(json.dumps(about))

    def read(self, log: Path) -> tuple[Mean, int]:
        columns = _load(log)
        rewards = np.bincount(columns["session"], columns["reward"].astype(np.float64))
        return mean_with_interval(rewards), len(columns["session"])

    def prepare(self, logs: Sequence[Path], out: Path, catalogue: Path | None) -> None:
        abouts = [json.loads((log / "log.json").read_text()) for log in logs]
        about = {key: value for key, value in abouts[0].items() if all(one.get(key) == value for one in abouts)}
        if all("served" in one for one in abouts):
            about.setdefault("served", {})
        parts, sessions = [_load(log) for log in logs], 0
        for part in parts:
            part["session"] = part["session"] + sessions
            sessions = int(part["session"].max()) + 1
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        columns["session"] = np.random.default_rng(SPLIT_SEED).permutation(sessions)[columns["session"]]
        item_ids = np.unique(columns["offered"])
        if catalogue is not None:
            item_ids = np.union1d(item_ids, np.load(catalogue / "item_ids.npy"))
        columns["offered"] = np.searchsorted(item_ids, columns["offered"])
        columns["item"] = np.searchsorted(item_ids, columns["item"]).clip(max=len(item_ids) - 1)  # picks are offered
        write_dataset(_sort(columns), item_ids, about, out)


def _load(log: Path) -> Columns:
    with np.load(log / "log.npz", allow_pickle=False) as stored:
        return dict(stored)
