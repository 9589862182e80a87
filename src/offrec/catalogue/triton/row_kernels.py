"""Kernels before and after the passes over the catalogue; each program handles a few rows.

`combine` merges the shares of the catalogue and the corrected items after the forward pass. `distribute` computes what
each row contributes to the gradients before the backward pass. A row's corrected items are its slots [B, K]; z0 … z3
are their values in each head.
"""

import triton
import triton.language as tl

from offrec.catalogue.triton.device_functions import LOG2E, LOWEST, NEVER, gumbel, row_hash

EMPTY = tl.constexpr(-3.0e38)  # the score of an empty slot, far below MASKED: a masked item still outweighs it


@triton.jit
def combine(
    scalars, vectors, z0, z1, z2, z3, items, bound, seed, c0, c1, c2, h0, h1, h2, h3, sums, expected,
    n_rows, n_items, n_slots, shares, scale,
    SHARES: tl.constexpr, SLOTS: tl.constexpr, HEADS: tl.constexpr, BELOW: tl.constexpr, NORMED: tl.constexpr,
    NOISE: tl.constexpr,
    NV: tl.constexpr, DM: tl.constexpr, BM: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """Merge the sums of `forward`, [shares, 7, rows] and [shares, NV, rows, DM], with the slots.

    sums [6, rows]: lse in units of log 2, lse, E f, mass, E h, and lse of the head NORMED. expected [NV, rows, DM]: the
    expected item vectors, without the slots.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < n_rows
    share = tl.arange(0, SHARES)
    here = (share < shares)[:, None] & inside[None, :]
    at = scalars + share[:, None] * 7 * n_rows + rows[None, :]
    tops = tl.load(at, mask=here, other=LOWEST)
    top = tl.max(tops, 0)
    fade = tl.exp2(tops - top[None, :])
    total = tl.sum(fade * tl.load(at + n_rows, mask=here, other=0.0), 0)
    of_f = tl.sum(fade * tl.load(at + 2 * n_rows, mask=here, other=0.0), 0)
    low = tl.sum(fade * tl.load(at + 3 * n_rows, mask=here, other=0.0), 0)
    of_h = tl.sum(fade * tl.load(at + 4 * n_rows, mask=here, other=0.0), 0)
    top = tl.where(total > 0.0, top, EMPTY)
    top_all = top
    if SLOTS > 0:
        slot = tl.arange(0, SLOTS)
        position = rows[:, None] * n_slots + slot[None, :]
        valid = inside[:, None] & (slot < n_slots)[None, :]
        item = tl.load(items + position, mask=valid, other=n_items)
        real = item < n_items
        z = tl.load(z0 + position, mask=real, other=0.0)
        x = z
        if NOISE:
            x += gumbel(row_hash(rows, seed)[:, None], item, seed)
        x = tl.where(real, x * scale, EMPTY)
        top_all = tl.maximum(top, tl.max(x, 1))
        weight = tl.where(real, tl.exp2(x - top_all[:, None]), 0.0)
        fall = tl.exp2(top - top_all)
        total = total * fall + tl.sum(weight, 1)
        f = c0 * z
        h = h0 * z
        bounded = z
        y = z
        if HEADS > 1:
            value = tl.load(z1 + position, mask=real, other=0.0)
            f += c1 * value
            h += h1 * value
            if BELOW == 1:
                bounded = value
            if NORMED == 1:
                y = value
        if HEADS > 2:
            value = tl.load(z2 + position, mask=real, other=0.0)
            f += c2 * value
            h += h2 * value
            if BELOW == 2:
                bounded = value
            if NORMED == 2:
                y = value
        if HEADS > 3:
            value = tl.load(z3 + position, mask=real, other=0.0)
            h += h3 * value
            if NORMED == 3:
                y = value
        of_f = of_f * fall + tl.sum(weight * f, 1)
        of_h = of_h * fall + tl.sum(weight * h, 1)
        if BELOW >= 0:
            limit = tl.load(bound + rows, mask=inside, other=0.0)
            low = low * fall + tl.sum(tl.where(bounded <= limit[:, None], weight, 0.0), 1)
    total = tl.maximum(total, 1.0e-37)  # 0 in a row whose items are all excluded
    lse2 = top_all + tl.log2(total)
    tl.store(sums + rows, lse2, mask=inside)
    tl.store(sums + n_rows + rows, lse2 / LOG2E, mask=inside)
    tl.store(sums + 2 * n_rows + rows, of_f / total, mask=inside)
    tl.store(sums + 3 * n_rows + rows, low / total, mask=inside)
    tl.store(sums + 4 * n_rows + rows, of_h / total, mask=inside)
    tl.store(sums + 5 * n_rows + rows, tl.zeros([BM], dtype=tl.float32), mask=inside)
    if NORMED > 0:
        tops = tl.load(at + 5 * n_rows, mask=here, other=LOWEST)
        top = tl.max(tops, 0)
        rest = tl.sum(tl.exp2(tops - top[None, :]) * tl.load(at + 6 * n_rows, mask=here, other=0.0), 0)
        top = tl.where(rest > 0.0, top, EMPTY)
        if SLOTS > 0:
            y = tl.where(real, y * LOG2E, EMPTY)
            higher = tl.maximum(top, tl.max(y, 1))
            rest = rest * tl.exp2(top - higher) + tl.sum(tl.where(real, tl.exp2(y - higher[:, None]), 0.0), 1)
            top = higher
        tl.store(sums + 5 * n_rows + rows, (top + tl.log2(tl.maximum(rest, 1.0e-37))) / LOG2E, mask=inside)
    across = tl.arange(0, DM)
    some = tl.arange(0, SOME)
    for which in tl.static_range(NV):
        vector = tl.zeros([BM, DM], dtype=tl.float32)
        for first in range(0, shares, SOME):
            number = first + some
            there = (number < shares)[:, None] & inside[None, :]
            high = tl.load(scalars + number[:, None] * 7 * n_rows + rows[None, :], mask=there, other=NEVER)
            less = tl.exp2(high - top_all[None, :]) / total[None, :]
            begin = ((number * NV + which)[:, None].to(tl.int64) * n_rows + rows[None, :]) * DM
            part = tl.load(vectors + begin[:, :, None] + across[None, None, :], mask=there[:, :, None], other=0.0)
            vector += tl.sum(less[:, :, None] * part, 0)
        start = (which * n_rows + rows).to(tl.int64) * DM
        tl.store(expected + start[:, None] + across[None, :], vector, mask=inside[:, None])


@triton.jit
def load_gradient(pointer, rows, stride, inside, GIVEN: tl.constexpr):
    """Load an output's gradient, or zeros if it has none."""
    if GIVEN:  # noqa: SIM108 a compile-time branch: the load must not be compiled without a gradient
        gradient = tl.load(pointer + rows * stride, mask=inside, other=0.0)
    else:
        gradient = tl.zeros_like(rows).to(tl.float32)
    return gradient


@triton.jit
def state_gradient(
    to_state, width, rows, inside, n_rows, expected, always, by_f, by_below,
    AT: tl.constexpr, LINEAR: tl.constexpr, BELOW: tl.constexpr, DM: tl.constexpr,
):  # fmt: skip
    """Compute Σ π g t from the expected item vectors of w, w f and w 1[below], in this order."""
    across = tl.arange(0, DM)
    mask = inside[:, None] & (across < width)[None, :]
    start = expected + (AT * n_rows + rows).to(tl.int64)[:, None] * DM + across[None, :]
    gradient = always[:, None] * tl.load(start, mask=mask, other=0.0)
    if LINEAR:
        gradient += by_f[:, None] * tl.load(start + n_rows * DM, mask=mask, other=0.0)
    if BELOW:
        after = (2 if LINEAR else 1) * n_rows * DM
        gradient += by_below[:, None] * tl.load(start + after, mask=mask, other=0.0)
    tl.store(to_state + rows[:, None] * width + across[None, :], gradient, mask=mask)


@triton.jit
def distribute(
    g_lse, g_mean, g_mass, lse_stride, mean_stride, mass_stride, sums, expected,
    z0, z1, z2, items, bound, seed, c0, c1, c2, factors, to0, to1, to2, to_z0, to_z1, to_z2, w0, w1, w2,
    n_rows, n_items, n_slots, scale, temperature,
    OF_LSE: tl.constexpr, OF_MEAN: tl.constexpr, OF_MASS: tl.constexpr, SLOTS: tl.constexpr, HEADS: tl.constexpr,
    LINEAR: tl.constexpr, BELOW: tl.constexpr, NOISE: tl.constexpr, DIRECT: tl.constexpr,
    V0: tl.constexpr, V1: tl.constexpr, V2: tl.constexpr, DM: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Distribute the gradients of lse, mean and mass to each row's factors, states (V0 … V2) and slots.

    The gradient of an item's z is its weight times a factor. For π the factor is
    `always + by_f · f + by_below · 1[below]`; for the other two heads it is one number per row. These five numbers are
    stored in factors [5, rows].
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows < n_rows
    to_mean = load_gradient(g_mean, rows, mean_stride, inside, OF_MEAN)
    by_f = to_mean / temperature
    by_below = load_gradient(g_mass, rows, mass_stride, inside, OF_MASS) / temperature
    always = load_gradient(g_lse, rows, lse_stride, inside, OF_LSE) / temperature
    if OF_MEAN:
        always -= by_f * tl.load(sums + 2 * n_rows + rows, mask=inside, other=0.0)
    if OF_MASS:
        always -= by_below * tl.load(sums + 3 * n_rows + rows, mask=inside, other=0.0)
    of1 = tl.zeros([BM], dtype=tl.float32)
    of2 = tl.zeros([BM], dtype=tl.float32)
    if DIRECT:
        always += c0 * to_mean
        of1 = c1 * to_mean
        of2 = c2 * to_mean
    tl.store(factors + rows, always, mask=inside)
    tl.store(factors + n_rows + rows, by_f, mask=inside)
    tl.store(factors + 2 * n_rows + rows, by_below, mask=inside)
    tl.store(factors + 3 * n_rows + rows, of1, mask=inside)
    tl.store(factors + 4 * n_rows + rows, of2, mask=inside)
    ONE: tl.constexpr = (1 + (1 if LINEAR else 0) + (1 if BELOW >= 0 else 0)) if V0 else 0
    TWO: tl.constexpr = ONE + (1 if V1 else 0)
    if V0:
        state_gradient(to0, w0, rows, inside, n_rows, expected, always, by_f, by_below, 0, LINEAR, BELOW >= 0, DM)
    if V1:
        state_gradient(to1, w1, rows, inside, n_rows, expected, of1, by_f, by_below, ONE, False, False, DM)
    if V2:
        state_gradient(to2, w2, rows, inside, n_rows, expected, of2, by_f, by_below, TWO, False, False, DM)
    if SLOTS > 0:
        slot = tl.arange(0, SLOTS)
        position = rows[:, None] * n_slots + slot[None, :]
        valid = inside[:, None] & (slot < n_slots)[None, :]
        item = tl.load(items + position, mask=valid, other=n_items)
        real = item < n_items
        z = tl.load(z0 + position, mask=real, other=0.0)
        x = z
        if NOISE:
            x += gumbel(row_hash(rows, seed)[:, None], item, seed)
        lse = tl.load(sums + rows, mask=inside, other=0.0)
        weight = tl.where(real, tl.exp2(x * scale - lse[:, None]), 0.0)
        f = c0 * z
        bounded = z
        if HEADS > 1:
            value = tl.load(z1 + position, mask=real, other=0.0)
            f += c1 * value
            if BELOW == 1:
                bounded = value
            tl.store(to_z1 + position, weight * of1[:, None], mask=valid)
        if HEADS > 2:
            value = tl.load(z2 + position, mask=real, other=0.0)
            f += c2 * value
            if BELOW == 2:
                bounded = value
            tl.store(to_z2 + position, weight * of2[:, None], mask=valid)
        factor = always[:, None] + by_f[:, None] * f
        if BELOW >= 0:
            limit = tl.load(bound + rows, mask=inside, other=0.0)
            factor += tl.where(bounded <= limit[:, None], by_below[:, None], 0.0)
        tl.store(to_z0 + position, weight * factor, mask=valid)


@triton.jit
def round_states(s0, s1, s2, s3, n0, n1, n2, n3, r0, r1, r2, r3, STEP: tl.constexpr):
    """Round the states of up to four heads to the nearest TF32 numbers."""
    which = tl.program_id(1)
    if which == 0:
        round_one(s0, n0, r0, STEP)
    elif which == 1:
        round_one(s1, n1, r1, STEP)
    elif which == 2:
        round_one(s2, n2, r2, STEP)
    else:
        round_one(s3, n3, r3, STEP)


@triton.jit
def round_one(source, n, to, STEP: tl.constexpr):
    """Round n numbers to the nearest TF32 numbers."""
    at = tl.program_id(0) * STEP + tl.arange(0, STEP)
    x = tl.load(source + at, mask=at < n, other=0.0)
    x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    tl.store(to + at, x, mask=at < n)


@triton.jit
def sum_rows(table, sums, n_rows, each, width: tl.constexpr, D: tl.constexpr, BM: tl.constexpr):
    """Sum `each` rows of a table [rows, width] into a row of sums [programs, width]."""
    begin = tl.program_id(0) * each
    end = min(begin + each, n_rows)
    across = tl.arange(0, D)
    total = tl.zeros([BM, D], dtype=tl.float32)
    for first in range(begin, end, BM):
        at = first + tl.arange(0, BM)
        inside = (at < end)[:, None] & (across < width)[None, :]
        total += tl.load(table + at.to(tl.int64)[:, None] * width + across[None, :], mask=inside, other=0.0)
    tl.store(sums + tl.program_id(0) * width + across, tl.sum(total, 0), mask=across < width)
