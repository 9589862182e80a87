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

BACKENDS = ("auto", "reference", "tiled", "kernels")
MAX_KERNEL_WIDTH = 256  # that the kernels take
MAX_KERNEL_ITEMS = 1 << 20  # few items, of all rows together
KERNEL_DTYPES = (torch.float32, torch.bfloat16)
_forced = "auto"


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Forces an implementation, or with "auto" the choice by device and size, as long as the block lasts."""
    global _forced
    if name not in BACKENDS:
        raise ValueError(f"{name!r} is no implementation; it is one of {', '.join(BACKENDS)}")
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def backend_for(*heads: "Head") -> str:
    """The implementation that runs over these heads: reference, tiled or kernels."""
    if _forced == "kernels" and any(head.n_rows == 0 for head in heads):
        return "tiled"  # no program would run
    if _forced != "auto":
        return _forced
    return "kernels" if all(map(_suits_kernels, heads)) and has_triton() else "tiled"


def _suits_kernels(head: "Head") -> bool:
    kinds = {head.state.dtype, head.table.dtype}
    return (
        head.state.is_cuda
        and head.n_rows > 0
        and head.state.dtype == head.table.dtype
        and head.support is None
        and kinds <= set(KERNEL_DTYPES)
        and 1 <= head.state.shape[1] <= MAX_KERNEL_WIDTH
    )


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def kernels_fit(table: Tensor, items: Tensor) -> bool:
    """Are few items of a table read by kernels?"""
    fits = (
        table.dtype in KERNEL_DTYPES
        and 1 <= table.shape[1] <= MAX_KERNEL_WIDTH
        and 0 < items.numel() <= MAX_KERNEL_ITEMS
    )
    return fits and kernels_enabled(items)


def kernels_enabled(items: Tensor) -> bool:
    return _forced == "kernels" or (_forced == "auto" and items.is_cuda and has_triton())


def matched(values: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """[B, n] for each target [B, n] the sum of the values [B, H] whose source [B, H] is the same item."""
    if kernels_fit(values, targets) and values.dtype == torch.float32 and targets.shape[1] <= MAX_KERNEL_WIDTH:
        from offrec.catalogue.triton import few_items  # needs triton

        return few_items.matched(values, sources, targets)
    same = sources[:, None, :] == targets[:, :, None]  # [B, n, H]
    return torch.where(same, values[:, None, :], 0.0).sum(-1)  # 0 · NaN would spoil the whole row
