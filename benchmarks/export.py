"""An exported run beside torch on 1,000 real sessions, every backbone: the same top 20? and how long each takes.

    python benchmarks/export.py ../shared/data/retailrocket-sessions.parquet [--out results/export.json] [--sample N]

Each backbone is trained for one epoch on a sample of the log, exported, and asked for the top 20 after all but the last
item of the last 1,000 sessions. Latency: one thread each, turn by turn, so that both meet the same machine.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import offrec
from offrec.catalogue import top_k
from offrec.console import Console
from offrec.data.prepare import prepare
from offrec.data.replay import batch_from_histories
from offrec.policy import Policy
from offrec.serving.export import export_onnx
from offrec.serving.onnx_check import compare, pad_histories

BACKBONES = ("gru", "cfn", "caser", "nextitnet", "sasrec")
SESSIONS, K = 1000, 20


def one(dataset: offrec.Dataset, home: Path, backbone: str, histories: list[list[int]]) -> dict[str, Any]:
    settings = {"training.epochs": 1}
    policy = offrec.train(
        dataset, home / backbone, backbone=backbone, settings=settings, device="cpu", console=Console(quiet=True)
    )
    started = time.perf_counter()
    described = export_onnx(home / backbone, home / f"{backbone}.onnx")
    seconds = time.perf_counter() - started
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(home / f"{backbone}.onnx"), options, providers=["CPUExecutionProvider"])
    found = {
        "backbone": backbone,
        "export_seconds": round(seconds, 2),
        "megabytes": round(described["weight_bytes"] / 1e6, 1),
        "agreement": compare(policy, session, histories, K).as_json(),
        "state_spread": _spread(policy, histories),
    }
    for rows in (1, 64):
        found[f"batch_{rows}"] = _latency(policy, session, histories, rows)
    return found


@torch.no_grad()
def _spread(policy: Policy, histories: list[list[int]]) -> float:
    """How much states differ from history to history. Where they do not (Caser's last ReLU can die), scores agree
    whatever became of the backbone.
    """
    states = policy.head(batch_from_histories(histories, policy.n_items, policy.history, policy.device)).state
    return round(float(states.std(0).mean()), 4)


@torch.no_grad()
def _latency(policy: Policy, session: Any, histories: list[list[int]], rows: int) -> dict[str, dict[str, float]]:
    def by_torch(some: list[list[int]]) -> None:
        top_k(policy.head(batch_from_histories(some, policy.n_items, policy.history, policy.device)), K)

    def by_onnx(some: list[list[int]]) -> None:
        session.run(["items", "scores"], {"history": pad_histories(some), "k": np.array(K)})

    pieces = [histories[first : first + rows] for first in range(0, len(histories) - rows + 1, rows)]
    ways: dict[str, Callable[[list[list[int]]], None]] = {"torch": by_torch, "onnxruntime": by_onnx}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn, piece in enumerate(pieces[:3] + pieces):
        for name, way in ways.items():
            started = time.perf_counter()
            way(piece)
            if turn >= 3:  # the first ones warm up
                taken[name].append(1000 * (time.perf_counter() - started))
    return {
        name: {"p50_ms": round(float(np.percentile(ms, 50)), 3), "p99_ms": round(float(np.percentile(ms, 99)), 3)}
        for name, ms in taken.items()
    }


def _commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/export.json"))
    parser.add_argument("--sample", type=int, default=20_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        dataset = prepare(arguments.log, out=home / "data", filter=("item=3", "session=3"), sample=arguments.sample)
        bounds = dataset.sessions.offsets[-SESSIONS - 1 :].tolist()
        histories = [dataset.sessions.items[first : last - 1].tolist() for first, last in pairwise(bounds)]
        results = []
        for backbone in BACKBONES:
            results.append(one(dataset, home, backbone, histories))
            print(json.dumps(results[-1]), flush=True)
    facts = {
        "log": arguments.log.name,
        "items": dataset.n_items,
        "sessions": len(histories),
        "k": K,
        "fingerprint": dataset.fingerprint,
        "machine": f"{platform.machine()}, one thread each, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}",
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "commit": _commit(),
    }
    arguments.out.write_text(json.dumps({**facts, "backbones": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
