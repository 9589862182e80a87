"""One SL epoch on a prepared dataset: offrec's loop against the plain eager loop people write, and several seeds at
once against one after the other. Each in a process of its own, so that peak memory is its own.

    python benchmarks/epoch.py DATASET [--epochs 5] [--seeds 5] [--set network.width=64 …] > epoch.json

The plain loop has the same network, the same number of rows in a batch and the same precision, but batches made on the
host, dense logits with the corrections written in, `F.cross_entropy` and the default Adam. Epochs are timed without
validation; the first, in which libraries tune themselves and updates are captured, is told apart from the median.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from offrec.catalogue import Head
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.replay import Replay
from offrec.data.segments import Segments
from offrec.models.network import Network
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.loading import pick_device
from offrec.runs.option_text import parse_settings
from offrec.runs.options import RunOptions, resolve_options
from offrec.runs.plan import plan_run
from offrec.runs.shared_data import SharedData
from offrec.runs.train import build_agent, build_task
from offrec.training.interleaved import TURN
from offrec.training.loop import Trainer
from offrec.types import Batch

NEVER = threading.Event()


class Timed:
    """Seconds of each call, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, list[float]()

    def __call__(self, work: Callable[[], Any]) -> None:
        self._wait()
        start = time.perf_counter()
        work()
        self._wait()
        self.seconds.append(time.perf_counter() - start)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def report(self, **more: Any) -> dict[str, Any]:
        peak = {"peak_process_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        if self.device.type == "cuda":
            peak["peak_allocated_mb"] = torch.cuda.max_memory_allocated(self.device) / 2**20
            peak["peak_reserved_mb"] = torch.cuda.max_memory_reserved(self.device) / 2**20
        later = self.seconds[1:] or self.seconds
        return {"first": self.seconds[0], "median": statistics.median(later), "all": self.seconds, **peak, **more}


def host_batch(replay: Replay, pieces: Segments, mdp: list[Tensor], items: Tensor) -> Batch:
    """A batch as it is made without care for the device: numbers on the host, five copies, then gathers."""
    rows = pieces.end - pieces.first
    piece = np.repeat(np.arange(len(pieces)), rows)
    event = np.repeat(pieces.first - (np.cumsum(rows) - rows), rows) + np.arange(rows.sum())
    position = event - pieces.begin[piece]
    host = [
        pieces.begin - replay.first_event,
        pieces.end - replay.first_event,
        piece,
        position,
        event - replay.first_event,
    ]
    begin, end, piece_, position_, here = (torch.from_numpy(a).to(replay.device) for a in host)

    def gather(where: Tensor, inside: Tensor) -> Tensor:
        return torch.where(inside, items[where.clamp(0, len(items) - 1)], replay.n_items)

    token = begin[:, None] + torch.arange(int((pieces.end - pieces.begin).max()), device=replay.device)
    tokens = gather(token, token < end[:, None])
    step = torch.arange(1, replay.history + 1, device=replay.device)
    recent = gather(here[:, None] - step, step <= position_[:, None])
    weight = torch.full((len(here),), 1 / len(here), device=replay.device)
    reward, discount, return_to_go = (array[here] for array in mdp)
    return Batch(tokens, piece_, position_, recent, items[here], here, reward, discount, return_to_go, weight)


def dense_loss(head: Head, action: Tensor) -> Tensor:
    logits = head.state @ head.table.T + head.bias
    if head.items is not None and head.values is not None:
        padded = functional.pad(logits, (0, 1))  # corrections at n_items are padding
        padded = padded.scatter(1, head.items, 0.0) if head.replaces_base else padded
        logits = padded.scatter_add(1, head.items, head.values)[:, :-1]
    return functional.cross_entropy(logits, action)


def eager(dataset: Dataset, flat: dict[str, Any], epochs: int) -> dict[str, Any]:
    options, device = options_of(dataset, flat)
    made = plan_run(SharedData(dataset), options, device)
    replay, batch_size = made.epochs.replay, made.epochs.batch_size
    torch.manual_seed(options.seed)
    network = Network(dataset.n_items, options.network).to(device).train()
    optimiser = torch.optim.Adam(network.parameters(), lr=options.training.learning_rate)
    items, timed = replay.items.long(), Timed(device)
    losses = list[float]()

    def epoch(number: int) -> None:
        pending = []
        for index in replay.plan_shuffled(batch_size, (options.seed, number)):
            batch = host_batch(replay, replay.segments[index], replay.mdp, items)
            loss = dense_loss(network(batch), batch.action)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            pending.append(loss.detach())
        losses.append(float(torch.stack(pending).mean()))

    for number in range(epochs):
        timed(lambda number=number: epoch(number))
    return timed.report(losses=losses, batch_size=batch_size)


def options_of(dataset: Dataset, flat: dict[str, Any]) -> tuple[RunOptions, torch.device]:
    options = resolve_options(flat, dataset.protocol.format)
    return options, pick_device(options.device)


def trainer_of(dataset: Dataset, shared: SharedData, flat: dict[str, Any]) -> Trainer:
    options, device = options_of(dataset, flat)
    made = plan_run(shared, options, device)
    policy = NetworkPolicy("sl", build_agent(made), dataset.vocabulary, device)
    folder = Path(tempfile.mkdtemp())
    return Trainer(build_task(made, policy), options.training, folder, {}, options.seed, Console(quiet=True))


def one_epoch(trainers: list[Trainer]) -> list[float]:
    """An epoch of each, turn by turn; with one trainer that is its loop as it is."""
    going = [(trainer, trainer.epoch(NEVER)) for trainer in trainers]
    while going:
        for trainer, steps in list(going):
            with trainer.active():
                if not all(next(steps, trainer) is None for _ in range(TURN if len(trainers) > 1 else 10**9)):
                    going.remove((trainer, steps))
    losses = [sum(trainer.progress.sums.values()) / trainer.progress.step for trainer in trainers]
    for trainer in trainers:
        trainer.progress.epoch, trainer.progress.step, trainer.progress.sums = trainer.progress.epoch + 1, 0, {}
    return losses


def ours(dataset: Dataset, flat: dict[str, Any], epochs: int) -> dict[str, Any]:
    trainer = trainer_of(dataset, SharedData(dataset), flat)
    timed, validation = Timed(trainer.update.step.device), Timed(trainer.update.step.device)
    losses = list[float]()
    for _ in range(epochs):
        timed(lambda: losses.extend(one_epoch([trainer])))
    peak = timed.report(losses=losses, graphs=len(trainer.update.graphs))
    with trainer.active():
        for _ in range(epochs):
            validation(trainer.task.validate)
    return {**peak, "validation_median": validation.report()["median"]}


def seeds(dataset: Dataset, flat: dict[str, Any], epochs: int, number: int) -> dict[str, Any]:
    shared = SharedData(dataset)
    trainers = [trainer_of(dataset, shared, {**flat, "seed": seed}) for seed in range(number)]
    device = trainers[0].update.step.device
    for trainer in trainers:  # sizes that are rare are captured in the second epoch or later
        one_epoch([trainer])
        one_epoch([trainer])
    after, at_once = Timed(device), Timed(device)
    for _ in range(epochs):
        after(lambda: [one_epoch([trainer]) for trainer in trainers])
        at_once(lambda: one_epoch(trainers))
    return {"one_after_the_other": after.report(), "at_once": at_once.report(), "seeds": number}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=0, help="so many at once against one after the other")
    parser.add_argument("--set", action="append", default=[], help="an option of the run, as in `offrec train`")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--one", choices=["eager", "offrec", "seeds"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    if asked.one is None:
        kinds = ["eager", "offrec", *(["seeds"] if asked.seeds else [])]
        command = [sys.executable, __file__, *sys.argv[1:], "--one"]
        done = {kind: subprocess.run([*command, kind], check=True, capture_output=True, text=True) for kind in kinds}
        found = {kind: json.loads(process.stdout) for kind, process in done.items()}
        found["eager_over_offrec"] = found["eager"]["median"] / found["offrec"]["median"]
        print(json.dumps(found, indent=2))
        return
    dataset, flat = Dataset.open(asked.dataset), parse_settings(asked.set)
    options, device = options_of(dataset, flat)
    if asked.one == "seeds":
        result = seeds(dataset, flat, asked.epochs, asked.seeds)
    else:
        result = {"eager": eager, "offrec": ours}[asked.one](dataset, flat, asked.epochs)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    facts = {"device": name, "torch": torch.__version__, "dataset": dataset.fingerprint, "options": options.settings()}
    print(json.dumps({**result, **facts}))


if __name__ == "__main__":
    main()
