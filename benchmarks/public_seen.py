"""Where a learner's next-item figures come from: items that the session had shown, and new ones. For
`public_logs.py seen`, which reads FOLDER/strong-* and paper-*, seed 0, test sessions."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrec.data.dataset import Dataset
from offrec.evaluation.metrics import ndcg
from offrec.studies import reading

KINDS = "first", "again", "before", "new"  # nothing shown yet; the item shown last; one shown earlier; none of these
Row = dict[str, Any]


def kinds(items: Sequence[int], offsets: Sequence[int]) -> NDArray[np.int64]:
    """[events] of the sessions in `offsets`, index into KINDS of each."""
    found: list[int] = []
    for start, end in pairwise(offsets):
        shown: list[int] = []
        for item in items[start:end]:
            found.append(0 if not shown else 1 if item == shown[-1] else 2 if item in shown else 3)
            shown.append(item)
    return np.array(found, dtype=np.int64)


def rows(datasets: Sequence[Path], folder: Path) -> list[Row]:
    """NDCG@10 by kind of event, a row a policy; and a row a log with how many of each there are."""
    found: list[Row] = []
    for path in datasets:
        dataset = Dataset.open(path)
        test = dataset.split("test")
        kind = kinds(test.items.tolist(), test.offsets.tolist())
        log = path.resolve().name
        found.append({"log": log, "events": {name: int((kind == n).sum()) for n, name in enumerate(KINDS)}})
        for study in sorted(path for kind in ("strong", "paper") for path in folder.glob(f"{kind}-*-{log}")):
            for entry in reading.read([study]).compared:
                ranks = entry.results[0].array("ranks").astype(np.int64)
                if entry.results[0].run.seed or ranks.shape != kind.shape:
                    raise SystemExit(f"{study}, {entry.group.name}: not seed 0 on the test sessions of {path}.")
                gained = ndcg(ranks, 10)
                means = {name: float(gained[kind == n].mean()) for n, name in enumerate(KINDS)}
                row = {
                    "log": log,
                    "policy": entry.group.policy,
                    "backbone": entry.group.backbone,
                    "preset": entry.group.preset,
                }
                found.append(row | {"all": float(gained.mean()), **means})
    return found
