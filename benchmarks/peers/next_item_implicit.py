"""Score `implicit`'s BM25 item-to-item model with recency weights on the test events. Needs requirements-implicit.txt.

    python next_item_implicit.py DATASET… --json FILE

K1, B and the recency weight are chosen by NDCG@10 on at most 2,000 validation events, out of 84 settings.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import scoring
from implicit.nearest_neighbours import BM25Recommender
from scipy.sparse import csr_matrix

K1, B, DECAY, NEIGHBOURS, VALIDATION = (
    (0.3, 1.2, 20.0),
    (0.0, 0.5, 0.75, 1.0),
    (0.2, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9),
    100,
    2_000,
)


def rows(events: scoring.Events, number: Any, decay: float) -> csr_matrix:
    """Return one row per event: the distinct items of the history with the weight decay^(steps back)."""
    indices, data, begins = [], [], [0]
    for one in number:
        weights: dict[int, float] = {}
        for step, item in enumerate(events.history(one)[::-1][:50].tolist()):
            weights.setdefault(item, decay**step)
        indices += weights.keys()
        data += weights.values()
        begins.append(len(indices))
    return csr_matrix((data, indices, begins), shape=(len(number), events.n_items))


def lists(model: BM25Recommender, events: scoring.Events, number: Any, decay: float) -> Any:
    """Return the 20 best items of each event."""
    result = np.full((len(number), scoring.LENGTH), -1, dtype=np.int64)
    for first in range(0, len(number), 5_000):
        part = rows(events, number[first : first + 5_000], decay)
        users = np.arange(part.shape[0])
        items, scores = model.recommend(users, part, N=scoring.LENGTH, filter_already_liked_items=False)
        result[first : first + len(users), : items.shape[1]] = np.where(scores > 0, items, -1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    records = []
    for folder in options.datasets:
        started = time.process_time()
        validation, test = (scoring.read_events(folder, split) for split in ("validation", "test"))
        sessions = scoring.train_sessions(folder)
        session = np.repeat(np.arange(len(sessions)), [len(one) for one in sessions])
        items = np.concatenate(sessions)
        counts = csr_matrix((np.ones(len(items)), (session, items)), shape=(len(sessions), test.n_items))
        sample = np.random.default_rng(0).permutation(len(validation.event))[:VALIDATION]
        best: tuple[Any, ...] = (-1.0,)
        for k1, b in itertools.product(K1, B):
            model = BM25Recommender(K=NEIGHBOURS, K1=k1, B=b, num_threads=1)
            model.fit(counts, show_progress=False)
            for decay in DECAY:
                found = lists(model, validation, sample, decay)
                figure = scoring.figures(scoring.ranks(found, validation.target[sample]))["NDCG@10"]
                if figure > best[0]:
                    best = figure, {"K1": k1, "B": b, "decay": decay}, model
        score = scoring.score(lists(best[2], test, np.arange(len(test.event)), best[1]["decay"]), test)
        seconds = round(time.process_time() - started, 1)
        records.append(
            {
                "dataset": folder.name,
                "method": "implicit BM25",
                "cpu_seconds": seconds,
                "chosen": best[1],
                "test": score,
            }
        )
        print(folder.name, score["all"], best[1], flush=True)
        options.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
