"""A batch gathered by one Triton kernel: the operations of `Replay.gather` are 44 small ones, one after the other, and
what several networks derive from a batch a few more.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from offrec.data import triton_gather_kernel
from offrec.types import Batch, DerivedColumns, Size

ROWS = 8  # rows or pieces of a program
EVEN = 16  # numbers of a kind begin at a multiple of so many: for pointers that do not, kernels are compiled anew


class Log(NamedTuple):
    """What lies on the device, as `Replay` has it."""

    bounds: Tensor  # [3, P]
    items: Tensor  # [E]
    mdp: Tensor  # [3, E]


def gathered(
    log: Log, order: Tensor, edges: Tensor, step: Tensor, size: Size, history: int, n_items: int, base: int
) -> Batch:
    """What `Replay.gather` makes of the same, bit for bit, and what is derived from it."""
    device, room = log.items.device, triton.cdiv(size.rows, EVEN) * EVEN
    started = torch.empty(size.segments, 1 + size.length, dtype=torch.long, device=device)
    longs = torch.empty(6, room, dtype=torch.long, device=device)
    floats = torch.empty(5, room, device=device)
    recent = torch.empty(2, size.rows, history, dtype=torch.long, device=device)
    triton_gather_kernel.gather[(triton.cdiv(size.rows, ROWS) + triton.cdiv(size.segments, ROWS),)](
        order, edges, step, log.bounds.contiguous(), log.items, log.mdp.contiguous(), started, longs, floats, recent,
        log.bounds.shape[1], len(log.items), size.segments, size.rows, room, size.length, history, n_items, base,
        BM=ROWS, WIDE=64, CHUNK=256, num_warps=4,
    )  # fmt: skip
    segment, position, state_index, next_state_index, action, event = longs[:, : size.rows]
    reward, discount, return_to_go, next_return_to_go, weight = floats[:, : size.rows]
    derived = DerivedColumns(state_index, next_state_index, next_return_to_go, recent[1], started)
    return Batch(
        started[:, 1:],
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
