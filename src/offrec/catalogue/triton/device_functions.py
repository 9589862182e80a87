"""What the Triton kernels share: loading, products, the hash behind the noise, excluded pairs."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)
NEVER = tl.constexpr(float("-inf"))


@triton.jit
def mix(h):
    """The finaliser of MurmurHash3: every bit of the input moves every bit of the output."""
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h *= 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def row_hash(rows, seed):
    return mix(rows.to(tl.uint32) * 0x9E3779B1 + (tl.load(seed) & 0xFFFFFFFF).to(tl.uint32))


@triton.jit
def gumbel(hashed_row, items, seed):
    """Gumbel noise of (seed, row, item); the bits are those of offrec.catalogue.noise."""
    high = ((tl.load(seed) >> 32) & 0xFFFFFFFF).to(tl.uint32)
    h = mix(hashed_row ^ (items.to(tl.uint32) * 0x85EBCA77 + high))
    u = tl.minimum((h.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    series = u * (1.0 + u * (0.5 + u * (0.33333334 + u * 0.25)))  # −log(1 − u) where 1 − u would lose what u has
    return -tl.log(tl.where(u < 0.01, series, -tl.log(1.0 - u)))


@triton.jit
def block(pointer, first, stop, width, LENGTH: tl.constexpr, WIDTH: tl.constexpr):
    """Rows first … first + LENGTH − 1 of a matrix [stop, width], zeros outside."""
    at = first + tl.arange(0, LENGTH)
    across = tl.arange(0, WIDTH)
    inside = (at < stop)[:, None] & (across < width)[None, :]
    return tl.load(pointer + (at.to(tl.int64) * width)[:, None] + across[None, :], mask=inside, other=0.0)


@triton.jit
def turned_block(pointer, first, stop, width, stride, LENGTH: tl.constexpr, WIDTH: tl.constexpr):
    """The same of a matrix that lies transposed, [width, stride]."""
    at = first + tl.arange(0, LENGTH)
    across = tl.arange(0, WIDTH)
    inside = (across < width)[:, None] & (at < stop)[None, :]
    return tl.trans(tl.load(pointer + across.to(tl.int64)[:, None] * stride + at[None, :], mask=inside, other=0.0))


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    if PRECISION == "interpreted":  # Triton's interpreter takes the bits of a bfloat16 for an integer
        found = tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        found = tl.dot(a, b, input_precision=PRECISION)
    return found


@triton.jit
def restored(found, PRECISION: tl.constexpr):
    """A TF32 product cuts its operands off after ten bits instead of rounding them. Those in registers or of few rows
    are rounded before; for the item table, which goes straight from memory to the tensor cores, this makes up for it:
    numbers whose mantissas are spread as numbers' mantissas are come out smaller by 2⁻¹¹ · ½ / ln 2 on average.
    """
    if PRECISION == "tf32":
        found *= 1.000352
    return found


@triton.jit
def rounded(x, PRECISION: tl.constexpr):
    """To the nearest TF32 number."""
    if PRECISION == "tf32" and x.dtype == tl.float32:
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def plus_product(total, a, b, PRECISION: tl.constexpr):
    if PRECISION == "interpreted":
        total += tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def excluded_here(
    edges, pair_row, pair_item, bucket, own, other, OWN: tl.constexpr, OTHER: tl.constexpr, BY_ROW: tl.constexpr
):
    """[OWN, OTHER] how often a pair (row, item) of this tile is excluded: a product of two one-hot matrices.

    BY_ROW: `own` are rows and `other` items; else the other way round.
    """
    begin, end = tl.load(edges + bucket), tl.load(edges + bucket + 1)
    hits = tl.zeros([OWN, OTHER], dtype=tl.float32)
    for first in range(begin, end, 16):
        at = first + tl.arange(0, 16)
        row = tl.load(pair_row + at, mask=at < end, other=-1)
        item = tl.load(pair_item + at, mask=at < end, other=-1)
        left = row if BY_ROW else item
        right = item if BY_ROW else row
        one = (own[:, None] == left[None, :]).to(tl.float16)
        two = (right[:, None] == other[None, :]).to(tl.float16)
        hits = tl.dot(one, two, hits)
    return hits
