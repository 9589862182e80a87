"""Compare exported runs with torch on 1,000 real sessions, for every backbone with an ONNX writer: lists and latency.

    python benchmarks/export.py ../shared/data/retailrocket-sessions.parquet --out FILE [--sample N]

Each backbone is trained for one epoch on a sample of the log and exported. Both versions rank the top 20 for the last
1,000 sessions, each without its last item. Latency is measured with one thread each, in turns, so that both see the
same load.
"""

import argparse
import json
import os
import platform
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
from evidence import learner, protocol, write_results
from offrec.backbones import BACKBONES
from offrec.catalogue import top_k
from offrec.console import Console
from offrec.data.prepare import prepare
from offrec.data.replay import batch_from_histories
from offrec.policy import Policy
from offrec.serving.export import export_onnx
from offrec.serving.onnx_check import compare, pad_histories

SESSIONS, K = 1000, 20


def measure(dataset: offrec.Dataset, folder: Path, backbone: str, histories: list[list[int]]) -> dict[str, Any]:
    settings = {"training.epochs": 1}
    policy = offrec.train(
        dataset, folder / backbone, backbone=backbone, settings=settings, device="cpu", console=Console(quiet=True)
    )
    start = time.perf_counter()
    description = export_onnx(folder / backbone, folder / f"{backbone}.onnx")
    seconds = time.perf_counter() - start
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(folder / f"{backbone}.onnx"), options, providers=["CPUExecutionProvider"]
    )
    row = {
        "backbone": backbone,
        "export_seconds": round(seconds, 2),
        "megabytes": round(description["weight_bytes"] / 1e6, 1),
        "agreement": compare(policy, session, histories, K).as_json(),
        "state_spread": _spread(policy, histories),
    }
    for rows in (1, 64):
        row[f"batch_{rows}"] = _latency(policy, session, histories, rows)
    return row


@torch.no_grad()
def _spread(policy: Policy, histories: list[list[int]]) -> float:
    """Return the mean standard deviation of the states. If it is 0, scores cannot reveal an error in the backbone."""
    states = policy.head(batch_from_histories(histories, policy.n_items, policy.history, policy.device)).state
    return round(float(states.std(0).mean()), 4)


@torch.no_grad()
def _latency(policy: Policy, session: Any, histories: list[list[int]], rows: int) -> dict[str, dict[str, float]]:
    def with_torch(some: list[list[int]]) -> None:
        top_k(policy.head(batch_from_histories(some, policy.n_items, policy.history, policy.device)), K)

    def with_onnx(some: list[list[int]]) -> None:
        session.run(["items", "scores"], {"history": pad_histories(some), "k": np.array(K)})

    batches = [histories[first : first + rows] for first in range(0, len(histories) - rows + 1, rows)]
    runtimes: dict[str, Callable[[list[list[int]]], None]] = {"torch": with_torch, "onnxruntime": with_onnx}
    milliseconds: dict[str, list[float]] = {name: [] for name in runtimes}
    for turn, batch in enumerate(batches[:3] + batches):
        for name, rank in runtimes.items():
            start = time.perf_counter()
            rank(batch)
            if turn >= 3:  # the first batches warm up
                milliseconds[name].append(1000 * (time.perf_counter() - start))
    return {
        name: {"p50_ms": round(float(np.percentile(ms, 50)), 3), "p99_ms": round(float(np.percentile(ms, 99)), 3)}
        for name, ms in milliseconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sample", type=int, default=20_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dataset = prepare(
            arguments.log, out=Path(folder) / "data", filter=("item=3", "session=3"), sample=arguments.sample
        )
        bounds = dataset.sessions.offsets[-SESSIONS - 1 :].tolist()
        histories = [dataset.sessions.items[first : last - 1].tolist() for first, last in pairwise(bounds)]
        results = []
        for name, record in BACKBONES.items():
            if record.onnx is None:
                continue
            results.append(measure(dataset, Path(folder), name, histories))
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
    }
    made_with = {name: learner({"network.backbone": name}) for name in BACKBONES}
    made_with["protocol"] = protocol(**dataset.protocol.as_json())
    write_results(arguments.out, {**facts, "backbones": results}, made_with)


if __name__ == "__main__":
    main()
