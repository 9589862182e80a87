"""Time one SL epoch on a prepared dataset: offrec's loop in float32 and bf16, a plain eager loop, and several seeds.

Each version runs in its own process, so that its peak memory can be measured.

    python benchmarks/epoch.py DATASET [--epochs 5] [--seeds 5] [--set network.width=64 …] [--json FILE]

The plain loop has the same network, batch size and precision, but builds batches on the host and uses dense logits,
`F.cross_entropy` and the default Adam. Epochs are timed without validation. The first epoch, in which libraries tune
themselves and updates are captured, is reported separately from the median.
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

from evidence import trained, write_results
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
    """Records the seconds of each call, including the work on the device."""

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


def host_batch(replay: Replay, segments: Segments, mdp: list[Tensor], items: Tensor) -> Batch:
    """Build a batch in the straightforward way: indices on the host, five copies to the device, then gathers."""
    rows = segments.end - segments.first
    segment = np.repeat(np.arange(len(segments)), rows)
    event = np.repeat(segments.first - (np.cumsum(rows) - rows), rows) + np.arange(rows.sum())
    position = event - segments.begin[segment]
    host = [
        segments.begin - replay.first_event,
        segments.end - replay.first_event,
        segment,
        position,
        event - replay.first_event,
    ]
    begin, end, segment_, position_, here = (torch.from_numpy(a).to(replay.device) for a in host)

    def gather(where: Tensor, inside: Tensor) -> Tensor:
        return torch.where(inside, items[where.clamp(0, len(items) - 1)], replay.n_items)

    token = begin[:, None] + torch.arange(int((segments.end - segments.begin).max()), device=replay.device)
    tokens = gather(token, token < end[:, None])
    step = torch.arange(1, replay.history + 1, device=replay.device)
    recent = gather(here[:, None] - step, step <= position_[:, None])
    weight = torch.full((len(here),), 1 / len(here), device=replay.device)
    reward, discount, return_to_go = (array[here] for array in mdp)
    return Batch(tokens, segment_, position_, recent, items[here], here, reward, discount, return_to_go, weight)


def dense_loss(head: Head, action: Tensor) -> Tensor:
    logits = head.state @ head.table.T + head.bias
    if head.items is not None and head.values is not None:
        padded = functional.pad(logits, (0, 1))  # corrections at n_items are padding
        padded = padded.scatter(1, head.items, 0.0) if head.replaces_base else padded
        logits = padded.scatter_add(1, head.items, head.values)[:, :-1]
    return functional.cross_entropy(logits, action)


def eager(dataset: Dataset, flat: dict[str, Any], epochs: int) -> dict[str, Any]:
    options, device = resolve(dataset, flat)
    plan = plan_run(SharedData(dataset), options, device)
    replay, batch_size = plan.epochs.replay, plan.epochs.batch_size
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


def resolve(dataset: Dataset, flat: dict[str, Any]) -> tuple[RunOptions, torch.device]:
    options = resolve_options(flat, dataset.protocol.format)
    return options, pick_device(options.device)


def make_trainer(dataset: Dataset, shared: SharedData, flat: dict[str, Any]) -> Trainer:
    options, device = resolve(dataset, flat)
    plan = plan_run(shared, options, device)
    policy = NetworkPolicy("sl", build_agent(plan), dataset.vocabulary, device)
    folder = Path(tempfile.mkdtemp())
    return Trainer(build_task(plan, policy), options.training, folder, {}, options.seed, Console(quiet=True))


def one_epoch(trainers: list[Trainer]) -> list[float]:
    """Run one epoch of each trainer in turns; with one trainer this is the usual loop."""
    running = [(trainer, trainer.epoch(NEVER)) for trainer in trainers]
    while running:
        for trainer, steps in list(running):
            with trainer.active():
                if not all(next(steps, trainer) is None for _ in range(TURN if len(trainers) > 1 else 10**9)):
                    running.remove((trainer, steps))
    losses = [sum(trainer.progress.sums.values()) / trainer.progress.step for trainer in trainers]
    for trainer in trainers:
        trainer.progress.epoch, trainer.progress.step, trainer.progress.sums = trainer.progress.epoch + 1, 0, {}
    return losses


def ours(dataset: Dataset, flat: dict[str, Any], epochs: int) -> dict[str, Any]:
    trainer = make_trainer(dataset, SharedData(dataset), flat)
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
    trainers = [make_trainer(dataset, shared, {**flat, "seed": seed}) for seed in range(number)]
    device = trainers[0].update.step.device
    for trainer in trainers:  # rare batch sizes are captured in the second epoch
        one_epoch([trainer])
        one_epoch([trainer])
    after, at_once = Timed(device), Timed(device)
    for _ in range(epochs):
        after(lambda: [one_epoch([trainer]) for trainer in trainers])
        at_once(lambda: one_epoch(trainers))
    return {"one_after_the_other": after.report(), "at_once": at_once.report(), "seeds": number}


def as_rows(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per loop, without the options, which the stamp contains."""
    titles = {
        "eager": "plain eager loop, sessions encoded once",
        "offrec": "offrec, float32",
        "bf16": "offrec, bf16",
    }
    rows = [{"loop": titles[kind], **row} for kind, row in results.items() if kind in titles]
    if seeds := results.get("seeds"):
        number = seeds["seeds"]
        rows.append({"loop": f"{number} seeds, one after the other", **seeds["one_after_the_other"]})
        rows.append({"loop": f"{number} seeds at once", **seeds["at_once"]})
    return [{key: value for key, value in row.items() if key != "options"} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        help="also compare training this many seeds at once with training them in sequence",
    )
    parser.add_argument("--set", action="append", default=[], help="an option of the run, as in `offrec train`")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--one", choices=["eager", "offrec", "bf16", "seeds"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.one is None:
        kinds = ["eager", "offrec", "bf16", *(["seeds"] if arguments.seeds else [])]
        command = [sys.executable, __file__, *sys.argv[1:], "--one"]
        done = {kind: subprocess.run([*command, kind], check=True, capture_output=True, text=True) for kind in kinds}
        results = {kind: json.loads(process.stdout) for kind, process in done.items()}
        rows = as_rows(results)
        print(json.dumps(rows, indent=2))
        if arguments.json:
            options = trained(results["offrec"]["options"], Dataset.open(arguments.dataset).protocol.format)
            device = "cuda" if torch.cuda.is_available() else "cpu"
            write_results(arguments.json, rows, {"run": options}, device=device)
        return
    dataset, flat = Dataset.open(arguments.dataset), parse_settings(arguments.set)
    if arguments.one == "bf16":
        flat["training.precision"] = "bf16"
    options, device = resolve(dataset, flat)
    if arguments.one == "seeds":
        result = seeds(dataset, flat, arguments.epochs, arguments.seeds)
    else:
        result = {"eager": eager, "offrec": ours, "bf16": ours}[arguments.one](dataset, flat, arguments.epochs)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    facts = {"device": name, "torch": torch.__version__, "dataset": dataset.fingerprint, "options": options.settings()}
    print(json.dumps({**result, **facts}))


if __name__ == "__main__":
    main()
