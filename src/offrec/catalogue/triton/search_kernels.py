"""Kernels for argmax, rank and top-k, and those that sort excluded (row, item) pairs into tiles."""

import triton
import triton.language as tl

from offrec.catalogue.triton.device_functions import LOWEST, NEVER, block, excluded_in_tile, gumbel, product, row_hash


@triton.jit
def scores(
    state0, t0, b0, w0, hashed, seed, edges, pair_row, pair_item, group, tile, rows, n_items, n_tiles,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, BIAS0: tl.constexpr, NOISE: tl.constexpr,
    EXCLUDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute z (+ noise) of a tile [BM, BN]; −inf beyond the catalogue and for excluded items."""
    first = tile * BN
    items = first + tl.arange(0, BN)
    real = items < n_items
    z = product(state0, tl.trans(block(t0, first, n_items, w0, BN, D0)), PRECISION)
    if BIAS0:
        z += tl.load(b0 + items, mask=real, other=0.0)[None, :]
    if NOISE:
        z += gumbel(hashed, items[None, :], seed)
    z = tl.where(real[None, :], z, NEVER)
    if EXCLUDED:
        bucket = group * n_tiles + tile
        if tl.load(edges + bucket) < tl.load(edges + bucket + 1):
            hits = excluded_in_tile(edges, pair_row, pair_item, bucket, rows, items, BM, BN, True)
            z = tl.where(hits > 0.0, NEVER, z)
    return z


@triton.jit
def largest(
    s0, t0, b0, w0, seed, edges, pair_row, pair_item, best, where, n_rows, n_items, tiles_each, n_tiles,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, BIAS0: tl.constexpr, NOISE: tl.constexpr,
    EXCLUDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Find the largest value and the first item that has it, for a block of rows and one share of the catalogue."""
    group, share = tl.program_id(0), tl.program_id(1)
    rows = group * BM + tl.arange(0, BM)
    state0 = block(s0, group * BM, n_rows, w0, BM, D0)
    hashed = row_hash(rows, seed)[:, None] if NOISE else rows[:, None].to(tl.uint32)
    top = tl.full([BM], LOWEST, dtype=tl.float32)
    item = tl.full([BM], n_items, dtype=tl.int32)
    for tile in range(share * tiles_each, min((share + 1) * tiles_each, n_tiles)):
        z = scores(
            state0, t0, b0, w0, hashed, seed, edges, pair_row, pair_item, group, tile, rows, n_items, n_tiles,
            BM, BN, D0, BIAS0, NOISE, EXCLUDED, PRECISION,
        )  # fmt: skip
        high = tl.max(z, 1)
        position = tl.min(tl.where(z == high[:, None], tl.arange(0, BN)[None, :], BN), 1)
        better = high > top
        item = tl.where(better, tile * BN + position, item)
        top = tl.maximum(top, high)
    inside = rows < n_rows
    tl.store(best + share * n_rows + rows, top, mask=inside)
    tl.store(where + share * n_rows + rows, item, mask=inside)


@triton.jit
def not_below(
    s0, t0, b0, w0, edges, pair_row, pair_item, threshold, target, counts, n_rows, n_items, tiles_each, n_tiles,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, BIAS0: tl.constexpr, EXCLUDED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Count the items, other than the target, that are not below the threshold, in one share; NaN is not below."""
    group, share = tl.program_id(0), tl.program_id(1)
    rows = group * BM + tl.arange(0, BM)
    inside = rows < n_rows
    state0 = block(s0, group * BM, n_rows, w0, BM, D0)
    limit = tl.load(threshold + rows, mask=inside, other=0.0)
    own = tl.load(target + rows, mask=inside, other=-1)
    count = tl.zeros([BM], dtype=tl.int32)
    for tile in range(share * tiles_each, min((share + 1) * tiles_each, n_tiles)):
        z = scores(
            state0, t0, b0, w0, rows, rows, edges, pair_row, pair_item, group, tile, rows, n_items, n_tiles,
            BM, BN, D0, BIAS0, False, EXCLUDED, PRECISION,
        )  # fmt: skip
        items = tile * BN + tl.arange(0, BN)
        above = (z < limit[:, None]) == 0  # true for NaN, too
        counted = above & (z != NEVER) & (items[None, :] != own[:, None])
        count += tl.sum(counted.to(tl.int32), 1)
    tl.store(counts + share * n_rows + rows, count, mask=inside)


@triton.jit
def peaks(
    s0, t0, b0, w0, edges, pair_row, pair_item, highest, n_rows, n_items, tiles_each, n_tiles,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, BIAS0: tl.constexpr, EXCLUDED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the largest value of each tile: [rows, tiles]. The k best items are in the k tiles with the largest."""
    group, share = tl.program_id(0), tl.program_id(1)
    rows = group * BM + tl.arange(0, BM)
    inside = rows < n_rows
    state0 = block(s0, group * BM, n_rows, w0, BM, D0)
    for tile in range(share * tiles_each, min((share + 1) * tiles_each, n_tiles)):
        z = scores(
            state0, t0, b0, w0, rows, rows, edges, pair_row, pair_item, group, tile, rows, n_items, n_tiles,
            BM, BN, D0, BIAS0, False, EXCLUDED, PRECISION,
        )  # fmt: skip
        tl.store(highest + rows.to(tl.int64) * n_tiles + tile, tl.max(z, 1), mask=inside)


@triton.jit
def count_pairs(
    items, counts, n_pairs, per_row, n_items, n_tiles, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr
):
    """Count the excluded pairs in each tile of BM rows × BN items; tile i's count is stored at i + 1."""
    at = tl.program_id(0) * STEP + tl.arange(0, STEP)
    item = tl.load(items + at, mask=at < n_pairs, other=n_items)
    bucket = (at // per_row // BM) * n_tiles + (item // BN).to(tl.int32)
    tl.atomic_add(counts + bucket + 1, 1, mask=item < n_items)


@triton.jit
def place_pairs(
    items, counts, edges, pair_row, pair_item, n_pairs, per_row, n_items, n_tiles,
    BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Write the pairs grouped by tile, in any order within a tile; decrements the counts."""
    at = tl.program_id(0) * STEP + tl.arange(0, STEP)
    item = tl.load(items + at, mask=at < n_pairs, other=n_items)
    valid = item < n_items
    row = at // per_row
    after = (row // BM) * n_tiles + (item // BN).to(tl.int32) + 1
    left = tl.atomic_add(counts + after, -1, mask=valid)
    position = tl.load(edges + after, mask=valid, other=0) - left
    tl.store(pair_row + position, row, mask=valid)
    tl.store(pair_item + position, item.to(tl.int32), mask=valid)
