"""The Triton kernel that gathers a batch; `triton_gather` launches it."""

import triton
import triton.language as tl


@triton.jit
def batch_range(order, edges, step):
    """Return where the segments of the batch begin in `order`, and their number."""
    number = tl.load(step)
    start = tl.load(edges + number)
    return start, tl.load(edges + number + 1) - start


@triton.jit
def gather_segments(
    order, edges, step, bounds, items, tokens, n_all, segments, length, n_items, first,
    BN: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Gather the tokens of a block of segments, preceded by the start token `n_items`."""
    start, count = batch_range(order, edges, step)
    slot = first + tl.arange(0, BN)
    exists = slot < segments
    index = tl.load(order + start + tl.where(slot < count, slot, 0), mask=exists, other=0)
    begin = tl.load(bounds + index, mask=exists, other=0).to(tl.int64)
    end = tl.load(bounds + (index + n_all + n_all), mask=exists, other=0).to(tl.int64)
    for block in range(0, length + 1, BL):
        column = block + tl.arange(0, BL)
        event = begin[:, None] + column[None, :] - 1
        inside = exists[:, None] & (column > 0)[None, :] & (event < end[:, None])
        item = tl.load(items + event, mask=inside, other=n_items).to(tl.int64)
        target = slot.to(tl.int64)[:, None] * (length + 1) + column[None, :]
        tl.store(tokens + target, item, mask=exists[:, None] & (column <= length)[None, :])


@triton.jit
def gather_rows(
    order, edges, step, bounds, items, mdp, longs, floats, recent, n_all, n_events, segments, rows, stride, length,
    history, n_items, first_event, first, BM: tl.constexpr, BL: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gather all other columns for a block of rows. A row's segment is the number of segments that end before it."""
    start, count = batch_range(order, edges, step)
    count = tl.minimum(count, segments)  # if the batch is larger than its size, ignore segments without tokens
    number = first + tl.arange(0, BM)
    exists = number < rows
    row = number.to(tl.int64)
    segment = tl.zeros([BM], dtype=tl.int64)
    before = tl.zeros([BM], dtype=tl.int64)  # number of rows in the preceding segments
    total = start * 0
    for chunk in range(0, count, CHUNK):
        slot = chunk + tl.arange(0, CHUNK)
        in_batch = slot < count
        index = tl.load(order + start + slot, mask=in_batch, other=0)
        first_row = tl.load(bounds + (index + n_all), mask=in_batch, other=0).to(tl.int64)
        own_rows = tl.load(bounds + (index + n_all + n_all), mask=in_batch, other=0).to(tl.int64) - first_row
        rows_up_to = total + tl.cumsum(own_rows, 0)
        ends_before = in_batch[None, :] & (rows_up_to[None, :] <= row[:, None])
        segment += tl.sum(ends_before.to(tl.int64), 1)
        before += tl.sum(tl.where(ends_before, own_rows[None, :], 0), 1)
        total += tl.sum(own_rows, 0)
    is_real = row < total
    segment = tl.where(is_real, segment, 0)
    own = tl.load(order + start + segment, mask=exists, other=0)
    begin = tl.load(bounds + own, mask=exists, other=0).to(tl.int64)
    event = tl.load(bounds + (own + n_all), mask=exists, other=0).to(tl.int64) + tl.where(is_real, row - before, 0)
    position = event - begin
    action = tl.load(items + event, mask=exists, other=0).to(tl.int64)
    state_index = segment * (length + 1) + position
    tl.store(longs + number, segment, mask=exists)
    tl.store(longs + stride + number, position, mask=exists)
    tl.store(longs + 2 * stride + number, state_index, mask=exists)
    tl.store(longs + 3 * stride + number, state_index + 1, mask=exists)
    tl.store(longs + 4 * stride + number, action, mask=exists)
    tl.store(longs + 5 * stride + number, event + first_event, mask=exists)
    reward = tl.load(mdp + event, mask=exists, other=0.0)
    discount = tl.load(mdp + (event + n_events), mask=exists, other=0.0)
    return_to_go = tl.load(mdp + (event + n_events + n_events), mask=exists, other=0.0)
    continues = discount > 0.0
    next_return = tl.div_rn(tl.where(continues, return_to_go - reward, 0.0), tl.where(continues, discount, 1.0))
    tl.store(floats + number, reward, mask=exists)
    tl.store(floats + stride + number, discount, mask=exists)
    tl.store(floats + 2 * stride + number, return_to_go, mask=exists)
    tl.store(floats + 3 * stride + number, next_return, mask=exists)
    weight = tl.div_rn(is_real.to(tl.float32), tl.zeros_like(reward) + total.to(tl.float32))
    tl.store(floats + 4 * stride + number, weight, mask=exists)
    for block in range(0, history + 1, BL):
        lag = block + tl.arange(0, BL)  # 0 is the action itself
        inside = exists[:, None] & (lag[None, :] <= position[:, None])
        item = tl.load(items + event[:, None] - lag[None, :], mask=inside, other=n_items).to(tl.int64)
        target = row[:, None] * history + lag[None, :]
        tl.store(recent + target - 1, item, mask=exists[:, None] & ((lag > 0) & (lag <= history))[None, :])
        tl.store(recent + rows * history + target, item, mask=exists[:, None] & (lag < history)[None, :])


SIZES = ["n_all", "n_events", "segments", "rows", "stride", "length", "history", "n_items", "first_event"]


@triton.jit(do_not_specialize=SIZES)  # one kernel for batches of all sizes
def gather(
    order, edges, step, bounds, items, mdp, tokens, longs, floats, recent,
    n_all, n_events, segments, rows, stride, length, history, n_items, first_event,
    BM: tl.constexpr, BL: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gather rows in the first programs and segments in the others."""
    program = tl.program_id(0)
    row_programs = tl.cdiv(rows, BM)
    if program < row_programs:
        gather_rows(
            order, edges, step, bounds, items, mdp, longs, floats, recent, n_all, n_events, segments, rows, stride,
            length, history, n_items, first_event, program * BM, BM, BL, CHUNK,
        )  # fmt: skip
    else:
        gather_segments(
            order, edges, step, bounds, items, tokens, n_all, segments, length, n_items,
            (program - row_programs) * BM, BM, BL,
        )  # fmt: skip
