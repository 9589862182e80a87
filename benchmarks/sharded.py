"""Updates with a catalogue that several ranks store: memory per rank, time per update, bytes between the ranks.

    python benchmarks/sharded.py [--items 1000000 10000000] [--ranks 1 2 4] [--json FILE]

All ranks share one GPU (or the CPU) and communicate by gloo, because NCCL needs one GPU per rank; a world of one rank
also runs with NCCL. The ranks of one card compete for it, so their times show the overhead of messages and not a
speed-up. The model for more GPUs combines the measured times of one process with assumed rates of a network; it is
arithmetic, not a measurement.
"""

import argparse
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from offrec.algorithms import LEARNERS
from offrec.catalogue.shard import Shard
from offrec.data.replay import Epochs, Replay
from offrec.data.transitions import transitions
from offrec.models.agent import Agent, LogFacts
from offrec.models.critic import CriticOptions
from offrec.models.network import Network, NetworkOptions, sharded_rows
from offrec.training.optimiser import Optimiser
from offrec.training.ranks import Ranks
from offrec.training.update import TrainingTask, Update
from offrec.types import Sessions

WIDTH, HISTORY, BATCH, SESSION = 64, 50, 1024, 8
NETWORK = NetworkOptions(width=WIDTH, history=HISTORY)
LEARNED = {"sl": {}, "dc": {"ranks": "critic"}}
LATENCY, BANDWIDTH = 30e-6, 100e9  # assumed: seconds per message, bytes per second and GPU between GPUs of one machine
ASSUMED_GPUS = (8, 16, 32, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="", help="the commit, where the code is not in a git repository")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options)
        return
    rows = []
    for world in options.ranks:
        rows += run_world(world, options)
        for row in rows[-4:]:
            print(json.dumps(row), flush=True)
        write(options.json, options.commit, rows)  # what is measured stays if a later world fails


def write(path: Path | None, commit: str, rows: list[dict[str, Any]]) -> None:
    if path is not None:
        machine = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
        result = {
            "command": "python benchmarks/sharded.py",
            "commit": commit,
            "machine": machine,
            "torch": torch.__version__,
            "batch": BATCH,
            "width": WIDTH,
            "measured": rows,
            "on paper": {"latency_s": LATENCY, "bytes_per_s": BANDWIDTH, "rows": model(rows)},
        }
        path.write_text(json.dumps(result, indent=1) + "\n")


