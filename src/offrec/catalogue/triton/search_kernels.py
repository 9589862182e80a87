"""The Triton kernels behind argmax, rank and top-k, and the one that sorts excluded pairs into tiles."""

import triton
import triton.language as tl

from offrec.catalogue.triton.device_functions import LOWEST, NEVER, block, excluded_here, gumbel, product, row_hash


@triton.jit
def scores(
    state0, t0, b0, w0, hashed, seed, edges, pair_row, pair_item, group, tile, rows, n_items, n_tiles,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, BIAS0: tl.constexpr, NOISE: tl.constexpr,
    EXCLUDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """[BM, BN] z (+ noise) of a tile, −inf where there is no item or the item is excluded."""
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
            hits = excluded_here(edges, pair_row, pair_item, bucket, rows, items, BM, BN, True)
            z = tl.where(hits > 0.0, NEVER, z)
    return z


@triton.jit
def largest(
    s0, t0, b0, w0, seed, edges, pair_row, pair_item, best, where, n_rows, n_items, tiles_each, n_tiles,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, BIAS0: tl.constexpr, NOISE: tl.constexpr,
    EXCLUDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Per row and share of the catalogue: the largest value and the first item that has it."""
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
        place = tl.min(tl.where(z == high[:, None], tl.arange(0, BN)[None, :], BN), 1)
        better = high > top
        item = tl.where(better, tile * BN + place, item)
        top = tl.maximum(top, high)
    inside = rows < n_rows
    tl.store(best + share * n_rows + rows, top, mask=inside)
    tl.store(where + share * n_rows + rows, item, mask=inside)


@triton.jit
def not_below(
    s0, t0, b0, w0, edges, pair_row, pair_item, bar, target, counts, n_rows, n_items, tiles_each, n_tiles,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, BIAS0: tl.constexpr, EXCLUDED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Per row and share: how many items other than the target are not below the bar; NaN is not below."""
    group, share = tl.program_id(0), tl.program_id(1)
    rows = group * BM + tl.arange(0, BM)
    inside = rows < n_rows
    state0 = block(s0, group * BM, n_rows, w0, BM, D0)
    limit = tl.load(bar + rows, mask=inside, other=0.0)
    own = tl.load(target + rows, mask=inside, other=-1)
    count = tl.zeros([BM], dtype=tl.int32)
    for tile in range(share * tiles_each, min((share + 1) * tiles_each, n_tiles)):
        z = scores(
            state0, t0, b0, w0, rows, rows, edges, pair_row, pair_item, group, tile, rows, n_items, n_tiles,
            BM, BN, D0, BIAS0, False, EXCLUDED, PRECISION,
        )  # fmt: skip
        items = tile * BN + tl.arange(0, BN)
        above = (z < limit[:, None]) == 0  # so that what is not a number is not below
        counted = above & (z != NEVER) & (items[None, :] != own[:, None])
        count += tl.sum(counted.to(tl.int32), 1)
    tl.store(counts + share * n_rows + rows, count, mask=inside)


@triton.jit
def peaks(
    s0, t0, b0, w0, edges, pair_row, pair_item, highest, n_rows, n_items, tiles_each, n_tiles,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, BIAS0: tl.constexpr, EXCLUDED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """[rows, tiles] the largest value of each tile: the k best items lie in the k tiles with the highest peaks."""
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
    """How many excluded pairs (row, item) each tile of BM rows × BN items has, in the place after its own."""
    at = tl.program_id(0) * STEP + tl.arange(0, STEP)
    item = tl.load(items + at, mask=at < n_pairs, other=n_items)
    bucket = (at // per_row // BM) * n_tiles + (item // BN).to(tl.int32)
    tl.atomic_add(counts + bucket + 1, 1, mask=item < n_items)


@triton.jit
def place_pairs(
    items, counts, edges, pair_row, pair_item, n_pairs, per_row, n_items, n_tiles,
    BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The pairs, tile by tile; their order within a tile is of no consequence. Counts down what was counted."""
    at = tl.program_id(0) * STEP + tl.arange(0, STEP)
    item = tl.load(items + at, mask=at < n_pairs, other=n_items)
    kept = item < n_items
    row = at // per_row
    after = (row // BM) * n_tiles + (item // BN).to(tl.int32) + 1
    left = tl.atomic_add(counts + after, -1, mask=kept)
    place = tl.load(edges + after, mask=kept, other=0) - left
    tl.store(pair_row + place, row, mask=kept)
    tl.store(pair_item + place, item.to(tl.int32), mask=kept)
