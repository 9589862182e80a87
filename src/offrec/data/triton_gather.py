"""Gather a batch with one Triton kernel.

It replaces the 44 small operations of `Replay.gather` and those that derive further columns from the batch.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from offrec.data import triton_gather_kernel
from offrec.types import Batch, DerivedColumns, Size

ROWS = 8  # rows or segments per program
ALIGNMENT = 16  # each column starts at a multiple of this; Triton compiles separate kernels for unaligned pointers


class DeviceLog(NamedTuple):
    """The tensors of a `Replay`."""

    bounds: Tensor  # [3, P]
    items: Tensor  # [E]
    mdp: Tensor  # [3, E]


def gather_by_kernel(
    log: DeviceLog, order: Tensor, edges: Tensor, step: Tensor, size: Size, history: int, n_items: int, first_event: int
) -> Batch:
    """Return the batch of `Replay.gather`, bit for bit, with its derived columns."""
    device, stride = log.items.device, triton.cdiv(size.rows, ALIGNMENT) * ALIGNMENT
    tokens = torch.empty(size.segments, 1 + size.length, dtype=torch.long, device=device)
    longs = torch.empty(6, stride, dtype=torch.long, device=device)
    floats = torch.empty(5, stride, device=device)
    recent = torch.empty(2, size.rows, history, dtype=torch.long, device=device)
    triton_gather_kernel.gather[(triton.cdiv(size.rows, ROWS) + triton.cdiv(size.segments, ROWS),)](
        order, edges, step, log.bounds.contiguous(), log.items, log.mdp.contiguous(), tokens, longs, floats, recent,
        log.bounds.shape[1], len(log.items), size.segments, size.rows, stride, size.length, history, n_items,
        first_event, BM=ROWS, BL=64, CHUNK=256, num_warps=4,
    )  # fmt: skip
    segment, position, state_index, next_state_index, action, event = longs[:, : size.rows]
    reward, discount, return_to_go, next_return_to_go, weight = floats[:, : size.rows]
    derived = DerivedColumns(state_index, next_state_index, next_return_to_go, recent[1], tokens)
    return Batch(
        tokens[:, 1:],
        segment,
        position,
        recent[0],
        action,
        event,
        reward,
        discount,
        return_to_go,
        weight,
        derived,
    )
