"""A GRU layer for the small batches of fits on a CPU. It computes what PyTorch's does, up to rounding, in less time.

    r = σ(W_r x + b_r + U_r h + c_r)      n = tanh(W_n x + b_n + r ⊙ (U_n h + c_n))
    z = σ(W_z x + b_z + U_z h + c_z)      h′ = n + z ⊙ (h − n)

- Sequences are packed: a step computes only those that have not ended. Padding can be a third of a batch.
- PyTorch's backward pass adds to the gradients of all weights after every step. Here a step only computes the gradients
  of its gates and of h; the gradients of the weights follow from the gates of all steps, by one product per matrix.
- tanh(x) is computed as 2σ(2x) − 1, because PyTorch's σ takes a sixth of the time of its tanh.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Packing(NamedTuple):
    """The elements of N sequences of at most L steps, step by step and without padding: T in total.

    Within a step, long sequences precede short ones. Those that continue are therefore the first ones of every step.
    """

    padded: Tensor  # [T] index of each element among the N · L elements of the padded sequences
    before: Tensor  # [T − T_0] index in the packing of the element before each, for those after the first step
    edges: list[int]  # [L + 1] where each step begins

    @classmethod
    def of(cls, lengths: Tensor, steps: int) -> "Packing":
        """Return the packing of sequences with these lengths [N], each between 1 and `steps`."""
        lengths, order = lengths.sort(descending=True, stable=True)
        step = torch.arange(steps)[:, None]
        active = lengths > step  # [L, N]
        padded = (order * steps + step)[active]
        count = active.sum(1)
        before = torch.arange(int(count[0]), len(padded)) - count[:-1].repeat_interleave(count[1:])
        return cls(padded, before, [0, *count.cumsum(0).tolist()])

    def places(self, padded: Tensor) -> Tensor:
        """Return the indices in the packing of elements, given their indices in the padded sequences."""
        inverse = torch.empty(int(self.padded.max()) + 1, dtype=torch.long)
        inverse[self.padded] = torch.arange(len(self.padded))
        return inverse[padded]


class GRULayer(torch.autograd.Function):
    """Maps packed inputs [T, d] to packed states [T, d], from h = 0. The weights are those of `torch.nn.GRU`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor, packing: Packing) -> Tensor:
        width, both = inputs.shape[1], 2 * inputs.shape[1]
        bias = b.clone()
        bias[:both] += c[:both]
        gates = torch.addmm(bias, inputs, w.t())  # [T, 3d] becomes r, z and n
        of_state = torch.empty_like(inputs)  # U_n h + c_n
        states = torch.empty_like(inputs)
        to_both, to_n = u[:both].t().contiguous(), u[both:].t().contiguous()
        c_n, minus_one = c[both:], inputs.new_full((), -1.0)
        columns = gates[:, :both], gates[:, :width], gates[:, width:both], gates[:, both:], of_state, states
        counts = [last - first for first, last in pairwise(packing.edges)]
        state = inputs.new_zeros(counts[0], width)
        for count, r_and_z, r, z, n, product, next_state in zip(
            counts, *(torch.split(column, counts) for column in columns), strict=True
        ):
            state = state[:count]
            torch.addmm(r_and_z, state, to_both, out=r_and_z).sigmoid_()
            torch.addmm(c_n, state, to_n, out=product)
            n.addcmul_(r, product).mul_(2.0).sigmoid_()
            torch.add(minus_one, n, alpha=2.0, out=n)
            torch.lerp(n, state, z, out=next_state)
            state = next_state
        ctx.packing = packing
        ctx.save_for_backward(inputs, w, u, gates, of_state, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_states: Tensor) -> tuple[Tensor | None, ...]:
        inputs, w, u, gates, of_state, states = ctx.saved_tensors
        packing, width, edges = ctx.packing, states.shape[1], ctx.packing.edges
        before = torch.zeros_like(states)  # h of each element
        before[edges[1] :] = states.index_select(0, packing.before)
        to_next = to_states.clone(memory_format=torch.contiguous_format)  # becomes the gradients of each h′
        r, z, n = gates.chunk(3, 1)
        # The gradients of the gates are those of h′ times factors that are known before the first step.
        slope = (1 - n * n).mul_(1 - z)
        factors = torch.empty_like(gates)
        of_r, of_z, of_n = factors.chunk(3, 1)
        torch.mul(slope, r, out=of_n)
        torch.mul(of_n, of_state, out=of_r).mul_(1 - r)
        torch.sub(before, n, out=of_z).mul_(z).mul_(1 - z)
        by_gate = factors.view(-1, 3, width)
        for first, begin, end in reversed([(0, 0, edges[1]), *zip(edges, edges[1:], edges[2:], strict=False)]):
            by_gate[begin:end].mul_(to_next[begin:end, None])
            if begin:
                one = to_next[first : first + end - begin]
                one.addcmul_(to_next[begin:end], z[begin:end]).addmm_(factors[begin:end], u)
        to_u, to_c = factors.t() @ before, factors.sum(0)
        of_n.copy_(to_next.mul_(slope))  # the input enters n directly, and not through r
        return factors @ w, factors.t() @ inputs, to_u, factors.sum(0), to_c, None
