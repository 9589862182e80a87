"""Search the block sizes of the catalogue's kernels on one GPU: rows and items of a tile, warps and pipeline stages.

    python benchmarks/block_sizes.py [--items 1000000,26702] [--rows 4096] [--kinds bf16,tf32] [--width 64] [--json F]
    python benchmarks/block_sizes.py --items 36453 --rows 1024 --problems 'two soft values,next value'   # those of DC

Each pass (forward, backward) is varied alone, with the current size of the other one. Times are medians of CUDA graphs.
Kernels are first compiled by several processes into Triton's cache. The sizes that were chosen are in
`src/offrec/catalogue/triton/launch.py`. Needs torch, triton and numpy.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from catalogue import ALPHA, captured, clear_gradients, random_problem
from evidence import script_arguments, write_results
from offrec import catalogue, losses
from offrec.catalogue import Head
from offrec.catalogue.triton import launch
from offrec.catalogue.triton.launch import BACKWARD, FORWARD, Blocks, Kind

Case = tuple[str, str, int, str]  # problem, operands, items, pass
KINDS: dict[str, Kind] = {
    "cross-entropy": "one",
    "soft value": "learned",
    "two soft values": "learned",
    "next value": "several",
}


def problem(name: str, operands: str, items: int, width: int, rows: int) -> Callable[[], None]:
    """Return a function that computes a loss over the catalogue and, except for the next value, its gradients."""
    dtype = torch.bfloat16 if operands == "bf16" else torch.float32
    state, table, action = random_problem(rows, items, width, dtype)
    pi = Head(state, table)

    def cross_entropy() -> None:
        clear_gradients(state, table)
        (-catalogue.log_prob(pi, action[:, None])[:, 0]).mean().backward()

    if name == "cross-entropy":
        return cross_entropy
    drawn = (random_problem(rows, items, width, dtype, seed) for seed in (1, 2, 3))
    q, b, target = (Head(states.detach(), items_of.detach()) for states, items_of, _ in drawn)

    def soft_value() -> None:
        clear_gradients(state, table)
        sums = catalogue.reduce(pi, [(1.0, pi), (-1 / ALPHA, q), (-1.0, b)])
        (sums.mean - sums.lse).mean().backward()

    def two_soft_values() -> None:
        clear_gradients(state, table)
        value, target_value = losses.soft_values(pi, q, target, ALPHA, b)
        (value + target_value).mean().backward()

    @torch.no_grad()
    def next_value() -> None:
        losses.soft_value(pi, q, ALPHA, b)

    return {"soft value": soft_value, "two soft values": two_soft_values, "next value": next_value}[name]


def sizes() -> Iterator[Blocks]:
    """Return all sizes that are tried: small tiles do not fill a tensor core, and large ones do not fit registers."""
    for rows, items, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2, 3, 4)):
        if rows * items <= 128 * 64 * (warps // 4):
            yield Blocks(rows, items, warps, stages)


def set_size(case: Case, width: int, size: Blocks) -> None:
    """Make one pass use a size."""
    table = FORWARD if case[3] == "forward" else BACKWARD
    table[2 if case[1] == "bf16" else 4, KINDS[case[0]]][width] = size
    launch._fitting.clear()


def run_size(case: Case, width: int, size: Blocks, work: Callable[[], None], time_it: bool) -> float | None:
    """Return the time of a size in milliseconds; None if it does not fit the device."""
    set_size(case, width, size)
    try:
        work()
        torch.cuda.synchronize()
        used = [fitted for key, fitted in launch._fitting.items() if key[1] == size]
        if size not in used:
            return None
        return captured(work, 5) if time_it else 0.0
    except Exception as error:  # a size that cannot be compiled is a result
        print(f"{case} {size}: {type(error).__name__} {str(error)[:100]}", file=sys.stderr)
        return None


def compile_sizes(part: int, of: int, cases: list[Case], width: int, rows: int, until: float) -> None:
    """Compile every `of`-th size of all cases into Triton's cache."""
    torch.set_float32_matmul_precision("high")
    for case in cases:
        work, before = problem(*case[:3], width, rows), current_size(case, width)
        for index, size in enumerate(sizes()):
            if index % of == part and time.time() < until:
                run_size(case, width, size, work, time_it=False)
        set_size(case, width, before)


def current_size(case: Case, width: int) -> Blocks:
    table = FORWARD if case[3] == "forward" else BACKWARD
    return table[2 if case[1] == "bf16" else 4, KINDS[case[0]]][width]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", default="1000000,26702")
    parser.add_argument("--kinds", default="bf16,tf32")
    parser.add_argument("--problems", default="soft value,cross-entropy")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--compilers", type=int, default=12)
    parser.add_argument("--limit", type=float, default=1e9, help="start no measurement after this many seconds")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("This benchmark needs a CUDA device.", file=sys.stderr)
        return 2
    torch.set_float32_matmul_precision("high")
    until = time.time() + options.limit
    cases: list[Case] = [
        case
        for case in itertools.product(
            options.problems.split(","),
            options.kinds.split(","),
            [int(items) for items in options.items.split(",")],
            ("forward", "backward"),
        )
        if case[0] != "next value" or case[3] == "forward"
    ]
    context, count = get_context("spawn"), options.compilers
    workers = [
        context.Process(
            target=compile_sizes,
            args=(part, count, cases, options.width, options.rows, time.time() + options.limit * 0.6),
        )
        for part in range(count)
    ]
    started = time.time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"compiled in {time.time() - started:.0f} s", flush=True)
    results: list[dict[str, Any]] = []
    for case in cases:
        work, before = problem(*case[:3], options.width, options.rows), current_size(case, options.width)
        now = run_size(case, options.width, before, work, time_it=True)
        times = {}
        for size in sizes():
            if time.time() < until:
                measured = run_size(case, options.width, size, work, time_it=True)
                if measured is not None:
                    times[size] = measured
        set_size(case, options.width, before)
        best = sorted(times.items(), key=lambda pair: pair[1])[:6]
        shown = [(size.rows, size.items, size.warps, size.stages, round(ms, 3)) for size, ms in best]
        result = dict(zip(("problem", "operands", "items", "pass"), case, strict=True))
        result |= {
            "width": options.width,
            "rows": options.rows,
            "current": [*vars(before).values()],
            "current_ms": now,
            "best": shown,
        }
        print(json.dumps(result), flush=True)
        results.append(result)
    if options.json:
        write_results(options.json, results, {"script": script_arguments(options)}, device="cuda")
    return 0


if __name__ == "__main__":
    sys.exit(main())
