"""Compare lists with and without an allow list of the server, at a million items.

    python benchmarks/serving_lists.py [--items 1000000] [--rounds 15] [--out FILE]

An engine with random weights (GRU, width 64) answers batches of queries. The allow list contains half of the
catalogue. Both kinds of batches alternate; `ratio` is the median over rounds of the CPU time with the list divided by
the time without it. `put_seconds` is the time to set the list from a JSON array, `first_use_seconds` the time until a
process that has not used it has the mask, `mask_bytes` the memory of the mask.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from evidence import script_arguments, write_results
from offrec.serving.engine import AllowedItems, Query
from offrec.serving.item_lists import ItemLists
from offrec.serving.served_policy import ServedPolicy, load_policy

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "serving"))
from random_runs import write_run


def seconds(served: ServedPolicy, rows: int, sample: bool, allowed: AllowedItems | None) -> float:
    """Return the CPU time of one batch, which depends little on other load."""
    random = np.random.default_rng(rows)
    temperature = 1.0 if sample else None
    queries = [
        Query(random.integers(0, served.policy.n_items, 10).tolist(), 20, temperature=temperature, allowed=allowed)
        for _ in range(rows)
    ]
    start = time.process_time()
    served.engine.rank(queries)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", list(range(args.items)), network_width=64, network_history=10)
        served, lists = load_policy("run", run, "cpu"), ItemLists(Path(folder) / "lists")
        body = json.dumps(list(range(0, args.items, 2))).encode()
        start = time.perf_counter()
        lists.put("half", body, is_json=True)
        middle = time.perf_counter()
        allowed = lists.allowed(served, ["half"], [])
        end = time.perf_counter()
    figures: dict[str, Any] = {
        "items": args.items,
        "body_bytes": len(body),
        "put_seconds": round(middle - start, 3),
        "first_use_seconds": round(end - middle, 3),
        "mask_bytes": allowed.bits.nbytes,
        "batches": [],
    }
    for rows, sample in ((1, False), (1, True), (32, False), (32, True)):
        pairs = [
            (seconds(served, rows, sample, None), seconds(served, rows, sample, allowed))
            for _ in range(args.rounds + 1)
        ][1:]
        figures["batches"].append(
            {
                "queries": rows,
                "sample": sample,
                "ms_without": round(1000 * median(without for without, _ in pairs), 2),
                "ms_with": round(1000 * median(with_list for _, with_list in pairs), 2),
                "ratio": round(median(with_list / without for without, with_list in pairs), 3),
            }
        )
        print(figures["batches"][-1], flush=True)
    print({key: value for key, value in figures.items() if key != "batches"})
    if args.out is not None:
        write_results(args.out, figures, {"script": script_arguments(args)})


if __name__ == "__main__":
    main()
