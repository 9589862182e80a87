"""Split a learner's next-item metrics by whether the item had already occurred in the session.

`public_logs.py seen` calls this for the studies of its table, seed 0, on test sessions.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrec.data.dataset import Dataset
from offrec.evaluation.metrics import ndcg
from offrec.reports import reading
from offrec.reports.reading import PolicyResults

KINDS = "first", "again", "before", "new"  # no item shown yet; the last item again; an earlier item; a new item
Row = dict[str, Any]


def kinds(items: Sequence[int], offsets: Sequence[int]) -> NDArray[np.int64]:
    """Return the kind of each event, an index into KINDS: [events]."""
    found: list[int] = []
    for start, end in pairwise(offsets):
        shown: list[int] = []
        for item in items[start:end]:
            found.append(0 if not shown else 1 if item == shown[-1] else 2 if item in shown else 3)
            shown.append(item)
    return np.array(found, dtype=np.int64)


def rows(datasets: Sequence[Path], folder: Path, studies: Sequence[str]) -> list[Row]:
    """Return NDCG@10 by kind of event per policy and behaviour, and counts per log and behaviour."""
    found: list[Row] = []
    for path in datasets:
        dataset, log = Dataset.open(path), path.resolve().name
        test = dataset.split("test")
        kind = kinds(test.items.tolist(), test.offsets.tolist())
        behaviour = test.behaviours[test.offsets[0] : test.offsets[-1]]
        several = dataset.behaviours if len(dataset.behaviours) > 1 else []
        chosen = {"all": behaviour >= 0} | {name: behaviour == n for n, name in enumerate(several)}
        for name, mine in chosen.items():
            counted = {one: int((kind[mine] == n).sum()) for n, one in enumerate(KINDS)}
            found.append({"log": log, "behaviour": name, "events": counted})
        for study in filter(Path.exists, (folder / f"{name}-{log}" for name in studies)):
            for entry in reading.read_studies([study]).compared:
                found += _of_policy(entry, kind, chosen)
    return found


def _of_policy(entry: PolicyResults, kind: NDArray[np.int64], chosen: dict[str, NDArray[np.bool_]]) -> list[Row]:
    result, group = entry.results[0], entry.group
    ranks = result.array("ranks").astype(np.int64)
    if result.run.seed or ranks.shape != kind.shape:
        raise SystemExit(f"{entry.study.folder}, {group.name}: not seed 0 on the test sessions of {group.log}.")
    gained = ndcg(ranks, 10)
    rows = []
    for name, mine in chosen.items():
        of_kind = {one: gained[mine & (kind == n)] for n, one in enumerate(KINDS)}
        means = {one: float(values.mean()) if len(values) else None for one, values in of_kind.items()}
        about = {"log": group.log, "policy": group.policy, "backbone": group.backbone, "preset": group.preset}
        rows.append({**about, "behaviour": name, "all": float(gained[mine].mean()), **means})
    return rows
