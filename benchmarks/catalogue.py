"""The catalogue's functions on one GPU beside dense PyTorch, in one run, with the floor from counted work.

    python benchmarks/catalogue.py [--json FILE] [--quick]

Needs torch, triton and numpy only. Times are medians of CUDA events over repeated runs; memory is the peak beyond the
inputs and their gradients. The floor of a figure is the larger of its matrix products at the measured rate, its
exponentials at 16 a cycle and multiprocessor, and its bytes at the measured bandwidth.
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

from offrec import catalogue
from offrec.catalogue import Head

ALPHA = 0.3
Result = dict[str, Any]


def timed(work: Callable[[], Any], repeats: int = 9) -> float:
    """Median milliseconds; the first runs compile and warm up."""
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
    """The same, replayed as a CUDA graph: what the device needs, whatever the host does. Training runs so."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return timed(graph.replay, repeats)


def peak(work: Callable[[], Any], kept: int) -> float:
    """MB beyond what is held before and `kept` bytes of gradients."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before - kept) / 2**20


def ceilings() -> dict[str, float]:
    """What this card does on plain large operations."""
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
    seconds = (
        products / rates[f"{kind}_per_second"],
        exponentials / rates["exponentials_per_second"],
        size / rates["bytes_per_second"],
    )
    return max(seconds) * 1e3


def made(rows: int, items: int, width: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator("cuda").manual_seed(seed)
    state = torch.randn(rows, width, device="cuda", generator=random).to(dtype).requires_grad_()
    table = (torch.randn(items, width, device="cuda", generator=random) * width**-0.5).to(dtype).requires_grad_()
    return state, table, torch.randint(items, (rows,), device="cuda", generator=random)


def clear(*leaves: Tensor) -> None:
    for leaf in leaves:
        leaf.grad = None


def cross_entropy(rates: dict[str, float], kind: str, rows: int, items: int, width: int, dense: bool) -> Result:
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    state, table, action = made(rows, items, width, dtype)

    def ours() -> None:
        clear(state, table)
        (-catalogue.log_prob(Head(state, table), action[:, None])[:, 0]).mean().backward()

    def plain() -> None:
        clear(state, table)
        functional.cross_entropy((state @ table.T).float(), action).backward()

    element = state.element_size()
    kept = (state.numel() + table.numel()) * element
    found: Result = {"what": "cross-entropy", "operands": kind, "rows": rows, "items": items, "width": width}
    found["ours_ms"] = timed(ours)
    found["ours_captured_ms"] = captured(ours)
    clear(state, table)
    found["ours_mb"] = peak(ours, kept)
    work = rows * items
    found["floor_ms"] = floor_ms(rates, kind, 2 * work * width * 4, 2 * work, 3 * table.numel() * element)
    found["formula"] = "4 products (scores twice, expected vector, table's gradient), 2 exponentials an element"
    if dense:
        found |= against(plain, kept, found["ours_ms"], (state, table))
    return found


def against(plain: Callable[[], None], kept: int, ours_ms: float, leaves: tuple[Tensor, ...]) -> Result:
    try:
        dense_ms = timed(plain, 5)
        small = dense_ms < 10
        replayed = captured(plain, 5) if small else dense_ms  # a long run hides what the host does by itself
        clear(*leaves)
        dense_mb = peak(plain, kept)
    except torch.cuda.OutOfMemoryError:
        return {"dense": "out of memory"}
    return {"dense_ms": dense_ms, "dense_captured_ms": replayed, "dense_mb": dense_mb, "faster": dense_ms / ours_ms}


def soft_value(rates: dict[str, float], kind: str, rows: int, items: int, width: int, dense: bool) -> Result:
    """The actor's loss E_π[log π − Q/α − log b], gradients to π."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    (state, table, _), (sq, tq, _), (sb, tb, _) = (made(rows, items, width, dtype, seed) for seed in range(3))
    pi, q, b = Head(state, table), Head(sq.detach(), tq.detach()), Head(sb.detach(), tb.detach())

    def ours() -> None:
        clear(state, table)
        found = catalogue.reduce(pi, [(1.0, pi), (-1 / ALPHA, q), (-1.0, b)])
        (found.mean - found.lse).mean().backward()

    def plain(part: int = rows) -> None:
        clear(state, table)
        for first in range(0, rows, part):
            mine = slice(first, first + part)
            log_pi = (state[mine] @ table.T).float().log_softmax(1)
            with torch.no_grad():
                fixed = (q.state[mine] @ q.table.T).float() / ALPHA + (b.state[mine] @ b.table.T).float()
            ((log_pi.exp() * (log_pi - fixed)).sum() / rows).backward()

    element = state.element_size()
    kept = (state.numel() + table.numel()) * element
    found: Result = {"what": "soft value", "operands": kind, "rows": rows, "items": items, "width": width}
    found["ours_ms"] = timed(ours)
    found["ours_captured_ms"] = captured(ours)
    clear(state, table)
    found["ours_mb"] = peak(ours, kept)
    work = rows * items
    found["floor_ms"] = floor_ms(rates, kind, 2 * work * width * 9, 2 * work, 7 * table.numel() * element)
    found["formula"] = "9 products (three heads twice, two expected vectors, table's gradient), 2 exponentials"
    if dense:
        more = against(plain, kept, found["ours_ms"], (state, table))
        part = rows
        while "dense" in more and part > 64:
            part //= 2
            clear(state, table)
            more = against(lambda part=part: plain(part), kept, found["ours_ms"], (state, table)) | {
                "dense_rows_at_a_time": part
            }
        found |= more
    return found


