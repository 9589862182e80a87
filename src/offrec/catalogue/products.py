"""Float32 products on a CPU, by the fastest library that PyTorch contains.

`torch.mm` calls MKL, which uses half of the width of the vector registers on some CPUs: there oneDNN takes half of the
time. Which one is faster depends on the CPU and on the sizes, so it is measured once per size, in a few milliseconds.
"""

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

LIBRARY_ROWS = 4  # products with fewer rows are limited by reading the table
ITEMS = 8192  # of the products that are measured


def multiply(table: Tensor, state: Tensor, out: Tensor) -> Tensor:
    """Compute table · stateᵀ.

    Args:
        table: [A, d] float32, on the CPU.
        state: [B, d] float32.
        out: [A, B], which may be overwritten.

    Returns:
        [A, B], in `out` or in a new tensor.
    """
    if len(state) == 1:  # products with a matrix use all threads, those with a vector only one
        return torch.mm(table, state.repeat(2, 1).T)[:, :1]
    if len(state) >= LIBRARY_ROWS and is_onednn_faster(table.shape[1], _power_of_two(len(state))):
        return multiply_onednn(table, state)
    return torch.mm(table, state.T, out=out)


def multiply_onednn(rows: Tensor, columns: Tensor) -> Tensor:
    """Compute rows · columnsᵀ with oneDNN; see `has_onednn`."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, columns, None, "none", [], "")
    return product


@cache
def has_onednn() -> bool:
    """Return whether this PyTorch contains the function of oneDNN that `multiply_onednn` needs, and it is exact."""
    rows = torch.arange(8.0)[:, None] + 1
    try:
        return torch.equal(multiply_onednn(rows, rows), rows * rows.T)
    except (AttributeError, RuntimeError):  # a private function, which another version may not have
        return False


@cache
def is_onednn_faster(width: int, rows: int) -> bool:
    """Measure whether oneDNN multiplies [items, width] by [rows, width] in at most 0.9 of the time of `torch.mm`."""
    if not has_onednn():
        return False
    table, state, out = torch.ones(ITEMS, width), torch.ones(rows, width), torch.empty(ITEMS, rows)
    seconds = [
        least_time(lambda: multiply_onednn(table, state)),
        least_time(lambda: torch.mm(table, state.T, out=out)),
    ]
    return seconds[0] < 0.9 * seconds[1]


def least_time(call: Callable[[], object], calls: int = 4) -> float:
    """Return the least CPU time of some calls after the first one, in one thread: waiting threads use CPU time too."""
    times, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(calls):
            start = time.thread_time()  # other threads and processes do not change it
            call()
            times.append(time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    return min(times[1:])


def _power_of_two(rows: int) -> int:
    return 1 << (rows.bit_length() - 1)
