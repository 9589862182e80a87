"""The Triton kernels behind what is asked of few items, some rows a program."""

import triton
import triton.language as tl


@triton.jit
def values(
    state, table, bias, items, found, width, n, D: tl.constexpr, BIAS: tl.constexpr, SOME: tl.constexpr
):  # fmt: skip
    """One row, some of its items: state · table[item] + bias[item]."""
    row = tl.program_id(0)
    at = tl.program_id(1) * SOME + tl.arange(0, SOME)
    across = tl.arange(0, D)
    kept = at < n
    item = tl.load(items + row.to(tl.int64) * n + at, mask=kept, other=0)
    mine = tl.load(state + row.to(tl.int64) * width + across, mask=across < width, other=0.0).to(tl.float32)
    vectors = tl.load(
        table + item[:, None] * width + across[None, :], mask=kept[:, None] & (across < width)[None, :], other=0.0
    )
    z = tl.sum(vectors.to(tl.float32) * mine[None, :], 1)
    if BIAS:
        z += tl.load(bias + item, mask=kept, other=0.0)
    tl.store(found + row.to(tl.int64) * n + at, z, mask=kept)


@triton.jit
def to_states(table, items, gradient, to_state, width, n, D: tl.constexpr, SOME: tl.constexpr):
    """One row: Σ g table[item]."""
    row = tl.program_id(0)
    across = tl.arange(0, D)
    total = tl.zeros([D], dtype=tl.float32)
    for first in range(0, n, SOME):
        at = first + tl.arange(0, SOME)
        kept = at < n
        item = tl.load(items + row.to(tl.int64) * n + at, mask=kept, other=0)
        g = tl.load(gradient + row.to(tl.int64) * n + at, mask=kept, other=0.0)
        vectors = tl.load(
            table + item[:, None] * width + across[None, :], mask=kept[:, None] & (across < width)[None, :], other=0.0
        )
        total += tl.sum(g[:, None] * vectors.to(tl.float32), 0)
    tl.store(to_state + row.to(tl.int64) * width + across, total.to(to_state.dtype.element_ty), mask=across < width)


@triton.jit
def compare(items, others, first, inside, full, log_counts, n_rows, n, n_items, BM: tl.constexpr, N: tl.constexpr):
    """Some rows of one or of the other: which places are the first of their item, and how often the row has it."""
    if tl.program_id(1) == 1:
        items = others
        first += n_rows * n
        inside += n_rows * n
        full += n_rows * n
        log_counts += n_rows * n
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    across = tl.arange(0, N)
    place = rows[:, None] * n + across[None, :]
    kept = (rows < n_rows)[:, None] & (across < n)[None, :]
    item = tl.load(items + place, mask=kept, other=n_items)
    before = tl.zeros([BM, N], dtype=tl.int32)
    count = tl.zeros([BM, N], dtype=tl.int32)
    for number in range(n):
        other = tl.load(items + rows * n + number, mask=rows < n_rows, other=-1)
        same = (item == other[:, None]).to(tl.int32)
        count += same
        before += tl.where(across[None, :] > number, same, 0)
    found = tl.where(before > 0, n_items, item)
    tl.store(first + place, found, mask=kept)
    tl.store(inside + place, tl.minimum(found, n_items - 1), mask=kept)
    tl.store(full + place, (found < n_items).to(tl.float32), mask=kept)
    tl.store(log_counts + place, tl.log(tl.maximum(count, 1).to(tl.float32)), mask=kept)


@triton.jit
def matches(
    sources, values, targets, found, n_rows, n_sources, n_targets,
    BM: tl.constexpr, TARGETS: tl.constexpr,
):  # fmt: skip
    """Some rows: for each target the sum of the values whose source is the same item."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = (rows < n_rows)[:, None]
    across = tl.arange(0, TARGETS)
    place = rows[:, None] * n_targets + across[None, :]
    kept = inside & (across < n_targets)[None, :]
    target = tl.load(targets + place, mask=kept, other=-1)
    total = tl.zeros([BM, TARGETS], dtype=tl.float32)
    for number in range(n_sources):
        source = tl.load(sources + rows * n_sources + number, mask=rows < n_rows, other=-2)
        value = tl.load(values + rows * n_sources + number, mask=rows < n_rows, other=0.0)
        total += tl.where(target == source[:, None], value[:, None], 0.0)
    tl.store(found + place, total, mask=kept)


@triton.jit
def score(
    by_place, by_count, product, log_counts, full, found, scale, n, n_places,
    PRODUCT: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Some slots: scale · (by_place + by_count · log n + product), 0 in empty ones."""
    at = tl.program_id(0) * STEP + tl.arange(0, STEP)
    kept = at < n
    total = tl.load(by_place + at % n_places, mask=kept, other=0.0)
    total += tl.load(by_count) * tl.load(log_counts + at, mask=kept, other=0.0)
    if PRODUCT:
        total += tl.load(product + at, mask=kept, other=0.0)
    tl.store(found + at, total * (scale * tl.load(full + at, mask=kept, other=0.0)), mask=kept)


@triton.jit
def score_gradients(gradient, log_counts, full, found, scale, n, STEP: tl.constexpr):
    """Some slots: the gradient of what is summed up, and the same times log n, into found [2, n]."""
    at = tl.program_id(0) * STEP + tl.arange(0, STEP)
    kept = at < n
    moved = tl.load(gradient + at, mask=kept, other=0.0) * (scale * tl.load(full + at, mask=kept, other=0.0))
    tl.store(found + at, moved, mask=kept)
    tl.store(found + n + at, moved * tl.load(log_counts + at, mask=kept, other=0.0), mask=kept)
