"""A GRU layer for a GPU: one kernel for all steps of the forward pass, and one for those of the backward pass.

The gradients of the weights follow from the gates of all steps, by one product per matrix. cuDNN computes a few long
sequences faster, but many or short ones more slowly, and its kernels for several networks wait for each other.
"""

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from offrec.backbones import gru_kernels
from offrec.catalogue.triton.launch import padded_width, precision

ROWS = 16  # sequences per program
GATES = 4  # r, z, n, and U_n h + c_n


class KernelGRU(torch.autograd.Function):
    """Maps inputs [N, L, d] to states [N, L, d], from h = 0. The weights are those of `torch.nn.GRU`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor, is_grad_enabled: bool) -> Tensor:
        rows, steps, width = inputs.shape
        gates = torch.addmm(b, inputs.reshape(-1, width), w.t())
        states = torch.empty(rows, steps, width, device=inputs.device)
        keeps = is_grad_enabled and any(ctx.needs_input_grad)
        before = torch.empty_like(states) if keeps else states
        kept = torch.empty(rows, steps, GATES, width, device=inputs.device) if keeps else states
        gru_kernels.forward_steps[(triton.cdiv(rows, ROWS),)](
            gates, u, c, states, before, kept, rows, steps, KEEP=keeps, **_constants(width, inputs.device)
        )
        if keeps:
            ctx.save_for_backward(inputs, w, u, before, kept)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_states: Tensor) -> tuple[Tensor | None, ...]:
        inputs, w, u, before, kept = ctx.saved_tensors
        rows, steps, width = inputs.shape
        programs = triton.cdiv(rows, ROWS)
        of_inputs = torch.empty(rows * steps, 3 * width, device=inputs.device)
        of_states = torch.empty_like(of_inputs)
        sums = torch.empty(programs, GATES, width, device=inputs.device)
        gru_kernels.backward_steps[(programs,)](
            to_states.contiguous(),
            before,
            kept,
            u,
            of_inputs,
            of_states,
            sums,
            rows,
            steps,
            **_constants(width, inputs.device),
        )
        to_inputs = (of_inputs @ w).view_as(inputs)
        totals = sums.sum(0)
        return (
            to_inputs,
            of_inputs.t() @ inputs.reshape(-1, width),
            of_states.t() @ before.view(-1, width),
            totals[:3].flatten(),
            torch.cat([totals[:2], totals[3:]]).flatten(),
            None,
        )


def fits(width: int, device: torch.device) -> bool:
    """Return whether the kernels fit the device at this width."""
    return _holds_weights(width, device, precision(torch.float32)) is not None


@cache
def _holds_weights(width: int, device: torch.device, products: str) -> bool | None:
    """Return whether the weights stay in a multiprocessor for all steps; None if even one of them does not fit.

    Triton raises `OutOfResources` before it computes anything, so both kernels are launched with nothing to compute.
    """
    nothing = torch.zeros(GATES * width * width, device=device)  # as large as U, which is loaded in any case
    # Three products per product need twice the memory, so the largest weights are not tried.
    for hold in (True, False) if products != "tf32x3" or padded_width(width) <= 64 else (False,):
        constants = _launch_constants(width, products, hold)
        try:
            gru_kernels.forward_steps[(1,)](*[nothing] * 6, 0, 0, KEEP=True, **constants)
            gru_kernels.backward_steps[(1,)](*[nothing] * 7, 0, 0, **constants)
        except triton.OutOfResources:
            continue
        return hold
    return None


def _constants(width: int, device: torch.device) -> dict[str, Any]:
    products = precision(torch.float32)
    return _launch_constants(width, products, bool(_holds_weights(width, device, products)))


def _launch_constants(width: int, products: str, hold: bool) -> dict[str, Any]:
    padded = padded_width(width)
    return {
        "width": width,
        "D": padded,
        "BM": ROWS,
        "HOLD": hold,
        "PRECISION": products,
        "num_warps": 8 if padded >= 64 else 4,
        "num_stages": 1,
    }
