"""The Triton kernels. Each program keeps a block of rows (or of items) and streams the other side past it; the
[rows × items] matrix exists one tile at a time, in registers.

Scores are kept in units of log 2: x = (z + noise) / temperature · log₂e, so that a weight is one exp2.
"""

import triton
import triton.language as tl

from offrec.catalogue.kernel_parts import (
    LOWEST,
    NEVER,
    block,
    excluded_here,
    gumbel,
    plus_product,
    product,
    restored,
    rounded,
    row_hash,
)


@triton.jit
def forward(
    s0, t0, b0, s1, t1, b1, s2, t2, b2, w0, w1, w2,
    coefficients, bound, seed, edges, pair_row, pair_item, scalars, vectors,
    n_rows, n_items, tiles_each, n_tiles, scale,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr,
    BIAS0: tl.constexpr, BIAS1: tl.constexpr, BIAS2: tl.constexpr, HEAD1: tl.constexpr, HEAD2: tl.constexpr,
    OWN: tl.constexpr, LINEAR: tl.constexpr, BELOW: tl.constexpr, NOISE: tl.constexpr, EXCLUDED: tl.constexpr,
    V0: tl.constexpr, V1: tl.constexpr, V2: tl.constexpr, DM: tl.constexpr, NV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Per row and share of the catalogue: the largest score, Σ w, Σ w f, Σ w 1[below], and, for the backward pass, the
    same sums of the item vectors: Σ w t, Σ w f t, Σ w 1 t (V0), Σ w t′ of the other heads (V1, V2).
    """
    group, share = tl.program_id(0), tl.program_id(1)
    first_row = group * BM
    local = tl.arange(0, BM)
    rows = first_row + local
    inside = rows < n_rows
    state0 = block(s0, first_row, n_rows, w0, BM, D0)
    if HEAD1:
        state1 = block(s1, first_row, n_rows, w1, BM, D1)
    if HEAD2:
        state2 = block(s2, first_row, n_rows, w2, BM, D2)
    if LINEAR:
        c0, c1, c2 = tl.load(coefficients), tl.load(coefficients + 1), tl.load(coefficients + 2)
    if BELOW >= 0:
        limit = tl.load(bound + rows, mask=inside, other=0.0)
    if NOISE:
        hashed = row_hash(rows, seed)[:, None]
    top = tl.full([BM], LOWEST, dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    mean = tl.zeros([BM], dtype=tl.float32)
    mass = tl.zeros([BM], dtype=tl.float32)
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

    for tile in range(share * tiles_each, min((share + 1) * tiles_each, n_tiles)):
        first = tile * BN
        items = first + tl.arange(0, BN)
        real = items < n_items
        table0 = block(t0, first, n_items, w0, BN, D0)
        z = restored(product(state0, tl.trans(table0), PRECISION), PRECISION)
        if BIAS0:
            z += tl.load(b0 + items, mask=real, other=0.0)[None, :]
        x = z
        if NOISE:
            x += gumbel(hashed, items[None, :], seed)
        x = x * scale + tl.where(real, 0.0, NEVER)[None, :]
        if EXCLUDED:
            bucket = group * n_tiles + tile
            if tl.load(edges + bucket) < tl.load(edges + bucket + 1):
                hits = excluded_here(edges, pair_row, pair_item, bucket, rows, items, BM, BN, True)
                x = tl.where(hits > 0.0, NEVER, x)
        higher = tl.maximum(top, tl.max(x, 1))
        weight = tl.exp2(x - higher[:, None])
        fade = tl.exp2(top - higher)
        top = higher
        total = total * fade + tl.sum(weight, 1)
        if HEAD1:
            table1 = block(t1, first, n_items, w1, BN, D1)
            z1 = restored(product(state1, tl.trans(table1), PRECISION), PRECISION)
            if BIAS1:
                z1 += tl.load(b1 + items, mask=real, other=0.0)[None, :]
        if HEAD2:
            table2 = block(t2, first, n_items, w2, BN, D2)
            z2 = restored(product(state2, tl.trans(table2), PRECISION), PRECISION)
            if BIAS2:
                z2 += tl.load(b2 + items, mask=real, other=0.0)[None, :]
        if V0:
            sum0 = plus_product(sum0 * fade[:, None], rounded(weight, PRECISION).to(table0.dtype), table0, PRECISION)
        if V1:
            sum1 = plus_product(sum1 * fade[:, None], rounded(weight, PRECISION).to(table1.dtype), table1, PRECISION)
        if V2:
            sum2 = plus_product(sum2 * fade[:, None], rounded(weight, PRECISION).to(table2.dtype), table2, PRECISION)
        if BELOW >= 0:
            judged = z if BELOW == 0 else (z1 if BELOW == 1 else z2)
            weight_b = tl.where(judged <= limit[:, None], weight, 0.0)
            mass = mass * fade + tl.sum(weight_b, 1)
            if V0:
                sum_b = plus_product(
                    sum_b * fade[:, None], rounded(weight_b, PRECISION).to(table0.dtype), table0, PRECISION
                )
        if LINEAR:
            f = c0 * z if OWN else tl.zeros([BM, BN], dtype=tl.float32)
            if HEAD1:
                f += c1 * z1
            if HEAD2:
                f += c2 * z2
            weight_f = weight * f
            mean = mean * fade + tl.sum(weight_f, 1)
            if V0:
                sum_f = plus_product(
                    sum_f * fade[:, None], rounded(weight_f, PRECISION).to(table0.dtype), table0, PRECISION
                )

    out = scalars + share * 4 * n_rows + rows
    tl.store(out, top, mask=inside)
    tl.store(out + n_rows, total, mask=inside)
    tl.store(out + 2 * n_rows, mean, mask=inside)
    tl.store(out + 3 * n_rows, mass, mask=inside)
    F: tl.constexpr = 1 if V0 else 0
    B: tl.constexpr = F + (1 if V0 and LINEAR else 0)
    ONE: tl.constexpr = B + (1 if V0 and BELOW >= 0 else 0)
    TWO: tl.constexpr = ONE + (1 if V1 else 0)
    if V0:
        put(vectors, share * NV, first_row, n_rows, DM, restored(sum0, PRECISION), BM, D0)
        if LINEAR:
            put(vectors, share * NV + F, first_row, n_rows, DM, restored(sum_f, PRECISION), BM, D0)
        if BELOW >= 0:
            put(vectors, share * NV + B, first_row, n_rows, DM, restored(sum_b, PRECISION), BM, D0)
    if V1:
        put(vectors, share * NV + ONE, first_row, n_rows, DM, restored(sum1, PRECISION), BM, D1)
    if V2:
        put(vectors, share * NV + TWO, first_row, n_rows, DM, restored(sum2, PRECISION), BM, D2)


@triton.jit
def combine(
    scalars, vectors, lse2, lse, mean, mass, expected, n_rows, shares, log2e,
    NV: tl.constexpr, DM: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The shares of the catalogue put together: `forward`'s sums [shares, 4, rows] and [shares, NV, rows, DM]."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < n_rows
    top = tl.full([BM], LOWEST, dtype=tl.float32)
    for share in range(shares):
        top = tl.maximum(top, tl.load(scalars + share * 4 * n_rows + rows, mask=inside, other=LOWEST))
    total = tl.zeros([BM], dtype=tl.float32)
    of_f = tl.zeros([BM], dtype=tl.float32)
    low = tl.zeros([BM], dtype=tl.float32)
    for share in range(shares):
        at = scalars + share * 4 * n_rows + rows
        fade = tl.exp2(tl.load(at, mask=inside, other=LOWEST) - top)
        total += fade * tl.load(at + n_rows, mask=inside, other=0.0)
        of_f += fade * tl.load(at + 2 * n_rows, mask=inside, other=0.0)
        low += fade * tl.load(at + 3 * n_rows, mask=inside, other=0.0)
    total = tl.maximum(total, 1.0e-37)  # nothing is left of a row of which every item is excluded
    all_of_it = top + tl.log2(total)
    tl.store(lse2 + rows, all_of_it, mask=inside)
    tl.store(lse + rows, all_of_it / log2e, mask=inside)
    tl.store(mean + rows, of_f / total, mask=inside)
    tl.store(mass + rows, low / total, mask=inside)
    across = tl.arange(0, DM)
    for which in tl.static_range(NV):
        vector = tl.zeros([BM, DM], dtype=tl.float32)
        for share in range(shares):
            fade = tl.exp2(tl.load(scalars + share * 4 * n_rows + rows, mask=inside, other=LOWEST) - top) / total
            start = ((share * NV + which) * n_rows + rows).to(tl.int64) * DM
            vector += fade[:, None] * tl.load(
                vectors + start[:, None] + across[None, :], mask=inside[:, None], other=0.0
            )
        start = (which * n_rows + rows).to(tl.int64) * DM
        tl.store(expected + start[:, None] + across[None, :], vector, mask=inside[:, None])


@triton.jit
def put(vectors, where, first_row, n_rows, DM: tl.constexpr, value, BM: tl.constexpr, D: tl.constexpr):
    """Into vectors [shares · NV, rows, DM], zeros beyond the width."""
    at, across = first_row + tl.arange(0, BM), tl.arange(0, D)
    start = vectors + ((where.to(tl.int64) * n_rows + at) * DM)[:, None]
    tl.store(start + across[None, :], value, mask=(at < n_rows)[:, None])


@triton.jit
def backward_table(
    s0, t0, b0, s1, t1, b1, s2, t2, b2, w0, w1, w2,
    coefficients, bound, seed, edges, pair_row, pair_item, lse, always, by_f, by_below, picked, by_picked, turned,
    to_table, to_bias,
    n_rows, n_items, n_tiles, scale,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, DW: tl.constexpr,
    BIAS0: tl.constexpr, BIAS1: tl.constexpr, BIAS2: tl.constexpr, HEAD1: tl.constexpr, HEAD2: tl.constexpr,
    OWN: tl.constexpr, LINEAR: tl.constexpr, BELOW: tl.constexpr, NOISE: tl.constexpr, EXCLUDED: tl.constexpr,
    WHICH: tl.constexpr, TO_BIAS: tl.constexpr, PICKED: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of items, all rows: Σ_rows g · state, g = w (always + by_f · f + by_below · 1[below]), of the head
    WHICH; for the PICKED items of each row g has `by_picked` on top. The tile is computed again, transposed, so that
    its product with the states needs no exchange of registers. TURNED: the states also lie transposed in `turned`
    [D, rows]; Hopper's TF32 products take no other operand.
    """
    tile = tl.program_id(0)
    first = tile * BN
    local = tl.arange(0, BN)
    items = first + local
    real = items < n_items
    table0 = block(t0, first, n_items, w0, BN, D0)
    bias0 = tl.load(b0 + items, mask=real, other=0.0) if BIAS0 else tl.zeros([BN], dtype=tl.float32)
    if HEAD1:
        table1 = block(t1, first, n_items, w1, BN, D1)
        bias1 = tl.load(b1 + items, mask=real, other=0.0) if BIAS1 else tl.zeros([BN], dtype=tl.float32)
    if HEAD2:
        table2 = block(t2, first, n_items, w2, BN, D2)
        bias2 = tl.load(b2 + items, mask=real, other=0.0) if BIAS2 else tl.zeros([BN], dtype=tl.float32)
    if LINEAR:
        c0, c1, c2 = tl.load(coefficients), tl.load(coefficients + 1), tl.load(coefficients + 2)
    gone = tl.where(real, 0.0, NEVER)
    gradient = tl.zeros([BN, DW], dtype=tl.float32)
    of_bias = tl.zeros([BN], dtype=tl.float32)

    for first_row in range(0, n_rows, BM):
        rows = first_row + tl.arange(0, BM)
        inside = rows < n_rows
        state0 = block(s0, first_row, n_rows, w0, BM, D0)
        z = restored(product(table0, tl.trans(state0), PRECISION), PRECISION)
        if BIAS0:
            z += bias0[:, None]
        x = z
        if NOISE:
            x += gumbel(row_hash(rows, seed)[None, :], items[:, None], seed)
        x = x * scale + gone[:, None]
        if EXCLUDED:
            bucket = (first_row // BM) * n_tiles + tile
            if tl.load(edges + bucket) < tl.load(edges + bucket + 1):
                hits = excluded_here(edges, pair_row, pair_item, bucket, items, rows, BN, BM, False)
                x = tl.where(hits > 0.0, NEVER, x)
        weight = tl.exp2(x - tl.load(lse + rows, mask=inside, other=0.0)[None, :])
        factor = tl.load(always + rows, mask=inside, other=0.0)[None, :]
        if HEAD1:
            state1 = block(s1, first_row, n_rows, w1, BM, D1)
        if HEAD2:
            state2 = block(s2, first_row, n_rows, w2, BM, D2)
        if LINEAR or BELOW > 0:
            if HEAD1:
                z1 = restored(product(table1, tl.trans(state1), PRECISION), PRECISION) + bias1[:, None]
            if HEAD2:
                z2 = restored(product(table2, tl.trans(state2), PRECISION), PRECISION) + bias2[:, None]
        if LINEAR:
            f = c0 * z if OWN else tl.zeros([BN, BM], dtype=tl.float32)
            if HEAD1:
                f += c1 * z1
            if HEAD2:
                f += c2 * z2
            factor = factor + tl.load(by_f + rows, mask=inside, other=0.0)[None, :] * f
        if BELOW >= 0:
            judged = z if BELOW == 0 else (z1 if BELOW == 1 else z2)
            limit = tl.load(bound + rows, mask=inside, other=0.0)[None, :]
            more = tl.load(by_below + rows, mask=inside, other=0.0)[None, :]
            factor = factor + tl.where(judged <= limit, more, 0.0)
        weight = weight * factor
        for pick in tl.static_range(PICKED):
            mine = tl.load(picked + rows * PICKED + pick, mask=inside, other=-1) - first
            # Few tiles hold an item that one of their rows picked, and comparing all of a tile takes long.
            if tl.max(((mine >= 0) & (mine < BN)).to(tl.int32), 0) > 0:
                more = tl.load(by_picked + rows * PICKED + pick, mask=inside, other=0.0)
                weight += tl.where(local[:, None] == mine[None, :], more[None, :], 0.0)
        if TURNED:
            across = tl.arange(0, DW)
            state = tl.trans(
                tl.load(
                    turned + across[:, None] * n_rows + rows[None, :],
                    mask=(across < (w0 if WHICH == 0 else (w1 if WHICH == 1 else w2)))[:, None] & inside[None, :],
                    other=0.0,
                )
            )
        else:
            state = state0 if WHICH == 0 else (state1 if WHICH == 1 else state2)
        gradient = plus_product(gradient, rounded(weight, PRECISION).to(state.dtype), state, PRECISION)
        if TO_BIAS:
            of_bias += tl.sum(weight, 1)

    width = w0 if WHICH == 0 else (w1 if WHICH == 1 else w2)
    across = tl.arange(0, DW)
    start = to_table + first.to(tl.int64) * width
    kept = real[:, None] & (across < width)[None, :]
    tl.store(start + local[:, None] * width + across[None, :], gradient.to(to_table.dtype.element_ty), mask=kept)
    if TO_BIAS:
        tl.store(to_bias + items, of_bias, mask=real)
