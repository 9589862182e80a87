"""Write the log of a simulated shop with its lists as a dataset folder, with numpy alone.

    dataset = write_shop_list_dataset(Shop.open("demo", 10), sessions=20_000, out=Path("data"))

The folder has the content that `offrec prepare --format decisions` writes for `full.parquet`, except that it has no
times and that sessions keep their order: the first 80 % are training. `shop_dataset.py` writes a log without lists.
"""

from pathlib import Path

import numpy as np
import torch

from offrec.data import folder
from offrec.data.arrays import Arrays
from offrec.data.dataset import Dataset
from offrec.data.protocol import Protocol
from offrec.shop import Shop
from offrec.shop.players import Logging
from offrec.shop.recording import ListRecorder
from offrec.shop.rollout import MAX_STEPS, run_sessions
from offrec.shop.visitors import BEHAVIOURS

SPLITS = (0.8, 0.9)  # training sessions end at the first, validation sessions at the second


@torch.no_grad()
def write_shop_list_dataset(shop: Shop, sessions: int, out: Path) -> Dataset:
    """Simulate the logging policy and write events, lists and propensities as a dataset folder.

    Args:
        shop: The shop; its seed is also the seed of the visitors.
        sessions: The number of visitors.
        out: The folder to write.
    """
    recorded = ListRecorder()
    run_sessions(shop.dynamics, Logging(shop.dynamics, recorded), sessions, shop.seed, MAX_STEPS, recorded.watch)
    columns = {name: torch.cat(parts).numpy() for name, parts in recorded.columns.items()}
    # Visitors are independent and identically distributed, so a split by number is a random split.
    order = np.lexsort((columns["step"], columns["session"]))
    columns = {name: values[order] for name, values in columns.items()}
    is_event = columns["behaviour"] < len(BEHAVIOURS)
    events_before = np.concatenate([[0], np.cumsum(is_event)])
    lists = np.searchsorted(columns["session"], np.arange(sessions + 1))
    offsets = events_before[lists]
    n_items = shop.dynamics.items.n_items
    arrays: Arrays = {
        "items": columns["item"][is_event].astype(np.int32),
        "behaviours": columns["behaviour"][is_event].astype(np.uint8),
        "offsets": offsets.astype(np.int64),
        "item_ids": np.arange(n_items, dtype=np.int64),
        "decision_offsets": lists.astype(np.int64),
        "decision_positions": (events_before[:-1] - offsets[columns["session"]]).astype(np.int32),
        "decision_items": columns["offered"].astype(np.int32),
        "decision_log_propensity": np.log(columns["propensities"]).sum(1),
        "decision_event": np.where(is_event, events_before[:-1], -1).astype(np.int64),
    }
    edges = [0, *(round(share * sessions) for share in SPLITS), sessions]
    count, k = arrays["decision_items"].shape
    meta = {
        "counts": {"sessions": sessions, "events": len(arrays["items"]), "items": n_items},
        "behaviours": list(BEHAVIOURS),
        "item_id_type": "int",
        "protocol": Protocol(format="decisions").as_json(),
        "splits": {name: edges[i : i + 2] for i, name in enumerate(("train", "validation", "test"))},
        "decisions": {"count": count, "k": k, "notes": []},
        "shop": {**shop.as_json(), "sessions": sessions, "log_seed": shop.seed, "version": "benchmark"},
    }
    folder.write(out, arrays, lambda: meta)
    return Dataset.open(out)
