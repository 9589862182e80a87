"""Measure the time and memory of importance weights over a large catalogue.

    python benchmarks/estimate.py [--items 1000000] [--events 100000] [--judged 100000] [--width 64] [--threads 2]
                                  [--device cpu] [--fitted-q UPDATES]

The log is random. The policy and π̂_b are networks with random weights, which take the same time as trained ones.
`--judged` limits the number of evaluated events; the reported time covers these events. `--fitted-q` also runs this
many updates of fitted Q.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 10  # events a session


def dataset_of(folder: Path, items: int, events: int, judged: int) -> Any:
    from offrec.data.dataset import Dataset
    from offrec.data.folder import write
    from offrec.data.protocol import Protocol

    random = np.random.default_rng(0)
    sessions, test = events // LENGTH, max(1, judged // LENGTH)
    picks = np.minimum(random.zipf(1.2, sessions * LENGTH) - 1, items - 1).astype(np.int32)
    arrays = {
        "items": picks,
        "behaviours": (random.random(len(picks)) < 0.05).astype(np.uint8),
        "offsets": np.arange(sessions + 1, dtype=np.int64) * LENGTH,
        "item_ids": np.arange(items, dtype=np.int64),
    }
    first = sessions - test
    meta = {
        "counts": {"sessions": sessions, "events": len(picks), "items": items},
        "behaviours": ["view", "buy"],
        "item_id_type": "int",
        "protocol": Protocol().as_json(),
        "splits": {"train": [0, max(1, first)], "validation": [first, first], "test": [first, sessions]},
    }
    write(folder, arrays, lambda: meta)
    return Dataset.open(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--judged", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fitted-q", type=int, default=0)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    from offrec.console import Console
    from offrec.data.rewards import event_rewards
    from offrec.estimation import fitted_q
    from offrec.estimation.collect import LoggingModel, collect_trajectories
    from offrec.estimation.decision_values import ValueOptions
    from offrec.estimation.list_policy import ListPolicy
    from offrec.estimation.logged_decisions import LoggedDecisions
    from offrec.models.agent import Agent
    from offrec.models.network import Network, NetworkOptions
    from offrec.models.network_policy import NetworkPolicy
    from offrec.runs.loading import pick_device
    from offrec.runs.options import build_options

    device = pick_device(arguments.device)
    with tempfile.TemporaryDirectory() as folder:
        dataset = dataset_of(Path(folder), arguments.items, arguments.events, arguments.judged)
        network = NetworkOptions(width=arguments.width)
        learner = build_options({"algorithm.name": "sl"}).learner
        policy = NetworkPolicy(
            "sl/gru", Agent(arguments.items, learner, network), dataset.vocabulary, device, "a-benchmark"
        )
        logging = LoggingModel(Network(arguments.items, network).to(device).eval().requires_grad_(False), None, {})
        rewards = event_rewards(dataset, {})
        with Console().counter("weights") as at:
            started, computed = time.perf_counter(), time.process_time()
            steps = collect_trajectories(
                ListPolicy(policy),
                LoggedDecisions.load(dataset, "test"),
                rewards,
                logging,
                batch_size=arguments.batch_size,
                progress=at,
            )
            seconds, computed = time.perf_counter() - started, time.process_time() - computed
        result = {
            "items": arguments.items,
            "events": arguments.events,
            "judged": steps.decisions,
            "width": arguments.width,
            "threads": arguments.threads,
            "device": str(device),
            "seconds": round(seconds, 1),
            "processor_seconds": round(computed, 1),  # CPU time of all threads, which depends least on other load
            "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        }
        if arguments.fitted_q:
            started = time.perf_counter()
            options = ValueOptions(
                updates=arguments.fitted_q, network=NetworkOptions(width=arguments.width, dropout=0.1)
            )
            fitted_q.fit_q(ListPolicy(policy), dataset, rewards, 1.0, options, Console())
            result |= {"updates": arguments.fitted_q, "fitted_q_seconds": round(time.perf_counter() - started, 1)}
            if device.type == "cuda":
                result["gpu_gb"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        print(json.dumps(result))


if __name__ == "__main__":
    main()
