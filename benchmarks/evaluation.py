"""Compare exact ranks and coverage of 100,000 events over 37,000 items: streamed by offrec, and dense with a sort.

    python benchmarks/evaluation.py [--json FILE]

Each version runs in its own process, so that its peak memory can be measured.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from evidence import script_arguments, write_results
from offrec.catalogue import Head, rank, rank_and_top_k

HISTORY, CORRECTED = 50, 5  # length of a padded history, and number of items in it
K = 20
TITLES = {
    "ranks": "offrec, ranks only",
    "streamed": "offrec, ranks and coverage@20",
    "dense": "dense logits in blocks, sorted, with coverage@20",
}
ROWS = 1024  # batch size of the streamed version


@dataclass(frozen=True)
class Problem:
    """A random policy with the shape of a trained one: states, table, bias, and a bonus for items of the history."""

    events: int
    items: int
    width: int

    def draw(self) -> tuple[Head, Tensor]:
        random = torch.Generator().manual_seed(0)
        state = torch.randn(self.events, self.width, generator=random)
        table = torch.randn(self.items, self.width, generator=random) * self.width**-0.5
        bias = torch.randn(self.items, generator=random)
        recent = torch.full((self.events, HISTORY), self.items)
        recent[:, :CORRECTED] = torch.randint(0, self.items, (self.events, CORRECTED), generator=random)
        bonus = torch.linspace(3, 1, HISTORY).expand(self.events, -1)
        return Head(state, table, bias, recent, bonus), torch.randint(0, self.items, (self.events,), generator=random)


def streamed(head: Head, target: Tensor) -> tuple[float, float]:
    ranks, seen = [], torch.zeros(head.n_items, dtype=torch.bool)
    for first in range(0, head.n_rows, ROWS):
        position, _, items = rank_and_top_k(head.slice_rows(first, first + ROWS), target[first : first + ROWS], K)
        ranks.append(position)
        seen[items] = True
    return _metrics(torch.cat(ranks), seen)


def ranks_only(head: Head, target: Tensor) -> tuple[float, float]:
    ranks = [
        rank(head.slice_rows(first, first + ROWS), target[first : first + ROWS])
        for first in range(0, head.n_rows, ROWS)
    ]
    return _metrics(torch.cat(ranks), torch.zeros(1))


def dense(head: Head, target: Tensor, floats: int) -> tuple[float, float]:
    """Sort the logits in blocks of at most `floats` numbers; the rank is the position of the target."""
    rows = max(1, floats // head.n_items)
    ranks, seen = [], torch.zeros(head.n_items, dtype=torch.bool)
    for first in range(0, head.n_rows, rows):
        part = head.slice_rows(first, first + rows)
        assert part.items is not None
        assert part.values is not None
        scores = torch.cat([part.state @ part.table.T + part.bias, torch.zeros(part.n_rows, 1)], 1)
        scores.scatter_add_(1, part.items, part.values)
        order = scores[:, :-1].argsort(dim=1, descending=True)
        ranks.append((order == target[first : first + rows, None]).nonzero()[:, 1] + 1)
        seen[order[:, :K]] = True
    return _metrics(torch.cat(ranks), seen)


def _metrics(position: Tensor, seen: Tensor) -> tuple[float, float]:
    gain = torch.where(position <= K, 1 / torch.log2(1.0 + position), 0.0)
    return float(gain.mean()), float(seen.double().mean())


def gemm_rate(problem: Problem) -> float:
    """Return the floating point operations per second of the fastest product of states with a tile of the table."""
    best = 0.0
    state = torch.randn(ROWS, problem.width)
    for columns in (512, 1024, 2048):
        table, out = torch.randn(columns, problem.width), torch.empty(ROWS, columns)
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(20):
                torch.mm(state, table.T, out=out)
            best = max(best, 20 * 2 * ROWS * columns * problem.width / (time.perf_counter() - start))
    return best


def run_one(how: str, problem: Problem, floats: int) -> dict[str, float]:
    head, target = problem.draw()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    if how == "dense":
        ndcg, coverage = dense(head, target, floats)
    else:
        ndcg, coverage = {"streamed": streamed, "ranks": ranks_only}[how](head, target)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": seconds, "peak_gb": peak / 2**20, "own_gb": (peak - before) / 2**20,
        "ndcg": ndcg, "coverage": coverage,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=37_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--dense-gigabytes", type=float, default=2.0, help="size of the dense version's block of logits"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    problem = Problem(options.events, options.items, options.width)
    if options.one:
        print(json.dumps(run_one(options.one, problem, int(options.dense_gigabytes * 2**30 / 4))))
        return
    command = [sys.executable, __file__, *sys.argv[1:], "--one"]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # spinning threads slow each other down on shared cores
    results = {
        how: json.loads(
            subprocess.run([*command, how], check=True, capture_output=True, text=True, env=environment).stdout
        )
        for how in ("ranks", "streamed", "dense")
    }
    rate = gemm_rate(problem)
    floor = 2 * problem.events * problem.items * problem.width / rate
    report(results, rate, floor)
    if options.json:
        rows = [{"how": TITLES[how], **row, "times_floor": row["seconds"] / floor} for how, row in results.items()]
        write_results(options.json, rows, {"script": script_arguments(options)})


def report(results: dict[str, dict[str, float]], rate: float, floor: float) -> None:
    print(f"{'':50}{'seconds':>9}{'x floor':>9}{'peak GB':>9}{'own GB':>9}{'NDCG@20':>11}{'coverage':>10}")
    for how, title in TITLES.items():
        row = results[how]
        print(
            f"{title:50}{row['seconds']:9.1f}{row['seconds'] / floor:9.1f}{row['peak_gb']:9.2f}{row['own_gb']:9.2f}"
            f"{row['ndcg']:11.6f}{row['coverage'] or float('nan'):10.4f}"
        )
    ours, theirs = results["streamed"], results["dense"]
    print(f"floor: 2·N·A·d at {rate / 1e9:.0f} GFLOP/s = {floor:.1f} s")
    time_ratio, memory_ratio = (theirs[key] / ours[key] for key in ("seconds", "own_gb"))
    print(f"dense / ours: {time_ratio:.1f} x time, {memory_ratio:.0f} x memory")


if __name__ == "__main__":
    main()
