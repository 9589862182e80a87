"""Measure how well π̂_b predicts the next item, for comparison with the learners that are constrained to it.

    python benchmarks/public_logging.py DATASET… [--seeds 3] [--precision bf16] --json FILE

Uses the preset `strong` with GRU, the π̂_b of DC's runs on these datasets. It is read from the folder next to the
dataset, or fitted and stored there.
"""

import argparse
from pathlib import Path

import torch

from evidence import learner, protocol, write_results
from offrec import evaluate, logging_policy
from offrec.catalogue import Head
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.models.network import Network
from offrec.policy import Policy
from offrec.runs.loading import pick_device
from offrec.runs.options import logging_training, resolve_options
from offrec.studies.machine import describe_machine
from offrec.types import Batch

FIGURES = "HR@5", "NDCG@10"


class Logging(Policy):
    name, stochastic = "π̂_b", True

    def __init__(self, network: Network, dataset: Dataset, history: int, device: torch.device) -> None:
        super().__init__(dataset.vocabulary, history, device)
        self.network = network.eval()

    @torch.no_grad()
    def head(self, batch: Batch) -> Head:
        head: Head = self.network(batch)
        return head


def row(dataset: Dataset, seed: int, precision: str, device: torch.device, console: Console) -> dict[str, object]:
    flat = {"algorithm.name": "dc", "training.precision": precision}
    options = resolve_options(flat, dataset.protocol.format)
    training = logging_training(options, dataset.protocol.format)
    fitted = logging_policy.load_or_fit(dataset, options.network, training, seed, device, console, need="network")
    assert fitted.network is not None
    policy = Logging(fitted.network, dataset, options.network.history, device)
    result: dict[str, object] = {"log": dataset.path.resolve().name, "seed": seed, "preset": options.preset}
    result |= {"backbone": options.network.backbone, "precision": precision}
    for split in ("validation", "test"):
        scored = evaluate(policy, dataset, split).metrics
        result[split] = {name: {key: one.values[key] for key in FIGURES} for name, one in scored.items()}
    made_on = {key: describe_machine(str(device))[key] for key in ("commit", "device")}
    return result | {"calibration": fitted.calibration} | made_on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    device, console = pick_device(arguments.device), Console()
    rows = [
        row(Dataset.open(path), seed, arguments.precision, device, console)
        for path in arguments.datasets
        for seed in range(arguments.seeds)
    ]
    settings, made_with = {"algorithm.name": "dc", "training.precision": arguments.precision}, {}
    for dataset in map(Dataset.open, arguments.datasets):
        made_with[f"π̂_b on {dataset.path.name}"] = learner(settings, dataset.protocol.format)
        made_with[f"protocol of {dataset.path.name}"] = protocol(**dataset.protocol.as_json())
    write_results(arguments.json, rows, made_with, device=str(device))


if __name__ == "__main__":
    main()
