"""Which of the implementations runs."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from offrec.catalogue.head import Head

NAMES = ("auto", "reference", "tiled", "kernels")
MOST_WIDTH = 256  # that the kernels take
MOST_PLACES = 1 << 20  # few items, of all rows together
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
    fits = table.dtype in KINDS and 1 <= table.shape[1] <= MOST_WIDTH and 0 < items.numel() <= MOST_PLACES
    return fits and kernels_for(items)


def kernels_for(items: Tensor) -> bool:
    return _forced == "kernels" or (_forced == "auto" and items.is_cuda and has_triton())


def matched(values: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """[B, n] for each target [B, n] the sum of the values [B, H] whose source [B, H] is the same item."""
    if by_kernels(values, targets) and values.dtype == torch.float32 and targets.shape[1] <= MOST_WIDTH:
        from offrec.catalogue.triton import few_items  # needs triton

        return few_items.matched(values, sources, targets)
    same = sources[:, None, :] == targets[:, :, None]  # [B, n, H]
    return torch.where(same, values[:, None, :], 0.0).sum(-1)  # 0 · NaN would spoil the whole row
