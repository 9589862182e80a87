"""Train SL with several settings and seeds, and score its lists on validation and test events.

    python benchmarks/peers/next_item_sl.py DATASET… --json FILE [--seeds 3] [--jobs 8] [--device cuda] \\
        [--backbones gru sasrec] [--variants default old …] [--seconds 600]

With `--seconds`, a run that takes more CPU seconds counts as failed. The file is written after every run. Needs only
the packages of the training path: torch, numpy and safetensors.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import numpy as np
import scoring
import torch

from offrec.catalogue import top_k
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.replay import batch_from_histories
from offrec.policy import Policy
from offrec.runs.train import train

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "without neighbours": {"algorithm.neighbours": 0},
    "repeat added": {"network.repeat": "bonus"},
    "without repeat": {"network.repeat": "off"},
    "dropout 0.5": {"network.dropout": 0.5},
    "20 neighbours": {"algorithm.neighbours": 20},
    "100 neighbours": {"algorithm.neighbours": 100},
}
Job = tuple[Path, str, str, int, str, float | None]  # dataset, backbone, variant, seed, device, CPU seconds


def lists(policy: Policy, events: scoring.Events, rows: int = 512) -> Any:
    """Return the 20 best items of each event; −1 fills up the lists of a small catalogue."""
    histories = events.histories()
    order = np.argsort([len(history) for history in histories], kind="stable")
    result = np.full((len(histories), scoring.LENGTH), -1, dtype=np.int64)
    k = min(scoring.LENGTH, policy.n_items)
    for first in range(0, len(order), rows):
        part = order[first : first + rows]
        batch = [histories[number].tolist() for number in part]
        with torch.no_grad():
            head = policy.head(batch_from_histories(batch, policy.n_items, policy.history, policy.device))
            result[part, :k] = top_k(head, k)[1].cpu().numpy()
    return result


def run(job: Job) -> dict[str, Any]:
    folder, backbone, variant, seed, device, budget = job
    torch.set_num_threads(1)
    dataset = Dataset.open(folder)
    started, cpu_started = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as out:
        policy = train(
            dataset,
            Path(out) / "run",
            backbone=backbone,
            seed=seed,
            device=device,
            settings={**VARIANTS[variant], "diagnostics": "some"},
            console=Console(quiet=True),
        )
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        log = (Path(out) / "run" / "metrics.jsonl").read_text().splitlines()
    result: dict[str, Any] = {"dataset": folder.name, "backbone": backbone, "variant": variant, "seed": seed}
    result |= {"train_seconds": round(seconds, 1), "epochs": len(log), "device": str(policy.device)}
    result["cpu_seconds"] = round(cpu_seconds)
    if budget is not None:
        result["budget_seconds"] = budget
        if cpu_seconds > budget:
            raise RuntimeError(f"training took {cpu_seconds:.0f} CPU seconds; the budget is {budget:.0f}")
    for split in ("validation", "test"):
        events = scoring.read_events(folder, split)
        result[split] = scoring.score(lists(policy, events), events)
    return result


def attempt(job: Job) -> dict[str, Any]:
    try:
        return run(job)
    except Exception as error:  # the other runs go on
        traceback.print_exc()
        return {"dataset": job[0].name, "backbone": job[1], "variant": job[2], "seed": job[3], "error": repr(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--backbones", nargs="+", default=["gru"])
    parser.add_argument("--variants", nargs="+", default=["default"], choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, help="CPU seconds that the training of a run may take")
    options = parser.parse_args()
    jobs: list[Job] = [
        (folder, backbone, variant, seed, options.device, options.seconds)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for folder in options.datasets
        for backbone in options.backbones
        for variant in options.variants
    ]
    jobs.sort(key=lambda job: -(job[0] / "items.npy").stat().st_size)  # the longest runs first
    results = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for result in pool.imap_unordered(attempt, jobs):
            results.append(result)
            options.json.write_text(json.dumps({"torch": torch.__version__, "runs": results}, indent=1) + "\n")
            figures = result["test"]["all"] if "test" in result else result["error"]
            print(*(result[key] for key in ("dataset", "backbone", "variant", "seed")), figures, flush=True)


if __name__ == "__main__":
    main()
