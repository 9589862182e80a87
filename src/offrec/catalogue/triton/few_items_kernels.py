"""Triton kernels that read or score few items per row; each program handles one row or a few rows."""

import triton
import triton.language as tl


@triton.jit
def values(
    state, table, bias, items, z_out, width, n, D: tl.constexpr, BIAS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Compute state · table[item] + bias[item] for one row and a chunk of its items."""
    row = tl.program_id(0)
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    across = tl.arange(0, D)
    valid = at < n
    item = tl.load(items + row.to(tl.int64) * n + at, mask=valid, other=0)
    own_state = tl.load(state + row.to(tl.int64) * width + across, mask=across < width, other=0.0).to(tl.float32)
    vectors = tl.load(
        table + item[:, None] * width + across[None, :], mask=valid[:, None] & (across < width)[None, :], other=0.0
    )
    z = tl.sum(vectors.to(tl.float32) * own_state[None, :], 1)
    if BIAS:
        z += tl.load(bias + item, mask=valid, other=0.0)
    tl.store(z_out + row.to(tl.int64) * n + at, z, mask=valid)


@triton.jit
def state_gradients(table, items, gradient, to_state, width, n, D: tl.constexpr, CHUNK: tl.constexpr):
    """Compute Σ g table[item] for one row."""
    row = tl.program_id(0)
    across = tl.arange(0, D)
    total = tl.zeros([D], dtype=tl.float32)
    for first in range(0, n, CHUNK):
        at = first + tl.arange(0, CHUNK)
        valid = at < n
        item = tl.load(items + row.to(tl.int64) * n + at, mask=valid, other=0)
        g = tl.load(gradient + row.to(tl.int64) * n + at, mask=valid, other=0.0)
        vectors = tl.load(
            table + item[:, None] * width + across[None, :], mask=valid[:, None] & (across < width)[None, :], other=0.0
        )
        total += tl.sum(g[:, None] * vectors.to(tl.float32), 0)
    tl.store(to_state + row.to(tl.int64) * width + across, total.to(to_state.dtype.element_ty), mask=across < width)


@triton.jit
def unique_items(items, first, clamped, filled, log_counts, n_rows, n, n_items, BM: tl.constexpr, N: tl.constexpr):
    """Find, for a few rows, which positions are the first of their item, and how often the row contains it."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    across = tl.arange(0, N)
    position = rows[:, None] * n + across[None, :]
    valid = (rows < n_rows)[:, None] & (across < n)[None, :]
    item = tl.load(items + position, mask=valid, other=n_items)
    before = tl.zeros([BM, N], dtype=tl.int32)
    count = tl.zeros([BM, N], dtype=tl.int32)
    for number in range(n):
        other = tl.load(items + rows * n + number, mask=rows < n_rows, other=-1)
        same = (item == other[:, None]).to(tl.int32)
        count += same
        before += tl.where(across[None, :] > number, same, 0)
    slot_item = tl.where(before > 0, n_items, item)
    tl.store(first + position, slot_item, mask=valid)
    tl.store(clamped + position, tl.minimum(slot_item, n_items - 1), mask=valid)
    tl.store(filled + position, (slot_item < n_items).to(tl.float32), mask=valid)
    tl.store(log_counts + position, tl.log(tl.maximum(count, 1).to(tl.float32)), mask=valid)


@triton.jit
def sum_matching(
    sources, values, targets, sums, n_rows, n_sources, n_targets,
    BM: tl.constexpr, TARGETS: tl.constexpr,
):  # fmt: skip
    """Sum, for each target of a few rows, the values whose source is the same item."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = (rows < n_rows)[:, None]
    across = tl.arange(0, TARGETS)
    position = rows[:, None] * n_targets + across[None, :]
    valid = inside & (across < n_targets)[None, :]
    target = tl.load(targets + position, mask=valid, other=-1)
    total = tl.zeros([BM, TARGETS], dtype=tl.float32)
    for number in range(n_sources):
        source = tl.load(sources + rows * n_sources + number, mask=rows < n_rows, other=-2)
        value = tl.load(values + rows * n_sources + number, mask=rows < n_rows, other=0.0)
        total += tl.where(target == source[:, None], value[:, None], 0.0)
    tl.store(sums + position, total, mask=valid)


@triton.jit
def score(
    by_position, by_count, product, log_counts, filled, scores, scale, n, n_positions,
    PRODUCT: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute scale · (by_position + by_count · log n + product) for STEP slots, 0 in empty ones."""
    at = tl.program_id(0) * STEP + tl.arange(0, STEP)
    valid = at < n
    total = tl.load(by_position + at % n_positions, mask=valid, other=0.0)
    total += tl.load(by_count) * tl.load(log_counts + at, mask=valid, other=0.0)
    if PRODUCT:
        total += tl.load(product + at, mask=valid, other=0.0)
    tl.store(scores + at, total * (scale * tl.load(filled + at, mask=valid, other=0.0)), mask=valid)


@triton.jit
def score_gradients(gradient, log_counts, filled, gradients, scale, n, STEP: tl.constexpr):
    """Compute the gradient of the sum inside `score`, and its product with log n, for STEP slots: [2, n]."""
    at = tl.program_id(0) * STEP + tl.arange(0, STEP)
    valid = at < n
    scaled = tl.load(gradient + at, mask=valid, other=0.0) * (scale * tl.load(filled + at, mask=valid, other=0.0))
    tl.store(gradients + at, scaled, mask=valid)
    tl.store(gradients + n + at, scaled * tl.load(log_counts + at, mask=valid, other=0.0), mask=valid)
