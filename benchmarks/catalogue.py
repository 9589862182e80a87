"""Compare the functions over the catalogue with dense PyTorch on one GPU, and with a lower bound on the time.

    python benchmarks/catalogue.py [--json FILE] [--quick]

Needs only torch, triton and numpy. Times are medians of CUDA events over repeated runs; memory is the peak beyond the
inputs and their gradients. The lower bound ("floor") is the largest of three times: the matrix products at the measured
rate, the exponentials at 16 per cycle and multiprocessor, and the bytes at the measured bandwidth.
"""

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evidence import script_arguments, write_results
from offrec import catalogue
from offrec.catalogue import Head

ALPHA = 0.3
Result = dict[str, Any]


def timed(work: Callable[[], Any], repeats: int = 9) -> float:
    """Return the median time in milliseconds, after three runs that compile and warm up."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def captured(work: Callable[[], Any], repeats: int = 9) -> float:
    """Return the median time of a CUDA graph, as in training: the time on the device, without the host."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return timed(graph.replay, repeats)


def peak(work: Callable[[], Any], gradients: int) -> float:
    """Return the peak memory in MB beyond earlier allocations and `gradients` bytes of gradients."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before - gradients) / 2**20


def device_rates() -> dict[str, float]:
    """Measure the rates of plain large operations on this device."""
    big = torch.empty(1 << 29, dtype=torch.bfloat16, device="cuda")
    other = torch.empty_like(big)
    bandwidth = 2 * big.numel() * 2 / timed(lambda: other.copy_(big)) * 1e3
    rates = {}
    for name, dtype in (("bf16", torch.bfloat16), ("tf32", torch.float32)):
        a, b = (torch.randn(8192, 8192, dtype=dtype, device="cuda") for _ in range(2))
        rates[name] = 2 * 8192**3 / timed(lambda a=a, b=b: a @ b) * 1e3
    properties = torch.cuda.get_device_properties(0)
    return {
        "bytes_per_second": bandwidth,
        "bf16_per_second": rates["bf16"],
        "tf32_per_second": rates["tf32"],
        "exponentials_per_second": 16 * properties.multi_processor_count * 1.7e9,
    }


def floor_ms(rates: dict[str, float], kind: str, products: float, exponentials: float, size: float) -> float:
    """Return the lower bound in milliseconds, from the amount of work and the measured rates."""
    seconds = (
        products / rates[f"{kind}_per_second"],
        exponentials / rates["exponentials_per_second"],
        size / rates["bytes_per_second"],
    )
    return max(seconds) * 1e3


def random_problem(
    rows: int, items: int, width: int, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator("cuda").manual_seed(seed)
    state = torch.randn(rows, width, device="cuda", generator=random).to(dtype).requires_grad_()
    table = (torch.randn(items, width, device="cuda", generator=random) * width**-0.5).to(dtype).requires_grad_()
    return state, table, torch.randint(items, (rows,), device="cuda", generator=random)


def clear_gradients(*leaves: Tensor) -> None:
    for leaf in leaves:
        leaf.grad = None


def cross_entropy(rates: dict[str, float], kind: str, rows: int, items: int, width: int, dense: bool) -> Result:
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    state, table, action = random_problem(rows, items, width, dtype)

    def ours() -> None:
        clear_gradients(state, table)
        (-catalogue.log_prob(Head(state, table), action[:, None])[:, 0]).mean().backward()

    def plain() -> None:
        clear_gradients(state, table)
        functional.cross_entropy((state @ table.T).float(), action).backward()

    element = state.element_size()
    gradient_bytes = (state.numel() + table.numel()) * element
    results: Result = {"what": "cross-entropy", "operands": kind, "rows": rows, "items": items, "width": width}
    results["ours_ms"] = timed(ours)
    results["ours_captured_ms"] = captured(ours)
    clear_gradients(state, table)
    results["ours_mb"] = peak(ours, gradient_bytes)
    work = rows * items
    results["floor_ms"] = floor_ms(rates, kind, 2 * work * width * 4, 2 * work, 3 * table.numel() * element)
    results["formula"] = "4 products (scores twice, expected vector, gradient of the table), 2 exponentials per element"
    if dense:
        results |= measure_dense(plain, gradient_bytes, results["ours_ms"], (state, table))
    return results


def measure_dense(plain: Callable[[], None], gradient_bytes: int, ours_ms: float, leaves: tuple[Tensor, ...]) -> Result:
    try:
        dense_ms = timed(plain, 5)
        small = dense_ms < 10
        replayed = captured(plain, 5) if small else dense_ms  # in a long run the time of the host is hidden
        clear_gradients(*leaves)
        dense_mb = peak(plain, gradient_bytes)
    except torch.cuda.OutOfMemoryError:
        return {"dense": "out of memory"}
    return {"dense_ms": dense_ms, "dense_captured_ms": replayed, "dense_mb": dense_mb, "faster": dense_ms / ours_ms}


def soft_value(rates: dict[str, float], kind: str, rows: int, items: int, width: int, dense: bool) -> Result:
    """Measure the actor's loss E_π[log π − Q/α − log b], with gradients to π."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    (state, table, _), (sq, tq, _), (sb, tb, _) = (random_problem(rows, items, width, dtype, seed) for seed in range(3))
    pi, q, b = Head(state, table), Head(sq.detach(), tq.detach()), Head(sb.detach(), tb.detach())

    def ours() -> None:
        clear_gradients(state, table)
        sums = catalogue.reduce(pi, [(1.0, pi), (-1 / ALPHA, q), (-1.0, b)])
        (sums.mean - sums.lse).mean().backward()

    def plain(part: int = rows) -> None:
        clear_gradients(state, table)
        for first in range(0, rows, part):
            chunk = slice(first, first + part)
            log_pi = (state[chunk] @ table.T).float().log_softmax(1)
            with torch.no_grad():
                fixed = (q.state[chunk] @ q.table.T).float() / ALPHA + (b.state[chunk] @ b.table.T).float()
            ((log_pi.exp() * (log_pi - fixed)).sum() / rows).backward()

    element = state.element_size()
    gradient_bytes = (state.numel() + table.numel()) * element
    results: Result = {"what": "soft value", "operands": kind, "rows": rows, "items": items, "width": width}
    results["ours_ms"] = timed(ours)
    results["ours_captured_ms"] = captured(ours)
    clear_gradients(state, table)
    results["ours_mb"] = peak(ours, gradient_bytes)
    work = rows * items
    results["floor_ms"] = floor_ms(rates, kind, 2 * work * width * 9, 2 * work, 7 * table.numel() * element)
    results["formula"] = "9 products (three heads twice, two expected vectors, gradient of the table), 2 exponentials"
    if dense:
        more = measure_dense(plain, gradient_bytes, results["ours_ms"], (state, table))
        part = rows
        while "dense" in more and part > 64:
            part //= 2
            clear_gradients(state, table)
            more = measure_dense(lambda part=part: plain(part), gradient_bytes, results["ours_ms"], (state, table)) | {
                "dense_rows_at_a_time": part
            }
        results |= more
    return results


