"""Device functions that the kernels share: loads, products, the hash of the noise, excluded pairs."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)  # finite start of a running maximum: −inf − (−inf) would be NaN
NEVER = tl.constexpr(float("-inf"))  # the score of an item that is not in the sum


@triton.jit
def mix(h):
    """Apply the finaliser of MurmurHash3: every input bit affects every output bit."""
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h *= 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def row_hash(rows, seed):
    """Hash rows with the low 32 bits of the seed."""
    return mix(rows.to(tl.uint32) * 0x9E3779B1 + (tl.load(seed) & 0xFFFFFFFF).to(tl.uint32))


@triton.jit
def gumbel(hashed_row, items, seed):
    """Compute the Gumbel noise for (seed, row, item) from the same bits as `offrec.catalogue.noise`."""
    high = ((tl.load(seed) >> 32) & 0xFFFFFFFF).to(tl.uint32)
    h = mix(hashed_row ^ (items.to(tl.uint32) * 0x85EBCA77 + high))
    u = tl.minimum((h.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    series = u * (1.0 + u * (0.5 + u * (0.33333334 + u * 0.25)))  # −log(1 − u) for small u: 1 − u would lose digits
    return -tl.log(tl.where(u < 0.01, series, -tl.log(1.0 - u)))


@triton.jit
def block(pointer, first, stop, width, LENGTH: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows first … first + LENGTH − 1 of a matrix [stop, width], zeros outside of it."""
    at = first + tl.arange(0, LENGTH)
    across = tl.arange(0, WIDTH)
    inside = (at < stop)[:, None] & (across < width)[None, :]
    return tl.load(pointer + (at.to(tl.int64) * width)[:, None] + across[None, :], mask=inside, other=0.0)


@triton.jit
def rows_of(pointer, first, stop, width: tl.constexpr, LENGTH: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Load rows like `block`; without MASKED, all rows exist, and loads without a mask are faster."""
    if MASKED:
        loaded = block(pointer, first, stop, width, LENGTH, WIDTH)
    else:
        at = first + tl.arange(0, LENGTH)
        across = tl.arange(0, WIDTH)
        start = pointer + (at.to(tl.int64) * width)[:, None] + across[None, :]
        loaded = tl.load(start) if width == WIDTH else tl.load(start, mask=(across < width)[None, :], other=0.0)
    return loaded


@triton.jit
def numbers(pointer, at, inside, MASKED: tl.constexpr):
    """Load a number per row or item; without MASKED, all of them exist."""
    return tl.load(pointer + at, mask=inside, other=0.0) if MASKED else tl.load(pointer + at)


@triton.jit
def transposed_block(
    pointer, first, stop, width: tl.constexpr, stride, LENGTH: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr
):
    """Load rows like `rows_of`, from a matrix that is stored transposed, [width, stride]."""
    at = first + tl.arange(0, LENGTH)
    across = tl.arange(0, WIDTH)
    start = pointer + across.to(tl.int64)[:, None] * stride + at[None, :]
    if MASKED or width < WIDTH:
        loaded = tl.load(start, mask=(across < width)[:, None] & (at < stop)[None, :], other=0.0)
    else:
        loaded = tl.load(start)
    return tl.trans(loaded)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """Multiply two blocks with a given precision."""
    if PRECISION == "interpreted":  # Triton's interpreter reads the bits of a bfloat16 as an integer
        result = tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        result = tl.dot(a, b, input_precision=PRECISION)
    return result


@triton.jit
def correct_truncation(x, PRECISION: tl.constexpr):
    """Correct the bias of a TF32 product, which truncates its operands after ten bits instead of rounding them.

    Operands in registers and states are rounded first. The item table goes from memory straight to the tensor cores, so
    its truncation is corrected here: with log-uniform mantissas it makes numbers smaller by 2⁻¹¹ · ½ / ln 2 on average.
    """
    if PRECISION == "tf32":
        x *= 1.000352
    return x


@triton.jit
def to_tf32(x, PRECISION: tl.constexpr):
    """Round to the nearest TF32 number, if products are TF32."""
    if PRECISION == "tf32" and x.dtype == tl.float32:
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def add_product(total, a, b, PRECISION: tl.constexpr):
    """Add the product of two blocks to a sum."""
    if PRECISION == "interpreted":
        total += tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def excluded_in_tile(
    edges, pair_row, pair_item, bucket, own, other, OWN: tl.constexpr, OTHER: tl.constexpr, BY_ROW: tl.constexpr
):
    """Count how often each pair (row, item) of a tile is excluded, as a product of two one-hot matrices: [OWN, OTHER].

    BY_ROW: `own` are rows and `other` are items; otherwise `own` are items and `other` are rows.
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
