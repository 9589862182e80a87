"""Operations whose gradients PyTorch computes on a small part of a GPU. On a CPU they are PyTorch's own."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding

from offrec.catalogue.backend import kernels_enabled


def lookup(table: Tensor, items: Tensor) -> Tensor:
    """Return the rows `items` of a table."""
    if not table.is_cuda:
        return embedding(items, table)
    rows: Tensor = _Lookup.apply(table, items)  # type: ignore[no-untyped-call]
    return rows


def add_to_rows(table: Tensor, row: Tensor) -> Tensor:
    """Return a table [A, d] plus a vector [d]."""
    if not kernels_enabled(table):
        return table + row
    total: Tensor = _AddToRows.apply(table, row)  # type: ignore[no-untyped-call]
    return total


def scale(matrix: Tensor, factor: Tensor) -> Tensor:
    """Return a matrix times a number []."""
    if not matrix.is_cuda:
        return factor * matrix
    scaled: Tensor = _Scale.apply(matrix, factor)  # type: ignore[no-untyped-call]
    return scaled


class _Lookup(torch.autograd.Function):
    """PyTorch's `embedding` adds up the gradients of a batch in two blocks of threads."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, items: Tensor) -> Tensor:
        ctx.save_for_backward(items)
        ctx.shape = table.shape
        return embedding(items, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_rows: Tensor) -> tuple[Tensor, None]:
        (items,) = ctx.saved_tensors
        return to_rows.new_zeros(ctx.shape).index_add_(0, items.flatten(), to_rows.flatten(0, -2)), None


class _AddToRows(torch.autograd.Function):
    """PyTorch's sum over a long first dimension takes longer than `column_sums`."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, row: Tensor) -> Tensor:
        return table + row

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_total: Tensor) -> tuple[Tensor, Tensor]:
        from offrec.catalogue.triton.column_sums import column_sums  # needs triton

        return to_total, column_sums(to_total)


class _Scale(torch.autograd.Function):
    """PyTorch's sum for the gradient of the number uses a single block of threads."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(matrix, factor)
        return factor * matrix

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_scaled: Tensor) -> tuple[Tensor, Tensor]:
        matrix, factor = ctx.saved_tensors
        return factor * to_scaled, torch.dot(to_scaled.flatten(), matrix.flatten())
