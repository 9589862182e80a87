"""Gumbel noise as a function of (seed, row, item). All implementations recompute the same noise; none stores it."""

from dataclasses import dataclass

import torch
from torch import Tensor

ROW, ITEM = 0x9E3779B1, 0x85EBCA77  # odd constants that decorrelate neighbouring rows and items
FIRST, SECOND = 0x85EBCA6B, 0xC2B2AE35  # the finaliser of MurmurHash3


@dataclass(frozen=True)
class Noise:
    """The seed of Gumbel noise over all rows and items."""

    seed: Tensor  # 0-d int64, on the head's device

    def from_item(self, first: int) -> "Noise":
        """Return noise whose item 0 has the draws of item `first` of this noise, for a part of the catalogue.

        Items are hashed as items · ITEM + high bits of the seed, so a range of items is a change of the high bits.
        """
        high = ((self.seed >> 32) + first * ITEM) & 0xFFFFFFFF
        return Noise((high << 32) | (self.seed & 0xFFFFFFFF))


def gumbel_noise(noise: Noise, rows: Tensor, items: Tensor) -> Tensor:
    """Compute standard Gumbel draws g(row, item) in float32, for rows and items (int64) that broadcast."""
    return _gumbel(hash_bits(noise, rows, items))


def precise_gumbel_noise(noise: Noise, rows: Tensor, items: Tensor) -> Tensor:
    """Compute standard Gumbel draws g(row, item) in float64, from 64 random bits each.

    With 32 bits, the largest draws of a hundred million items would often be equal.
    """
    low, high = (hash_bits(Noise(noise.seed ^ other), rows, items).double() for other in (SECOND, 0))
    u = (low.add_(2.0**31 + 0.5).mul_(2.0**-32)).add_(high.add_(2.0**31)).mul_(2.0**-32).clamp_(max=1 - 2.0**-53)
    return u.neg_().log1p_().neg_().log_().neg_()


def hash_bits(noise: Noise, rows: Tensor, items: Tensor) -> Tensor:
    """Compute 32 random bits per (row, item), as int32.

    Products of int32 wrap as unsigned products do, but a right shift copies the sign bit, so shifts are masked.
    """
    low, high = _low_bits(noise.seed), _low_bits(noise.seed >> 32)
    row = _mix(_low_bits(rows * ROW) + low)
    return _mix(row ^ (_low_bits(items * ITEM) + high))


def _low_bits(number: Tensor) -> Tensor:
    """Return the lowest 32 bits of an int64, as int32."""
    number = number & 0xFFFFFFFF
    return (number - ((number & 0x80000000) << 1)).to(torch.int32)


def _mix(h: Tensor) -> Tensor:
    """Apply the finaliser of MurmurHash3; overwrites h."""
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