def errors(kind: str, rows: int = 512, items: int = 20_003, width: int = 64) -> list[Result]:
    """Return the largest relative errors against float64, of the kernels and of dense PyTorch."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    state, table, action = random_problem(rows, items, width, dtype)
    exact = [part.detach().double().requires_grad_() for part in (state, table)]

    def dense(s: Tensor, t: Tensor) -> Tensor:
        z = s @ t.T
        return functional.cross_entropy(z if z.dtype == torch.float64 else z.float(), action)

    exact_loss = dense(*exact)
    exact_loss.backward()
    results = []
    for name in ("kernels", "dense"):
        clear_gradients(state, table)
        if name == "dense":
            loss = dense(state, table)
        else:
            loss = -catalogue.log_prob(Head(state, table), action[:, None])[:, 0].mean()
        loss.backward()
        row: Result = {"what": "error", "operands": kind, "by": name, "value": abs(loss.item() / exact_loss.item() - 1)}
        for label, leaf, true in (("state", state, exact[0]), ("table", table, exact[1])):
            difference = (leaf.grad.double() - true.grad).abs().max() / true.grad.abs().max()
            row[f"gradient of {label}"] = difference.item()
        results.append(row)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--quick", action="store_true", help="only one million items")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("This benchmark needs a CUDA device; use benchmarks/catalogue_cpu.py on a CPU.", file=sys.stderr)
        return 2
    torch.set_float32_matmul_precision("high")
    rates = device_rates()
    results: list[Result] = [{"what": "ceilings", "device": torch.cuda.get_device_name(), **rates}]
    print(json.dumps(results[0]), flush=True)
    sizes = [1_000_000] if options.quick else [10_000, 26_702, 100_000, 1_000_000, 10_000_000]
    tasks: list[Callable[[], list[Result]]] = [lambda kind=kind: errors(kind) for kind in ("bf16", "tf32")]
    for of in (cross_entropy, soft_value):
        for kind in ("bf16", "tf32"):
            for items in sizes:
                dense = items <= 1_000_000
                tasks.append(lambda of=of, kind=kind, n=items, dense=dense: [of(rates, kind, 4096, n, 64, dense)])
    for task in tasks:
        for row in task():
            results.append(row)
            print(json.dumps(row), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    if options.json:
        write_results(options.json, results, {"script": script_arguments(options)}, device="cuda")
    return 0


if __name__ == "__main__":
    sys.exit(main())
