"""The kernels of the backward pass: a program holds a block of items and streams the rows past it, or the reverse.

The [rows × items] matrix exists only one tile at a time, in registers. Scores are in units of log 2, as in the forward
pass.
"""

import triton
import triton.language as tl

from offrec.catalogue.triton.device_functions import (
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
    transposed_block,
)
from offrec.catalogue.triton.forward_kernel import store_vectors, values


@triton.jit
def backward_table(
    s0, t0, b0, s1, t1, b1, s2, t2, b2, w0: tl.constexpr, w1: tl.constexpr, w2: tl.constexpr,
    c0, c1, c2, bound, seed, edges, pair_row, pair_item, lse, always, by_f, by_below,
    pick_edges, pick_place, pick_item, by_picked, transposed, to_table, to_bias,
    n_rows, n_items, n_tiles, scale,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, DW: tl.constexpr,
    BIAS0: tl.constexpr, BIAS1: tl.constexpr, BIAS2: tl.constexpr, HEADS: tl.constexpr,
    LINEAR: tl.constexpr, BELOW: tl.constexpr, NOISE: tl.constexpr, EXCLUDED: tl.constexpr,
    WHICH: tl.constexpr, TO_BIAS: tl.constexpr, PICKED: tl.constexpr, TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the table and bias of the head WHICH for one block of items, over all rows.

    It is Σ_rows g · state with g = w (always + by_f · f + by_below · 1[below]); for the PICKED items of a row,
    `by_picked` is added to g, and `pick_place` are their places in [rows · PICKED], grouped by block of items. The tile
    is recomputed transposed, so that its product with the states needs no exchange between registers. TRANSPOSED: the
    states are also stored transposed in `transposed` [D, rows], the only layout that Hopper's TF32 products accept.
    """
    width: tl.constexpr = w0 if WHICH == 0 else (w1 if WHICH == 1 else w2)
    local = tl.arange(0, BN)
    whole = n_rows // BM * BM
    across = tl.arange(0, DW)
    for tile in range(tl.program_id(0), n_tiles, tl.num_programs(0)):
        first = tile * BN
        items = first + local
        real = items < n_items
        table0 = block(t0, first, n_items, w0, BN, D0)
        bias0 = tl.load(b0 + items, mask=real, other=0.0) if BIAS0 else tl.zeros([BN], dtype=tl.float32)
        if HEADS > 1:
            table1 = block(t1, first, n_items, w1, BN, D1)
            bias1 = tl.load(b1 + items, mask=real, other=0.0) if BIAS1 else tl.zeros([BN], dtype=tl.float32)
        if HEADS > 2:
            table2 = block(t2, first, n_items, w2, BN, D2)
            bias2 = tl.load(b2 + items, mask=real, other=0.0) if BIAS2 else tl.zeros([BN], dtype=tl.float32)
        gradient = tl.zeros([BN, DW], dtype=tl.float32)
        of_bias = tl.zeros([BN], dtype=tl.float32)

        # Pass 0 streams whole blocks of rows, whose loads need no mask, and pass 1 the last block if it is incomplete.
        for PASS in tl.static_range(2):
            for first_row in range(whole if PASS > 0 else 0, n_rows if PASS > 0 else whole, BM):
                rows = first_row + tl.arange(0, BM)
                inside = rows < n_rows
                state0 = rows_of(s0, first_row, n_rows, w0, BM, D0, PASS > 0)
                z = correct_truncation(product(table0, tl.trans(state0), PRECISION), PRECISION)
                if BIAS0:
                    z += bias0[:, None]
                x = z
                if NOISE:
                    x += gumbel(row_hash(rows, seed)[None, :], items[:, None], seed)
                x = x * scale  # items beyond the catalogue have a gradient, too, which is not stored
                if EXCLUDED:
                    bucket = (first_row // BM) * n_tiles + tile
                    if tl.load(edges + bucket) < tl.load(edges + bucket + 1):
                        hits = excluded_in_tile(edges, pair_row, pair_item, bucket, items, rows, BN, BM, False)
                        x = tl.where(hits > 0.0, NEVER, x)
                if PASS > 0:
                    x = tl.where(inside[None, :], x, NEVER)
                weight = tl.exp2(x - numbers(lse, rows, inside, PASS > 0)[None, :])
                factor = numbers(always, rows, inside, PASS > 0)[None, :]
                if HEADS > 1:
                    state1 = rows_of(s1, first_row, n_rows, w1, BM, D1, PASS > 0)
                if HEADS > 2:
                    state2 = rows_of(s2, first_row, n_rows, w2, BM, D2, PASS > 0)
                if LINEAR or BELOW > 0:
                    if HEADS > 1:
                        z1 = (
                            correct_truncation(product(table1, tl.trans(state1), PRECISION), PRECISION) + bias1[:, None]
                        )
                    if HEADS > 2:
                        z2 = (
                            correct_truncation(product(table2, tl.trans(state2), PRECISION), PRECISION) + bias2[:, None]
                        )
                if LINEAR:
                    f = c0 * z
                    if HEADS > 1:
                        f += c1 * z1
                    if HEADS > 2:
                        f += c2 * z2
                    factor = factor + numbers(by_f, rows, inside, PASS > 0)[None, :] * f
                if BELOW >= 0:
                    bounded = z if BELOW == 0 else (z1 if BELOW == 1 else z2)
                    limit = numbers(bound, rows, inside, PASS > 0)[None, :]
                    more = numbers(by_below, rows, inside, PASS > 0)[None, :]
                    factor = factor + tl.where(bounded <= limit, more, 0.0)
                weight = weight * factor
                if TRANSPOSED:
                    state = transposed_block(transposed, first_row, n_rows, width, n_rows, BM, DW, PASS > 0)
                else:
                    state = state0 if WHICH == 0 else (state1 if WHICH == 1 else state2)
                gradient = add_product(gradient, to_tf32(weight, PRECISION).to(state.dtype), state, PRECISION)
                if TO_BIAS:
                    of_bias += tl.sum(weight, 1)

        if PICKED:
            last_pick = tl.load(pick_edges + tile + 1)
            for first_pick in range(tl.load(pick_edges + tile), last_pick, 16):
                pick = first_pick + tl.arange(0, 16)
                exists = pick < last_pick
                place = tl.load(pick_place + pick, mask=exists, other=0)
                own = tl.load(pick_item + pick, mask=exists, other=-1) - first
                added = tl.load(by_picked + place, mask=exists, other=0.0)
                g = tl.where(local[:, None] == own[None, :], added[None, :], 0.0)
                at = s0 + (place // PICKED).to(tl.int64)[:, None] * width + across[None, :]
                states = tl.load(at, mask=exists[:, None] & (across < width)[None, :], other=0.0)
                gradient = add_product(gradient, g.to(states.dtype), states, PRECISION)
                if TO_BIAS:
                    of_bias += tl.sum(g, 1)

        start = to_table + first.to(tl.int64) * width
        valid = real[:, None] & (across < width)[None, :]
        tl.store(start + local[:, None] * width + across[None, :], gradient.to(to_table.dtype.element_ty), mask=valid)
        if TO_BIAS:
            tl.store(to_bias + items, of_bias, mask=real)


@triton.jit
def backward_rows(
    s0, t0, b0, s1, t1, b1, s2, t2, b2, w0: tl.constexpr, w1: tl.constexpr, w2: tl.constexpr,
    c0, c1, c2, bound, seed, edges, pair_row, pair_item, lse, always, by_f, by_below,
    transposed, vectors, n_rows, n_items, tiles_each, n_tiles, stride, scale,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr,
    BIAS0: tl.constexpr, BIAS1: tl.constexpr, BIAS2: tl.constexpr, HEADS: tl.constexpr,
    LINEAR: tl.constexpr, BELOW: tl.constexpr, NOISE: tl.constexpr, EXCLUDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of π's state for a block of rows, over one share of the catalogue.

    It is Σ_items g · t with the g of `backward_table`. vectors: [shares, rows, D0]. The table is also stored transposed
    in `transposed` [D0, stride].
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
    if BELOW >= 0:
        limit = numbers(bound, rows, inside, True)[:, None]
        more = numbers(by_below, rows, inside, True)[:, None]
    if NOISE:
        hashed = row_hash(rows, seed)[:, None]
    total = numbers(lse, rows, inside, True)[:, None]
    constant = numbers(always, rows, inside, True)[:, None]
    if LINEAR:
        slope = numbers(by_f, rows, inside, True)[:, None]
    gradient = tl.zeros([BM, D0], dtype=tl.float32)
    begin, end = share * tiles_each, min((share + 1) * tiles_each, n_tiles)
    whole = min(end, n_items // BN)
    # Pass 0 streams whole tiles, whose loads need no mask, and pass 1 the catalogue's last tile if it is incomplete.
    for PASS in tl.static_range(2):
        for tile in range(max(begin, whole) if PASS > 0 else begin, end if PASS > 0 else whole):
            first = tile * BN
            items = first + tl.arange(0, BN)
            z, _ = values(state0, t0, b0, first, n_items, w0, BN, D0, BIAS0, PRECISION, PASS > 0)
            x = z
            if NOISE:
                x += gumbel(hashed, items[None, :], seed)
            x = x * scale
            if EXCLUDED:
                bucket = group * n_tiles + tile
                if tl.load(edges + bucket) < tl.load(edges + bucket + 1):
                    hits = excluded_in_tile(edges, pair_row, pair_item, bucket, rows, items, BM, BN, True)
                    x = tl.where(hits > 0.0, NEVER, x)
            if PASS > 0:
                x = tl.where((items < n_items)[None, :], x, NEVER)
            factor = constant
            bounded = z
            if LINEAR:
                f = c0 * z
            if HEADS > 1 and (LINEAR or BELOW == 1):
                z1, _ = values(state1, t1, b1, first, n_items, w1, BN, D1, BIAS1, PRECISION, PASS > 0)
                if LINEAR:
                    f += c1 * z1
                if BELOW == 1:
                    bounded = z1
            if HEADS > 2 and (LINEAR or BELOW == 2):
                z2, _ = values(state2, t2, b2, first, n_items, w2, BN, D2, BIAS2, PRECISION, PASS > 0)
                if LINEAR:
                    f += c2 * z2
                if BELOW == 2:
                    bounded = z2
            if LINEAR:
                factor = factor + slope * f
            if BELOW >= 0:
                factor = factor + tl.where(bounded <= limit, more, 0.0)
            weight = to_tf32(tl.exp2(x - total) * factor, PRECISION)
            columns = transposed_block(transposed, first, n_items, w0, stride, BN, D0, PASS > 0)
            gradient = add_product(gradient, weight, columns, PRECISION)
    store_vectors(vectors, share, first_row, n_rows, D0, correct_truncation(gradient, PRECISION), BM, D0)
