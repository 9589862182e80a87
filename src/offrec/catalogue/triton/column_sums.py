"""Sums over the rows of an item table. PyTorch's sum over a long first dimension fills a small part of a GPU."""

import torch
import triton
from torch import Tensor

from offrec.catalogue.triton import row_kernels
from offrec.catalogue.triton.launch import padded_width

PROGRAMS = 256
ROWS = 32  # per step of a program


def column_sums(table: Tensor) -> Tensor:
    """Return the sum of the rows of a float32 table [A, d]."""
    rows, width = table.shape
    if rows == 0:
        return table.new_zeros(width)
    table, programs = table.contiguous(), min(PROGRAMS, triton.cdiv(rows, ROWS))
    sums = torch.empty(programs, width, device=table.device)
    each = triton.cdiv(rows, programs)
    row_kernels.sum_rows[(programs,)](table, sums, rows, each, width, D=padded_width(width), BM=ROWS, num_warps=4)
    total = torch.empty(1, width, device=table.device)
    row_kernels.sum_rows[(1,)](sums, total, programs, programs, width, D=padded_width(width), BM=ROWS, num_warps=4)
    return total[0]