def errors(kind: str, rows: int = 512, items: int = 20_003, width: int = 64) -> list[Result]:
    """Largest relative errors of value and gradients against float64, same operands, ours and dense PyTorch's."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    state, table, action = made(rows, items, width, dtype)
    exact = [part.detach().double().requires_grad_() for part in (state, table)]

    def dense(s: Tensor, t: Tensor) -> Tensor:
        z = s @ t.T
        return functional.cross_entropy(z if z.dtype == torch.float64 else z.float(), action)

    truth = dense(*exact)
    truth.backward()
    found = []
    for name in ("kernels", "dense"):
        clear(state, table)
        if name == "dense":
            loss = dense(state, table)
        else:
            loss = -catalogue.log_prob(Head(state, table), action[:, None])[:, 0].mean()
        loss.backward()
        row: Result = {"what": "error", "operands": kind, "by": name, "value": abs(loss.item() / truth.item() - 1)}
        for label, leaf, true in (("state", state, exact[0]), ("table", table, exact[1])):
            difference = (leaf.grad.double() - true.grad).abs().max() / true.grad.abs().max()
            row[f"gradient of {label}"] = difference.item()
        found.append(row)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="the two sizes that matter most, no 10 M")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("This benchmark needs a CUDA device; benchmarks/catalogue_cpu.py is the one for a CPU.", file=sys.stderr)
        return 2
    torch.set_float32_matmul_precision("high")
    rates = ceilings()
    found: list[Result] = [{"what": "ceilings", "device": torch.cuda.get_device_name(), **rates}]
    print(json.dumps(found[0]), flush=True)
    sizes = [1_000_000] if asked.quick else [10_000, 26_702, 100_000, 1_000_000, 10_000_000]
    tasks: list[Callable[[], list[Result]]] = [lambda kind=kind: errors(kind) for kind in ("bf16", "tf32")]
    for of in (cross_entropy, soft_value):
        for kind in ("bf16", "tf32"):
            for items in sizes:
                dense = items <= 1_000_000
                tasks.append(lambda of=of, kind=kind, n=items, dense=dense: [of(rates, kind, 4096, n, 64, dense)])
    for task in tasks:
        for row in task():
            found.append(row)
            print(json.dumps(row), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