def run_world(world: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start the ranks of a world and return their figures."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        shape = [str(number) for number in options.items]
        command = [sys.executable, __file__, "--worker", name, "--items", *shape, "--updates", str(options.updates)]
        started = []
        for rank in range(world):
            environment = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            variables = {**os.environ, **{key: str(value) for key, value in environment.items()}}
            started.append(subprocess.Popen(command, env=variables))
        try:
            codes = [process.wait(timeout=400) for process in started]
        finally:
            for process in started:
                process.kill()
        files = [json.loads(path.read_text()) for path in sorted(Path(name).glob("*.json"))]
    if any(codes):
        print(f"a world of {world} failed with {codes}", file=sys.stderr)
    return [merge(list(one)) for one in zip(*files, strict=False)]


def merge(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a case: those of rank 0, and the largest memory and time of all ranks."""
    return {**ranks[0], **{key: max(one[key] for one in ranks) for key in ("peak_bytes", "built_bytes", "ms")}}


def work(options: argparse.Namespace) -> None:
    """Measure all cases as one rank, and write the figures after each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world = int(os.environ["WORLD_SIZE"])
    backends = ["gloo"] if world > 1 else ["none", "nccl"] if device.type == "cuda" else ["none", "gloo"]
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(1)
    figures: list[dict[str, Any]] = []
    for backend in backends:
        ranks = None
        if backend != "none":
            dist.init_process_group(backend, timeout=timedelta(seconds=120))
            ranks = Ranks.create(world)
        for items in options.items:
            for learner in LEARNED:
                capture = [True, False] if ranks is None and device.type == "cuda" else [False]
                for captured in capture:
                    with own_stream(device):  # CUDA graphs cannot be captured on the default stream
                        row = measure(items, learner, ranks, device, options.updates, captured)
                    figures.append({"ranks": world, "backend": backend, **row})
                    (options.worker / f"{os.environ['RANK']}.json").write_text(json.dumps(figures))
        if ranks is not None:
            dist.destroy_process_group()


def own_stream(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def measure(
    items: int, learner: str, ranks: Ranks | None, device: torch.device, updates: int, captured: bool
) -> dict[str, Any]:
    """Build an agent and time its updates."""
    shard = None if ranks is None else Shard(items, ranks.catalogue_index, ranks.world, ranks.catalogue_group)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device(device):
        prior = Network(items, NETWORK, shard=shard) if learner == "dc" else None
        algorithm = LEARNERS[learner].learner(**LEARNED[learner])
        agent = Agent(items, algorithm, NETWORK, CriticOptions(returns=0.5), LogFacts(0.5), prior, shard=shard)
    agent.to(device)  # joins the weights of copied recurrent networks, as moving from the host does
    del prior
    built = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    trained = [one for one in agent.parameters() if one.requires_grad]
    names, rows = {id(one): name for name, one in agent.named_parameters()}, sharded_rows(agent)
    task = TrainingTask(agent, agent.loss, batches(items, device), dict, None, after=agent.after_update)
    if ranks is not None:
        sharded = {id(one) for one in trained if names[id(one)] in rows}
        task = replace(task, before_step=lambda: ranks.reduce_gradients(trained, sharded))
    update = Update(task, Optimiser(agent, 0.001), device, capture=captured)
    (size, *_) = task.batches.begin(0)
    agent.train()
    counter = Messages()
    losses = []
    with counter:
        for step in range(4 + updates):
            if step == 4:
                synchronise(device, ranks)
                counter.reset()
                started = time.perf_counter()
            update.begin(0, {})
            update(size)
            if step < 2:
                losses.append({name: round(value, 5) for name, value in update.read()[0].items()})
    synchronise(device, ranks)
    seconds = (time.perf_counter() - started) / updates
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    update.close()
    return {
        "items": items,
        "learner": learner,
        "captured": captured,
        "ms": round(1e3 * seconds, 3),
        "built_bytes": built,
        "peak_bytes": peak,
        "messages": counter.number / updates,
        "bytes": counter.bytes / updates,
        "losses": losses,
    }


def batches(items: int, device: torch.device) -> Epochs:
    """Return batches of a random log."""
    random = np.random.default_rng(0)
    count = 2 * BATCH // SESSION
    events = random.integers(0, items, count * SESSION).astype(np.int32)
    offsets = np.arange(count + 1, dtype=np.int64) * SESSION
    sessions = Sessions(events, np.zeros(len(events), np.uint8), offsets)
    rewards = random.random(len(events)).astype(np.float32)
    replay = Replay(sessions, transitions(sessions, rewards, 0.5), items, HISTORY, "sessions", device)
    return Epochs(replay, BATCH, 0, round_sizes=device.type == "cuda")


class Messages:
    """Counts the messages of this rank and their payload."""

    def __enter__(self) -> "Messages":
        self.reset()
        self.original = dist.all_reduce, dist.all_gather

        def all_reduce(tensor: torch.Tensor, *arguments: Any, **more: Any) -> Any:
            self._count("all_reduce", tensor)
            return self.original[0](tensor, *arguments, **more)

        def all_gather(parts: list[torch.Tensor], tensor: torch.Tensor, *arguments: Any, **more: Any) -> Any:
            self._count("all_gather", tensor)
            return self.original[1](parts, tensor, *arguments, **more)

        dist.all_reduce, dist.all_gather = all_reduce, all_gather
        return self

    def _count(self, name: str, tensor: torch.Tensor) -> None:
        self.number += 1
        self.bytes += tensor.nbytes
        self.kinds[name] += 1

    def reset(self) -> None:
        self.number, self.bytes, self.kinds = 0, 0, Counter[str]()

    def __exit__(self, *_: object) -> None:
        dist.all_reduce, dist.all_gather = self.original


def synchronise(device: torch.device, ranks: Ranks | None) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    if ranks is not None:
        ranks.barrier()


def model(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the expected time of an update on G GPUs, from the uncaptured times of one process and counted messages.

    t(G) = fixed + per item · A / G + messages · latency + 2 · bytes / bandwidth        (a ring sends each byte twice)
    """
    expected = []
    for learner in LEARNED:
        alone = {one["items"]: one for one in rows if one["learner"] == learner and one["backend"] == "none"}
        sent = [one for one in rows if one["learner"] == learner and one["messages"]]
        if len(alone) < 2 or not sent:
            continue
        (small, large), message = sorted(alone)[:2], sent[-1]
        slope = (alone[large]["ms"] - alone[small]["ms"]) / (large - small)
        fixed = alone[small]["ms"] - slope * small
        for items, gpus in ((items, gpus) for items in (large, 10 * large) for gpus in ASSUMED_GPUS):
            wire = 1e3 * (message["messages"] * LATENCY + 2 * message["bytes"] / BANDWIDTH)
            compute = fixed + slope * items / gpus
            one = {"learner": learner, "items": items, "gpus": gpus, "ms": round(compute + wire, 2)}
            expected.append(one | {"compute_ms": round(compute, 2), "messages_ms": round(wire, 2)})
    return expected


if __name__ == "__main__":
    main()
