"""Choice of the implementation: dense reference, tiled PyTorch or Triton kernels."""

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
MAX_KERNEL_WIDTH = 256  # the widest states and item vectors that the kernels support
MAX_KERNEL_ITEMS = 1 << 20  # the kernels for single items read at most this many (row, item) pairs at once
KERNEL_DTYPES = (torch.float32, torch.bfloat16)
_forced = "auto"


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Use one implementation for all catalogue functions inside a `with` block.

    Args:
        name: "reference" (dense), "tiled" (PyTorch), "kernels" (Triton), or "auto", which chooses by device and size.

    Raises:
        ValueError: If no backend has this name.
    """
    global _forced
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; expected one of {', '.join(BACKENDS)}")
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def backend_for(*heads: "Head") -> str:
    """Return the implementation that runs over these heads: "reference", "tiled" or "kernels"."""
    if _forced == "kernels" and any(head.n_rows == 0 for head in heads):
        return "tiled"  # a kernel cannot be launched with an empty grid
    if _forced != "auto":
        return _forced
    return "kernels" if all(map(_supports_kernels, heads)) and has_triton() else "tiled"


def _supports_kernels(head: "Head") -> bool:
    return (
        head.state.is_cuda
        and head.n_rows > 0
        and head.state.dtype == head.table.dtype
        and head.support is None
        and head.state.dtype in KERNEL_DTYPES
        and 1 <= head.state.shape[1] <= MAX_KERNEL_WIDTH
    )


@cache
def has_triton() -> bool:
    """Return whether the package `triton` is installed."""
    return importlib.util.find_spec("triton") is not None


def kernels_enabled(items: Tensor) -> bool:
    """Return whether kernels are used on the device of these items."""
    return _forced == "kernels" or (_forced == "auto" and items.is_cuda and has_triton())


def kernels_read(table: Tensor, items: Tensor) -> bool:
    """Return whether a kernel reads the rows `items` of a table [A, d]."""
    supported = table.dtype in KERNEL_DTYPES and 1 <= table.shape[1] <= MAX_KERNEL_WIDTH
    return supported and 0 < items.numel() <= MAX_KERNEL_ITEMS and kernels_enabled(items)
