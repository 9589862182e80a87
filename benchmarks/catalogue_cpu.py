"""Compare tiled functions over 100,000 items with dense PyTorch on a CPU.

    cross-entropy    −log π(a)                          forward and backward
    soft value       E_π[log π − Q/α − log b]           forward and backward to π (the actor); forward only (a target)

Times are medians of alternating runs. Peak memory is measured in a new process and excludes memory that was in use
before the call.

Run: python benchmarks/catalogue_cpu.py [--json FILE]
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from evidence import script_arguments, write_results
from offrec.catalogue import Head, log_prob, reduce

ALPHA = 0.1
TASKS = {
    "cross-entropy": "cross-entropy, forward and backward",
    "actor": "soft value, forward and backward to π",
    "target": "soft value, forward",
}


@dataclass(frozen=True)
class Problem:
    """The size of a random problem."""

    rows: int
    items: int
    width: int

    def draw(self) -> tuple[Head, Head, Head, Tensor]:
        """Return random heads π (with gradients), Q and b, and a logged item per row."""
        random = torch.Generator().manual_seed(0)

        def head() -> Head:
            state = torch.randn(self.rows, self.width, generator=random)
            table = torch.randn(self.items, self.width, generator=random) * self.width**-0.5
            return Head(state, table, torch.randn(self.items, generator=random))

        pi, q, b = head(), head().scale(ALPHA), head()
        for part in leaves(pi):
            part.requires_grad_()
        return pi, q, b, torch.randint(0, self.items, (self.rows,), generator=random)


def leaves(head: Head) -> list[Tensor]:
    return [part for part in (head.state, head.table, head.bias) if part is not None]


def tiled_loss(task: str, pi: Head, q: Head, b: Head, target: Tensor) -> Tensor:
    if task == "cross-entropy":
        return -log_prob(pi, target[:, None]).mean()
    sums = reduce(pi, [(1.0, pi), (-1 / ALPHA, q), (-1.0, b)])
    return (sums.mean - sums.lse).mean()


def dense_loss(task: str, pi: Head, q: Head, b: Head, target: Tensor) -> Tensor:
    def logits(head: Head) -> Tensor:
        assert head.bias is not None
        return torch.addmm(head.bias, head.state, head.table.T)

    if task == "cross-entropy":
        return torch.nn.functional.cross_entropy(logits(pi), target)
    log_pi = torch.log_softmax(logits(pi), 1)
    return (log_pi.exp() * (log_pi - logits(q) / ALPHA - logits(b))).sum(1).mean()


LOSSES: dict[str, Callable[..., Tensor]] = {"tiled": tiled_loss, "dense": dense_loss}


def run_one(how: str, task: str, heads: tuple[Head, Head, Head, Tensor]) -> tuple[float, float, list[Tensor]]:
    """Return the seconds, the loss and the gradients."""
    with torch.set_grad_enabled(task != "target"):
        start = time.perf_counter()
        loss = LOSSES[how](task, *heads)
        gradients = torch.autograd.grad(loss, leaves(heads[0])) if task != "target" else ()
        return time.perf_counter() - start, float(loss.detach()), list(gradients)


def memory(how: str, task: str, problem: Problem) -> float:
    """Return the additional gigabytes that a call uses, after a small warm-up call.

    `getrusage` is not used: a process inherits its peak from the parent process.
    """
    run_one(how, task, Problem(2, 1000, problem.width).draw())
    heads = problem.draw()
    ctypes.CDLL(None).malloc_trim(0)  # memory that was freed but not returned would hide the memory of the call
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = resident("VmRSS")
    run_one(how, task, heads)
    return resident("VmHWM") - before


def resident(field: str) -> float:
    """Return the gigabytes in use now (VmRSS) or at the peak (VmHWM). Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 2**20


def measure(task: str, problem: Problem, runs: int) -> dict[str, float]:
    heads, seconds = problem.draw(), {how: list[float]() for how in LOSSES}
    answers = {how: run_one(how, task, heads)[1:] for how in LOSSES}  # also warms up
    for _ in range(runs):
        for how, times in seconds.items():
            times.append(run_one(how, task, heads)[0])
    results = {f"{how}_seconds": statistics.median(times) for how, times in seconds.items()}
    (ours, our_gradients), (theirs, their_gradients) = answers["tiled"], answers["dense"]
    differences = [
        float((one - other).norm() / other.norm()) for one, other in zip(our_gradients, their_gradients, strict=True)
    ]
    return {**results, "difference": max([abs(ours - theirs) / abs(theirs), *differences])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    problem = Problem(options.rows, options.items, options.width)
    if options.memory:
        print(memory(*options.memory, problem))
        return
    results = {}
    for task in TASKS:
        results[task] = measure(task, problem, options.runs)
        for how in LOSSES:
            results[task][f"{how}_gb"] = peak_memory(how, task)
    report(problem, results)
    if options.json:
        rows = [{"task": TASKS[task], **row} for task, row in results.items()]
        write_results(options.json, rows, {"script": script_arguments(options)})


def peak_memory(how: str, task: str) -> float:
    """Measure the memory of a call in a new process, with the arguments of this one."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # spinning threads slow each other down on shared cores
    command = [sys.executable, __file__, *sys.argv[1:], "--memory", how, task]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(ran.stdout)


def report(problem: Problem, results: dict[str, dict[str, float]]) -> None:
    print(f"{problem.rows} rows × {problem.items} items, width {problem.width}, {torch.get_num_threads()} threads")
    print(f"{'':38}{'seconds':>20}{'':>8}{'own GB':>18}")
    print(f"{'':38}{'tiled':>10}{'dense':>10}{'×':>8}{'tiled':>9}{'dense':>9}{'×':>7}{'difference':>12}")
    for task, title in TASKS.items():
        row = results[task]
        print(
            f"{title:38}{row['tiled_seconds']:10.2f}{row['dense_seconds']:10.2f}"
            f"{row['dense_seconds'] / row['tiled_seconds']:8.1f}"
            f"{row['tiled_gb']:9.3f}{row['dense_gb']:9.2f}"
            f"{row['dense_gb'] / row['tiled_gb']:7.0f}{row['difference']:12.1e}"
        )


if __name__ == "__main__":
    main()
