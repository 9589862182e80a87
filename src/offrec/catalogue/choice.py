"""Which of the implementations runs."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding

if TYPE_CHECKING:
    from offrec.catalogue.head import Head

NAMES = ("auto", "reference", "tiled", "kernels")
MOST_WIDTH = 256  # that the kernels take
MOST_PLACES = 1 << 17  # items that a kernel looks through for each block of a table
KINDS = (torch.float32, torch.bfloat16)
_forced = "auto"


@contextmanager
def using(name: str) -> Iterator[None]:
    """Forces an implementation, or with "auto" the choice by device and size, as long as the block lasts."""
    global _forced
    if name not in NAMES:
        raise ValueError(f"{name!r} is no implementation; it is one of {', '.join(NAMES)}")
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def chosen(*heads: "Head") -> str:
    """The implementation that runs over these heads: reference, tiled or kernels."""
    if _forced == "kernels" and any(head.rows == 0 for head in heads):
        return "tiled"  # no program would run
    if _forced != "auto":
        return _forced
    return "kernels" if all(map(_suits_kernels, heads)) and has_triton() else "tiled"


def _suits_kernels(head: "Head") -> bool:
    kinds = {head.state.dtype, head.table.dtype}
    return (
        head.state.is_cuda
        and head.rows > 0
        and head.state.dtype == head.table.dtype
        and head.within is None
        and kinds <= set(KINDS)
        and 1 <= head.state.shape[1] <= MOST_WIDTH
    )


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def by_kernels(table: Tensor, items: Tensor) -> bool:
    """Are few items of a table read by kernels?"""
    if table.dtype not in KINDS or not 1 <= table.shape[1] <= MOST_WIDTH or not 0 < items.numel() <= MOST_PLACES:
        return False
    return _forced == "kernels" or (_forced == "auto" and table.is_cuda and has_triton())


def rows_of(table: Tensor, items: Tensor) -> Tensor:
    """The table's rows: [...] → [..., d]."""
    if by_kernels(table, items):
        from offrec.catalogue.kernel_few import rows_at  # needs triton

        return rows_at(items, table)
    return embedding(items, table)
