"""Write the log of a simulated shop as a dataset folder, with numpy alone.

    dataset = write_shop_dataset(Shop.open("demo", 10), sessions=20_000, out=Path("data"))

The folder is the one that `offrec shop` and `offrec prepare events.parquet` write, apart from descriptive entries of
dataset.json. It needs no polars, so that benchmarks also run on machines with numpy, torch and safetensors only.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from offrec.data import folder
from offrec.data.dataset import Dataset
from offrec.data.protocol import Protocol
from offrec.shop import Shop
from offrec.shop.players import Logging
from offrec.shop.recording import ListRecorder, times
from offrec.shop.rollout import MAX_STEPS, run_sessions
from offrec.shop.visitors import BEHAVIOURS


@torch.no_grad()
def write_shop_dataset(shop: Shop, sessions: int, out: Path, seed: int | None = None) -> Dataset:
    """Simulate the logging policy and write its picks as a dataset.

    Args:
        shop: The shop.
        sessions: The number of visitors.
        out: The folder; an existing one is replaced.
        seed: The seed of the visitors; by default the seed of the shop.
    """
    seed = shop.seed if seed is None else seed
    recorded = ListRecorder()
    run_sessions(shop.dynamics, Logging(shop.dynamics, recorded), sessions, seed, MAX_STEPS, recorded.watch)
    names = ("session", "step", "item", "behaviour")
    columns = {name: torch.cat(recorded.columns[name]).numpy() for name in names}
    order = np.lexsort((columns["step"], columns["session"]))
    columns = {name: values[order] for name, values in columns.items()}
    columns["time"] = times(columns["session"], columns["step"], seed)
    picked = columns["behaviour"] < len(BEHAVIOURS)
    columns = {name: values[picked] for name, values in columns.items()}
    arrays, about = _split(columns)
    about["shop"] = {**shop.as_json(), "sessions": sessions, "log_seed": seed, "version": "benchmark"}
    folder.write(out, arrays, lambda: about)
    return Dataset.open(out)


def _split(columns: dict[str, Any]) -> tuple[folder.Arrays, dict[str, Any]]:
    """Split sessions at random, as `offrec prepare` does by default; return arrays and the content of dataset.json."""
    protocol = Protocol()
    begins = np.flatnonzero(np.diff(columns["session"], prepend=-1))
    lengths, total = np.diff(begins, append=len(columns["session"])), len(begins)
    first, second = (round(total * part / 10) for part in (8, 9))
    shuffled = np.random.Generator(np.random.PCG64(protocol.split_seed)).permutation(total)
    group = np.zeros(total, np.uint8)
    group[shuffled[first:second]], group[shuffled[second:]] = 1, 2
    order = np.argsort(group, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(lengths[order])])
    events = np.repeat(begins[order] - offsets[:-1], lengths[order]) + np.arange(offsets[-1])
    ids, items = np.unique(columns["item"][events], return_inverse=True)
    codes, behaviour = np.unique(columns["behaviour"][events], return_inverse=True)
    behaviours = [BEHAVIOURS[code] for code in codes]
    arrays: folder.Arrays = {
        "items": items.astype(np.int32),
        "behaviours": behaviour.astype(np.uint8),
        "offsets": offsets.astype(np.int64),
        "times": 1000 * columns["time"][events].astype(np.int64),
        "item_ids": ids.astype(np.int64),
    }
    splits = {"train": [0, first], "validation": [first, second], "test": [second, total]}
    about = {
        "counts": {"sessions": total, "events": len(events), "items": len(ids)},
        "behaviours": behaviours,
        "splits": splits,
        "item_id_type": "int",
        "protocol": protocol.as_json(),
    }
    return arrays, about
