"""The kernel of the forward pass. Each program holds a block of rows and streams the catalogue past it.

The [rows × items] matrix exists only one tile at a time, in registers. Scores are in units of log 2:
x = (z + noise) / temperature · log₂e, so that a weight is a single exp2.
"""

import triton
import triton.language as tl

from offrec.catalogue.triton.device_functions import (
    LOG2E,
    LOWEST,
    NEVER,
    add_product,
    block,
    correct_truncation,
    excluded_in_tile,
    gumbel,
    numbers,
    product,
    row_hash,
    rows_of,
    to_tf32,
)


@triton.jit
def values(
    state, t, b, first, n_items, width: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Compute a head's z in one tile [rows, BN]; also return the tile's rows of the table."""
    table = rows_of(t, first, n_items, width, BN, D, MASKED)
    z = correct_truncation(product(state, tl.trans(table), PRECISION), PRECISION)
    if BIAS:
        items = first + tl.arange(0, BN)
        z += numbers(b, items, items < n_items, MASKED)[None, :]
    return z, table


@triton.jit
def first_top(
    state, t, b, first, n_items, width: tl.constexpr, scale, BN: tl.constexpr, D: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the largest score of each row in one tile."""
    z, _ = values(state, t, b, first, n_items, width, BN, D, BIAS, PRECISION, True)
    return tl.max(tl.where((first + tl.arange(0, BN) < n_items)[None, :], z * scale, LOWEST), 1)


@triton.jit
def is_in_range(total):
    """Return whether sums of weights are so far from over- and underflow that those of all shares can be added.

    Sums of two shares that are equally large then differ by at most 2⁸⁰ in what their weights are relative to.
    """
    is_inside = (total > 9.5e-7) & (total < 1.1e18)  # 2⁻²⁰ and 2⁶⁰; false for NaN, too
    return tl.min(is_inside.to(tl.int32), 0) > 0


@triton.jit
def forward(
    s0, t0, b0, s1, t1, b1, s2, t2, b2, s3, t3, b3,
    w0: tl.constexpr, w1: tl.constexpr, w2: tl.constexpr, w3: tl.constexpr,
    c0, c1, c2, h0, h1, h2, h3, bound, seed, edges, pair_row, pair_item, scalars, vectors,
    n_rows, n_items, tiles_each, n_tiles, scale,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, D3: tl.constexpr,
    BIAS0: tl.constexpr, BIAS1: tl.constexpr, BIAS2: tl.constexpr, BIAS3: tl.constexpr,
    HEADS: tl.constexpr, LINEAR: tl.constexpr, BELOW: tl.constexpr, NORMED: tl.constexpr,
    NOISE: tl.constexpr, EXCLUDED: tl.constexpr, DETACHED: tl.constexpr,
    V0: tl.constexpr, V1: tl.constexpr, V2: tl.constexpr, DM: tl.constexpr, NV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the sums over one share of the catalogue for a block of rows.

    scalars [shares, 7, rows]: the score that weights w are relative to, Σ w, Σ w f, Σ w 1[below], Σ w h, and the first
    two for the head NORMED; f = Σ c z and h = Σ h z. vectors [shares, NV, rows, DM], for the backward pass: Σ w t,
    Σ w f t and Σ w 1[below] t of π's item vectors t (V0), and Σ w t of the other heads' item vectors (V1, V2).
    """
    group, share = tl.program_id(0), tl.program_id(1)
    first_row = group * BM
    rows = first_row + tl.arange(0, BM)
    inside = rows < n_rows
    state0 = block(s0, first_row, n_rows, w0, BM, D0)
    if HEADS > 1:
        state1 = block(s1, first_row, n_rows, w1, BM, D1)
    if HEADS > 2:
        state2 = block(s2, first_row, n_rows, w2, BM, D2)
    if HEADS > 3:
        state3 = block(s3, first_row, n_rows, w3, BM, D3)
    if BELOW >= 0:
        limit = tl.load(bound + rows, mask=inside, other=0.0)
    if NOISE:
        hashed = row_hash(rows, seed)[:, None]
    top = tl.full([BM], LOWEST, dtype=tl.float32)
    normed_top = tl.full([BM], LOWEST, dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    mean = tl.zeros([BM], dtype=tl.float32)
    mass = tl.zeros([BM], dtype=tl.float32)
    detached = tl.zeros([BM], dtype=tl.float32)
    normed = tl.zeros([BM], dtype=tl.float32)
    if V0:
        sum0 = tl.zeros([BM, D0], dtype=tl.float32)
        if LINEAR:
            sum_f = tl.zeros([BM, D0], dtype=tl.float32)
        if BELOW >= 0:
            sum_b = tl.zeros([BM, D0], dtype=tl.float32)
    if V1:
        sum1 = tl.zeros([BM, D1], dtype=tl.float32)
    if V2:
        sum2 = tl.zeros([BM, D2], dtype=tl.float32)

    begin, end = share * tiles_each, min((share + 1) * tiles_each, n_tiles)
    if not NOISE:
        top = first_top(state0, t0, b0, begin * BN, n_items, w0, scale, BN, D0, BIAS0, PRECISION)
        if NORMED == 1:
            normed_top = first_top(state1, t1, b1, begin * BN, n_items, w1, LOG2E, BN, D1, BIAS1, PRECISION)
        if NORMED == 2:
            normed_top = first_top(state2, t2, b2, begin * BN, n_items, w2, LOG2E, BN, D2, BIAS2, PRECISION)
        if NORMED == 3:
            normed_top = first_top(state3, t3, b3, begin * BN, n_items, w3, LOG2E, BN, D3, BIAS3, PRECISION)
    # Pass 0 streams whole tiles, with weights relative to the largest score of the share's first tile. The next tile
    # then need not wait for the maximum of this one, and the sums are not rescaled. Pass 1 has a running maximum. It
    # streams the catalogue's last tile if that is incomplete, or all tiles again if weights would over- or underflow.
    # Noise has only pass 1, because its largest scores are far above those of a tile.
    whole = min(end, n_items // BN)
    for RUNNING in tl.static_range(1 if NOISE else 0, 2):
        start, stop = begin, whole
        if RUNNING:
            stop = end
            if not NOISE:
                good = is_in_range(total)
                if NORMED > 0:
                    good = good & is_in_range(normed)
                start = tl.where(good, max(begin, whole), begin)
                top, normed_top = tl.where(good, top, LOWEST), tl.where(good, normed_top, LOWEST)
                total, mean, mass = tl.where(good, total, 0.0), tl.where(good, mean, 0.0), tl.where(good, mass, 0.0)
                detached, normed = tl.where(good, detached, 0.0), tl.where(good, normed, 0.0)
                if V0:
                    sum0 = tl.where(good, sum0, 0.0)
                    if LINEAR:
                        sum_f = tl.where(good, sum_f, 0.0)
                    if BELOW >= 0:
                        sum_b = tl.where(good, sum_b, 0.0)
                if V1:
                    sum1 = tl.where(good, sum1, 0.0)
                if V2:
                    sum2 = tl.where(good, sum2, 0.0)
        for tile in range(start, stop):
            first = tile * BN
            items = first + tl.arange(0, BN)
            if RUNNING:
                outside = tl.where(items < n_items, 0.0, NEVER)[None, :]
            z, table0 = values(state0, t0, b0, first, n_items, w0, BN, D0, BIAS0, PRECISION, RUNNING)
            x = z
            if NOISE:
                x += gumbel(hashed, items[None, :], seed)
            x = x * scale
            if RUNNING:
                x += outside
            if EXCLUDED:
                bucket = group * n_tiles + tile
                some = tl.load(edges + bucket) < tl.load(edges + bucket + 1)
                if some:
                    hits = excluded_in_tile(edges, pair_row, pair_item, bucket, rows, items, BM, BN, True)
                    x = tl.where(hits > 0.0, NEVER, x)
            if RUNNING:
                higher = tl.maximum(top, tl.max(x, 1))
                fade = tl.exp2(top - higher)
                top = higher
                total, mean, mass, detached = total * fade, mean * fade, mass * fade, detached * fade
                if V0:
                    sum0 *= fade[:, None]
                    if LINEAR:
                        sum_f *= fade[:, None]
                    if BELOW >= 0:
                        sum_b *= fade[:, None]
                if V1:
                    sum1 *= fade[:, None]
                if V2:
                    sum2 *= fade[:, None]
            weight = tl.exp2(x - top[:, None])
            total += tl.sum(weight, 1)
            # Add up the mean head by head, so that no tile stays in registers until the next head. If the backward pass
            # needs f, that tile stays in registers anyway, and the mean is its sum.
            if V0 and LINEAR:
                f = c0 * z
            if DETACHED or not (V0 and LINEAR):
                part = tl.sum(weight * z, 1)
                mean += c0 * part
                detached += h0 * part
            bounded = z
            if HEADS > 1:
                z1, table1 = values(state1, t1, b1, first, n_items, w1, BN, D1, BIAS1, PRECISION, RUNNING)
                if V0 and LINEAR:
                    f += c1 * z1
                if DETACHED or not (V0 and LINEAR):
                    part = tl.sum(weight * z1, 1)
                    mean += c1 * part
                    detached += h1 * part
                if BELOW == 1:
                    bounded = z1
                if NORMED == 1:
                    y = z1
            if HEADS > 2:
                z2, table2 = values(state2, t2, b2, first, n_items, w2, BN, D2, BIAS2, PRECISION, RUNNING)
                if V0 and LINEAR:
                    f += c2 * z2
                if DETACHED or not (V0 and LINEAR):
                    part = tl.sum(weight * z2, 1)
                    mean += c2 * part
                    detached += h2 * part
                if BELOW == 2:
                    bounded = z2
                if NORMED == 2:
                    y = z2
            if HEADS > 3:
                z3, _ = values(state3, t3, b3, first, n_items, w3, BN, D3, BIAS3, PRECISION, RUNNING)
                detached += h3 * tl.sum(weight * z3, 1)
                if NORMED == 3:
                    y = z3
            if NORMED > 0:
                y = y * LOG2E
                if RUNNING:
                    y += outside
                if EXCLUDED:  # noqa: SIM102 (EXCLUDED is known at compile time, `some` is not)
                    if some:
                        hits = excluded_in_tile(edges, pair_row, pair_item, bucket, rows, items, BM, BN, True)
                        y = tl.where(hits > 0.0, NEVER, y)
                if RUNNING:
                    normed_higher = tl.maximum(normed_top, tl.max(y, 1))
                    normed *= tl.exp2(normed_top - normed_higher)
                    normed_top = normed_higher
                normed += tl.sum(tl.exp2(y - normed_top[:, None]), 1)
            if V0:
                sum0 = add_product(sum0, to_tf32(weight, PRECISION).to(table0.dtype), table0, PRECISION)
            if V1:
                sum1 = add_product(sum1, to_tf32(weight, PRECISION).to(table1.dtype), table1, PRECISION)
            if V2:
                sum2 = add_product(sum2, to_tf32(weight, PRECISION).to(table2.dtype), table2, PRECISION)
            if BELOW >= 0:
                low = tl.where(bounded <= limit[:, None], weight, 0.0)
                mass += tl.sum(low, 1)
                if V0:
                    sum_b = add_product(sum_b, to_tf32(low, PRECISION).to(table0.dtype), table0, PRECISION)
            if V0 and LINEAR:
                f = weight * f
                if not DETACHED:
                    mean += tl.sum(f, 1)
                f = to_tf32(f, PRECISION).to(table0.dtype)
                sum_f = add_product(sum_f, f, table0, PRECISION)

    out = scalars + share * 7 * n_rows + rows
    tl.store(out, top, mask=inside)
    tl.store(out + n_rows, total, mask=inside)
    tl.store(out + 2 * n_rows, mean, mask=inside)
    tl.store(out + 3 * n_rows, mass, mask=inside)
    tl.store(out + 4 * n_rows, detached, mask=inside)
    tl.store(out + 5 * n_rows, normed_top, mask=inside)
    tl.store(out + 6 * n_rows, normed, mask=inside)
    F: tl.constexpr = 1 if V0 else 0
    B: tl.constexpr = F + (1 if V0 and LINEAR else 0)
    ONE: tl.constexpr = B + (1 if V0 and BELOW >= 0 else 0)
    TWO: tl.constexpr = ONE + (1 if V1 else 0)
    if V0:
        store_vectors(vectors, share * NV, first_row, n_rows, DM, correct_truncation(sum0, PRECISION), BM, D0)
        if LINEAR:
            store_vectors(vectors, share * NV + F, first_row, n_rows, DM, correct_truncation(sum_f, PRECISION), BM, D0)
        if BELOW >= 0:
            store_vectors(vectors, share * NV + B, first_row, n_rows, DM, correct_truncation(sum_b, PRECISION), BM, D0)
    if V1:
        store_vectors(vectors, share * NV + ONE, first_row, n_rows, DM, correct_truncation(sum1, PRECISION), BM, D1)
    if V2:
        store_vectors(vectors, share * NV + TWO, first_row, n_rows, DM, correct_truncation(sum2, PRECISION), BM, D2)


@triton.jit
def store_vectors(vectors, where, first_row, n_rows, DM: tl.constexpr, value, BM: tl.constexpr, D: tl.constexpr):
    """Store value [BM, D] into vectors [shares · NV, rows, DM]; columns beyond D are not written."""
    at, across = first_row + tl.arange(0, BM), tl.arange(0, D)
    start = vectors + ((where.to(tl.int64) * n_rows + at) * DM)[:, None]
    tl.store(start + across[None, :], value, mask=(at < n_rows)[:, None])
