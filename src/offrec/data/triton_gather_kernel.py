"""The Triton kernel that gathers a batch."""

import triton
import triton.language as tl


@triton.jit
def chosen(order, edges, step):
    """Where the batch's pieces begin in `order`, and how many they are."""
    number = tl.load(step)
    start = tl.load(edges + number)
    return start, tl.load(edges + number + 1) - start


@triton.jit
def pieces_of(
    order, edges, step, bounds, items, started, n_all, pieces, length, n_items, first,
    BN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Some pieces: the mark of the start, then their items."""
    start, count = chosen(order, edges, step)
    slot = first + tl.arange(0, BN)
    kept = slot < pieces
    index = tl.load(order + start + tl.where(slot < count, slot, 0), mask=kept, other=0)
    begin = tl.load(bounds + index, mask=kept, other=0).to(tl.int64)
    end = tl.load(bounds + (index + n_all + n_all), mask=kept, other=0).to(tl.int64)
    for column in range(0, length + 1, WIDE):
        at = column + tl.arange(0, WIDE)
        event = begin[:, None] + at[None, :] - 1
        inside = kept[:, None] & (at > 0)[None, :] & (event < end[:, None])
        item = tl.load(items + event, mask=inside, other=n_items).to(tl.int64)
        place = slot.to(tl.int64)[:, None] * (length + 1) + at[None, :]
        tl.store(started + place, item, mask=kept[:, None] & (at <= length)[None, :])


@triton.jit
def rows_of(
    order, edges, step, bounds, items, mdp, longs, floats, recent, n_all, n_events, pieces, rows, room, length, history,
    n_items, base, first, BM: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Some rows: their pieces by counting those that end before them, then everything else."""
    start, count = chosen(order, edges, step)
    count = tl.minimum(count, pieces)  # of a batch larger than its size, no piece that was not gathered
    number = first + tl.arange(0, BM)
    kept = number < rows
    row = number.to(tl.int64)
    piece = tl.zeros([BM], dtype=tl.int64)
    before = tl.zeros([BM], dtype=tl.int64)  # rows of the pieces before
    total = start * 0
    for chunk in range(0, count, CHUNK):
        slot = chunk + tl.arange(0, CHUNK)
        there = slot < count
        index = tl.load(order + start + slot, mask=there, other=0)
        begins = tl.load(bounds + (index + n_all), mask=there, other=0).to(tl.int64)
        own = tl.load(bounds + (index + n_all + n_all), mask=there, other=0).to(tl.int64) - begins
        until = total + tl.cumsum(own, 0)
        passed = there[None, :] & (until[None, :] <= row[:, None])
        piece += tl.sum(passed.to(tl.int64), 1)
        before += tl.sum(tl.where(passed, own[None, :], 0), 1)
        total += tl.sum(own, 0)
    real = row < total
    piece = tl.where(real, piece, 0)
    mine = tl.load(order + start + piece, mask=kept, other=0)
    begin = tl.load(bounds + mine, mask=kept, other=0).to(tl.int64)
    event = tl.load(bounds + (mine + n_all), mask=kept, other=0).to(tl.int64) + tl.where(real, row - before, 0)
    position = event - begin
    action = tl.load(items + event, mask=kept, other=0).to(tl.int64)
    place = piece * (length + 1) + position
    tl.store(longs + number, piece, mask=kept)
    tl.store(longs + room + number, position, mask=kept)
    tl.store(longs + 2 * room + number, place, mask=kept)
    tl.store(longs + 3 * room + number, place + 1, mask=kept)
    tl.store(longs + 4 * room + number, action, mask=kept)
    tl.store(longs + 5 * room + number, event + base, mask=kept)
    reward = tl.load(mdp + event, mask=kept, other=0.0)
    discount = tl.load(mdp + (event + n_events), mask=kept, other=0.0)
    return_to_go = tl.load(mdp + (event + n_events + n_events), mask=kept, other=0.0)
    goes_on = discount > 0.0
    after = tl.div_rn(tl.where(goes_on, return_to_go - reward, 0.0), tl.where(goes_on, discount, 1.0))
    tl.store(floats + number, reward, mask=kept)
    tl.store(floats + room + number, discount, mask=kept)
    tl.store(floats + 2 * room + number, return_to_go, mask=kept)
    tl.store(floats + 3 * room + number, after, mask=kept)
    share = tl.div_rn(real.to(tl.float32), tl.zeros_like(reward) + total.to(tl.float32))
    tl.store(floats + 4 * room + number, share, mask=kept)
    for column in range(0, history + 1, WIDE):
        ago = column + tl.arange(0, WIDE)  # 0 is the action itself
        seen = kept[:, None] & (ago[None, :] <= position[:, None])
        item = tl.load(items + event[:, None] - ago[None, :], mask=seen, other=n_items).to(tl.int64)
        at = row[:, None] * history + ago[None, :]
        tl.store(recent + at - 1, item, mask=kept[:, None] & ((ago > 0) & (ago <= history))[None, :])
        tl.store(recent + rows * history + at, item, mask=kept[:, None] & (ago < history)[None, :])


SIZES = ["n_all", "n_events", "pieces", "rows", "room", "length", "history", "n_items", "base"]


@triton.jit(do_not_specialize=SIZES)  # one kernel for batches of all sizes
def gather(
    order, edges, step, bounds, items, mdp, started, longs, floats, recent,
    n_all, n_events, pieces, rows, room, length, history, n_items, base,
    BM: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    by_rows = tl.cdiv(rows, BM)
    if program < by_rows:
        rows_of(
            order, edges, step, bounds, items, mdp, longs, floats, recent, n_all, n_events, pieces, rows, room, length,
            history, n_items, base, program * BM, BM, WIDE, CHUNK,
        )  # fmt: skip
    else:
        pieces_of(
            order, edges, step, bounds, items, started, n_all, pieces, length, n_items,
            (program - by_rows) * BM, BM, WIDE,
        )  # fmt: skip
