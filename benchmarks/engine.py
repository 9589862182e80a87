"""Measure how many lists per second the engine of the server computes, without HTTP and the decision log.

    python benchmarks/engine.py [--items 1000000] [--batches 1,32,256,1024] [--seconds 0.5] [--json FILE]

SL with random weights (GRU, width 64), histories of 10 items, lists of 20, on a GPU if there is one. The policy has 50
neighbours per item, the default, or none. Needs torch, numpy, safetensors and, on a GPU, triton.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import scale
from evidence import learner, script_arguments, write_results
from offrec.data.dataset import Dataset
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.loading import pick_device
from offrec.runs.options import resolve_options
from offrec.runs.plan import plan_run
from offrec.runs.shared_data import SharedData
from offrec.runs.train import build_agent
from offrec.serving.engine import Engine, Query

HISTORY, LENGTH = 10, 20
KINDS = {"lists": (None, False), "lists and probabilities": (None, True), "sampled lists": (1.0, True)}
Row = dict[str, Any]


def make_engine(shared: SharedData, settings: Row, device: torch.device) -> Engine:
    """Return the engine of an untrained policy."""
    plan = plan_run(shared, resolve_options(settings, shared.dataset.protocol.format), device)
    torch.manual_seed(0)
    return Engine(NetworkPolicy("run", build_agent(plan, None, None), shared.dataset.vocabulary, device), seed=0)


def measure(engine: Engine, items: int, batches: list[int], seconds: float) -> Iterator[Row]:
    """Yield the median time of a batch for each kind of list and each size of a batch."""
    random = np.random.default_rng(0)
    for kind, (temperature, probabilities) in KINDS.items():
        for size in batches:
            spent: list[float] = []
            while sum(spent) < seconds or len(spent) < 5:  # the first batches compile kernels
                histories = random.integers(0, items, (size, HISTORY)).tolist()
                queries = [
                    Query(history, LENGTH, temperature=temperature, probabilities=probabilities)
                    for history in histories
                ]
                start = time.perf_counter()
                engine.rank(queries)
                spent.append(time.perf_counter() - start)
            median = statistics.median(spent[2:])
            yield {"lists": kind, "batch": size, "batch_ms": 1e3 * median, "requests_per_second": size / median}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--batches", default="1,32,256,1024")
    parser.add_argument("--seconds", type=float, default=0.5, help="time spent on each row of the result")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    device, rows, made_with = pick_device("auto"), list[Row](), {}
    with tempfile.TemporaryDirectory() as folder:
        shared = SharedData(Dataset.open(scale.random_dataset(Path(folder), options.items)))
        for neighbours in (50, 0):
            settings = {"algorithm.name": "sl", "network.width": 64, "algorithm.neighbours": neighbours}
            engine = make_engine(shared, settings, device)
            made_with[f"sl with {neighbours} neighbours"] = learner(settings)
            for row in measure(
                engine, options.items, [int(size) for size in options.batches.split(",")], options.seconds
            ):
                rows.append({"items": options.items, "neighbours": neighbours, **row})
                print(json.dumps(rows[-1]), flush=True)
    if options.json:
        write_results(options.json, rows, {**made_with, "script": script_arguments(options)}, device=device.type)


if __name__ == "__main__":
    main()
