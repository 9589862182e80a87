"""Which of the implementations runs."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from offrec.catalogue.head import Head

NAMES = ("auto", "reference", "tiled", "kernels")
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


def chosen(*heads: Head) -> str:
    """The implementation that runs over these heads: reference, tiled or kernels."""
    if _forced != "auto":
        return _forced
    return "kernels" if all(map(_suits_kernels, heads)) and _has_triton() else "tiled"


def _suits_kernels(head: Head) -> bool:
    kinds = {head.state.dtype, head.table.dtype}
    return (
        head.state.is_cuda
        and head.within is None
        and kinds <= {torch.float32, torch.bfloat16}
        and 1 <= head.state.shape[1] <= 256
    )


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
