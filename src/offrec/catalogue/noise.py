"""Gumbel noise as a function of (seed, row, item): the same in every implementation, made anew and never stored."""

from dataclasses import dataclass

import torch
from torch import Tensor

ROW, ITEM = 0x9E3779B1, 0x85EBCA77  # odd constants that spread neighbouring rows and items
FIRST, SECOND = 0x85EBCA6B, 0xC2B2AE35  # MurmurHash3's last mixing step


@dataclass(frozen=True)
class Noise:
    seed: Tensor  # int64, 0-d, on the head's device


def gumbel_noise(noise: Noise, rows: Tensor, items: Tensor) -> Tensor:
    """Standard Gumbel draws g(row, item), float32, for rows and items (int64) that broadcast."""
    return _gumbel(hashed(noise, rows, items))


def hashed(noise: Noise, rows: Tensor, items: Tensor) -> Tensor:
    """32 bits for each (row, item), as int32. Its products wrap as unsigned ones do; its shifts keep the sign."""
    low, high = _bits(noise.seed), _bits(noise.seed >> 32)
    row = _mixed(_bits(rows * ROW) + low)
    return _mixed(row ^ (_bits(items * ITEM) + high))


def _bits(number: Tensor) -> Tensor:
    """The lowest 32 bits of int64, as int32."""
    number = number & 0xFFFFFFFF
    return (number - ((number & 0x80000000) << 1)).to(torch.int32)


def _mixed(h: Tensor) -> Tensor:
    """Overwrites h."""
    for shift, factor in ((16, FIRST), (13, SECOND)):
        h ^= (h >> shift).bitwise_and_((1 << (32 - shift)) - 1)
        h *= factor - (1 << 32)
    h ^= (h >> 16).bitwise_and_(0xFFFF)
    return h


def _gumbel(h: Tensor) -> Tensor:
    """−log(−log(1 − u)). The largest draws have u near 0, where float32 has more resolution than near 1."""
    u = (h >> 16).bitwise_and_(0xFFFF).float().mul_(65536.0).add_((h & 0xFFFF).float())
    u.add_(0.5).mul_(2.0**-32).clamp_(max=1 - 2.0**-24)
    return u.neg_().log1p_().neg_().log_().neg_()
