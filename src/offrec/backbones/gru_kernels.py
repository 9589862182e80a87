"""The kernels of `offrec.backbones.gru_on_gpu`: a program computes all steps of a few sequences.

    r = σ(W_r x + b_r + U_r h + c_r)      n = tanh(W_n x + b_n + r ⊙ (U_n h + c_n))
    z = σ(W_z x + b_z + U_z h + c_z)      h′ = n + z ⊙ (h − n)

tanh(x) is computed as 2σ(2x) − 1.
"""

import triton
import triton.language as tl

from offrec.catalogue.triton.device_functions import product, to_tf32


@triton.jit
def weights_of(u, gate: tl.constexpr, width: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr):
    """Load U of one gate, [D, D], zeros outside of [width, width]; rounded if products are TF32."""
    out, across = tl.arange(0, D), tl.arange(0, D)
    inside = (out < width)[:, None] & (across < width)[None, :]
    loaded = tl.load(u + (gate * width + out)[:, None] * width + across[None, :], mask=inside, other=0.0)
    return to_tf32(loaded, PRECISION)


@triton.jit
def forward_steps(
    gates, u, c, states, before, kept, n_rows, steps,
    width: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, KEEP: tl.constexpr, HOLD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the states [rows, steps, width] from the gates' inputs [rows, steps, 3 · width] W x + b.

    KEEP: also store the state before each step, and r, z, n and U_n h + c_n of each step, for the backward pass.
    HOLD: whether the weights stay in registers.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    across = tl.arange(0, D)
    inside = (rows < n_rows)[:, None] & (across < width)[None, :]
    real = across < width
    c_r = tl.load(c + across, mask=real, other=0.0)[None, :]
    c_z = tl.load(c + width + across, mask=real, other=0.0)[None, :]
    c_n = tl.load(c + 2 * width + across, mask=real, other=0.0)[None, :]
    if HOLD:
        u_r, u_z, u_n = (
            weights_of(u, 0, width, D, PRECISION),
            weights_of(u, 1, width, D, PRECISION),
            weights_of(u, 2, width, D, PRECISION),
        )
    h = tl.zeros([BM, D], dtype=tl.float32)
    for step in range(steps):
        at = (rows.to(tl.int64) * steps + step)[:, None]
        rounded = to_tf32(h, PRECISION)
        if not HOLD:
            u_r = weights_of(u, 0, width, D, PRECISION)
        r = tl.load(gates + at * 3 * width + across[None, :], mask=inside, other=0.0)
        r = tl.sigmoid(r + product(rounded, tl.trans(u_r), PRECISION) + c_r)
        if not HOLD:
            u_z = weights_of(u, 1, width, D, PRECISION)
        z = tl.load(gates + at * 3 * width + width + across[None, :], mask=inside, other=0.0)
        z = tl.sigmoid(z + product(rounded, tl.trans(u_z), PRECISION) + c_z)
        if not HOLD:
            u_n = weights_of(u, 2, width, D, PRECISION)
        of_state = product(rounded, tl.trans(u_n), PRECISION) + c_n
        n = tl.load(gates + at * 3 * width + 2 * width + across[None, :], mask=inside, other=0.0)
        n = 2.0 * tl.sigmoid(2.0 * (n + r * of_state)) - 1.0
        if KEEP:
            tl.store(before + at * width + across[None, :], h, mask=inside)
            start = kept + at * 4 * width + across[None, :]
            tl.store(start, r, mask=inside)
            tl.store(start + width, z, mask=inside)
            tl.store(start + 2 * width, n, mask=inside)
            tl.store(start + 3 * width, of_state, mask=inside)
        h = n + z * (h - n)
        tl.store(states + at * width + across[None, :], h, mask=inside)


@triton.jit
def backward_steps(
    to_states, before, kept, u, of_inputs, of_states, sums, n_rows, steps,
    width: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, HOLD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of W x + b and U h + c of all gates, [rows, steps, 3 · width] each.

    sums [programs, 4, width]: their sums over the rows and steps of each program, those of r and z once.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    across = tl.arange(0, D)
    inside = (rows < n_rows)[:, None] & (across < width)[None, :]
    if HOLD:
        u_r, u_z, u_n = (
            weights_of(u, 0, width, D, PRECISION),
            weights_of(u, 1, width, D, PRECISION),
            weights_of(u, 2, width, D, PRECISION),
        )
    to_h = tl.zeros([BM, D], dtype=tl.float32)
    sum_r, sum_z = tl.zeros([D], dtype=tl.float32), tl.zeros([D], dtype=tl.float32)
    sum_n, sum_of_state = tl.zeros([D], dtype=tl.float32), tl.zeros([D], dtype=tl.float32)
    for back in range(steps):
        at = (rows.to(tl.int64) * steps + (steps - 1 - back))[:, None]
        to_h += tl.load(to_states + at * width + across[None, :], mask=inside, other=0.0)
        h = tl.load(before + at * width + across[None, :], mask=inside, other=0.0)
        start = kept + at * 4 * width + across[None, :]
        r = tl.load(start, mask=inside, other=0.0)
        z = tl.load(start + width, mask=inside, other=0.0)
        n = tl.load(start + 2 * width, mask=inside, other=0.0)
        of_state = tl.load(start + 3 * width, mask=inside, other=0.0)
        to_n = to_h * (1.0 - z) * (1.0 - n * n)
        to_z = to_h * (h - n) * z * (1.0 - z)
        to_r = to_n * of_state * r * (1.0 - r)
        to_of_state = to_n * r
        first = at * 3 * width + across[None, :]
        tl.store(of_inputs + first, to_r, mask=inside)
        tl.store(of_inputs + first + width, to_z, mask=inside)
        tl.store(of_inputs + first + 2 * width, to_n, mask=inside)
        tl.store(of_states + first, to_r, mask=inside)
        tl.store(of_states + first + width, to_z, mask=inside)
        tl.store(of_states + first + 2 * width, to_of_state, mask=inside)
        sum_r += tl.sum(to_r, 0)
        sum_z += tl.sum(to_z, 0)
        sum_n += tl.sum(to_n, 0)
        sum_of_state += tl.sum(to_of_state, 0)
        to_h = to_h * z
        if not HOLD:
            u_r = weights_of(u, 0, width, D, PRECISION)
        to_h += product(to_tf32(to_r, PRECISION), u_r, PRECISION)
        if not HOLD:
            u_z = weights_of(u, 1, width, D, PRECISION)
        to_h += product(to_tf32(to_z, PRECISION), u_z, PRECISION)
        if not HOLD:
            u_n = weights_of(u, 2, width, D, PRECISION)
        to_h += product(to_tf32(to_of_state, PRECISION), u_n, PRECISION)
    out = sums + tl.program_id(0) * 4 * width + across
    tl.store(out, sum_r, mask=across < width)
    tl.store(out + width, sum_z, mask=across < width)
    tl.store(out + 2 * width, sum_n, mask=across < width)
    tl.store(out + 3 * width, sum_of_state, mask=across < width)
