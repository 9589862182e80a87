"""Float32 products on a CPU, by the fastest library that PyTorch contains.

`torch.mm` calls MKL, which uses only half of the width of the vector registers on CPUs of AMD. On the one that was
measured, with AVX-512, oneDNN takes less than half of the time. The library depends on the CPU and the shapes, and not
on a measurement, so that the same run always gives the same result on a machine. Whether a server uses int8 products
does depend on a measurement (`least_time`): its lists are the same with and without them.
"""

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

MIN_ROWS = 16  # products with fewer rows are limited by reading the table


def rows_by_columns(rows: Tensor, columns: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Compute rows · columnsᵀ + bias.

    Args:
        rows: [n, d].
        columns: [m, d].
        bias: [m].
        out: [n, m], which may be overwritten.

    Returns:
        [n, m], in `out` or in a new tensor.
    """
    if uses_onednn(rows, columns):
        return _onednn(rows, columns, bias)
    if bias is None:
        return torch.mm(rows, columns.T, out=out)
    return torch.addmm(bias, rows, columns.T, out=out)


def table_by_states(table: Tensor, state: Tensor, out: Tensor) -> Tensor:
    """Compute table [n, d] · stateᵀ [d, B] for a large table and few states: [n, B], in `out` or in a new tensor."""
    if len(state) == 1:  # products with a matrix use all threads, those with a vector only one
        return torch.mm(table, state.repeat(2, 1).T)[:, :1]
    return rows_by_columns(table, state, out=out)


def weighted_rows(weight: Tensor, table: Tensor) -> Tensor:
    """Compute weight [B, n] · table [n, d]: [B, d]."""
    return rows_by_columns(weight, table.T)


def add_weighted_rows(total: Tensor, weight: Tensor, table: Tensor) -> None:
    """Add weight [B, n] · table [n, d] to `total` [B, d]."""
    if uses_onednn(weight, table):
        total += weighted_rows(weight, table)
    else:
        total.addmm_(weight, table)


def weighted_states(weight: Tensor, state: Tensor, out: Tensor) -> Tensor:
    """Compute weightᵀ [n, B] · state [B, d] into `out` [n, d]."""
    if uses_onednn(weight, state):  # the transposed product is faster than the product of the transposed weights
        return out.copy_(_onednn(state.T, weight.T, None).T)
    return out.copy_(weight.T @ state)  # with `out`, a product of one row and one column may read what was in it


def uses_onednn(first: Tensor, second: Tensor) -> bool:
    """Return whether oneDNN computes a product."""
    return (
        first.device.type == "cpu"
        and first.dtype == second.dtype == torch.float32
        and min(*first.shape, *second.shape) >= MIN_ROWS
        and not (torch.is_grad_enabled() and (first.requires_grad or second.requires_grad))
        and has_onednn()
    )


@cache
def has_onednn() -> bool:
    """Return whether this CPU has AVX-512 and this PyTorch contains the function of oneDNN, with the right result."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    rows = torch.arange(32.0).view(16, 2)
    try:
        return torch.equal(_onednn(rows, rows, None), rows @ rows.T)
    except (AttributeError, RuntimeError):  # a private function, which another version may not have
        return False


def _onednn(rows: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, columns, bias, "none", [], "")
    return product


def least_time(call: Callable[[], object], calls: int = 4) -> float:
    """Return the least CPU time of some calls after the first one, in one thread: waiting threads use CPU time too.

    Torch's number of threads is 1 meanwhile. A thread whose first product is computed then keeps that number, so a
    server calls this before it starts other threads.
    """
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
