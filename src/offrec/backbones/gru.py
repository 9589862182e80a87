"""GRU: the gated recurrent unit."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from offrec.backbones.gru_on_cpu import GRULayer, Packing
from offrec.backbones.record import BackboneRecord
from offrec.catalogue.backend import kernels_enabled

if TYPE_CHECKING:
    from offrec.backbones.onnx_graph import OnnxGraph


KERNEL_WIDTH = 128  # largest width of `KernelGRU`: the weights stay in the registers of a multiprocessor
KERNEL_STEPS = 10  # per network: up to this many steps, `KernelGRU` takes less time than cuDNN
KERNEL_ROWS = 256  # from this many sequences on, it does so for any number of steps


class GRU(nn.Module):
    networks = 1  # how many networks an update computes concurrently
    is_fast_on_cpu = False  # whether to use `GRULayer` on a CPU; results differ from PyTorch's by rounding

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.cells = nn.GRU(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.uses_fast_layer(inputs.device):
            rows, steps, width = inputs.shape
            packing = Packing.of(torch.full((rows,), steps), steps)
            packed = self.packed_states(inputs.transpose(0, 1).reshape(-1, width), packing)
            return packed.view(steps, rows, width).transpose(0, 1)
        cells = self.cells
        if self.uses_kernels(inputs):
            from offrec.backbones.gru_on_gpu import KernelGRU  # needs triton

            weights = cells.weight_ih_l0, cells.weight_hh_l0, cells.bias_ih_l0, cells.bias_hh_l0
            by_kernels: Tensor = KernelGRU.apply(inputs, *weights, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
            return by_kernels
        states: Tensor = cells(inputs)[0]
        return states

    def uses_kernels(self, inputs: Tensor) -> bool:
        """Return whether `KernelGRU` computes the states in less time than cuDNN.

        Its steps take longer than cuDNN's, but the time of a step does not depend on the number of sequences, and those
        of several networks run concurrently.
        """
        rows, steps, width = inputs.shape
        is_known = self.cells.num_layers == 1 and width <= KERNEL_WIDTH
        is_faster = steps <= KERNEL_STEPS * self.networks or rows >= KERNEL_ROWS
        if not (kernels_enabled(inputs) and is_known and is_faster and rows * steps > 0):
            return False
        if {inputs.dtype, self.cells.weight_ih_l0.dtype} != {torch.float32} or torch.is_autocast_enabled():
            return False
        from offrec.backbones.gru_on_gpu import fits  # needs triton

        return fits(width, inputs.device)

    def uses_fast_layer(self, device: torch.device) -> bool:
        """Return whether `GRULayer` computes the states."""
        return self.is_fast_on_cpu and device.type == "cpu" and self.cells.num_layers == 1

    def packed_states(self, inputs: Tensor, packing: Packing) -> Tensor:
        """Return the states of packed inputs, [T, d] each, by `GRULayer`."""
        cells = self.cells
        weights = cells.weight_ih_l0, cells.weight_hh_l0, cells.bias_ih_l0, cells.bias_hh_l0
        states: Tensor = GRULayer.apply(inputs, *weights, packing)  # type: ignore[no-untyped-call]
        return states


def write_onnx(graph: "OnnxGraph", module: GRU, inputs: str) -> str:
    """Write `GRU.forward` to an ONNX graph: [B, L, d] → [B, L, d]."""
    cells, states = module.cells, graph.op("Transpose", inputs, perm=[1, 0, 2])
    for layer in range(cells.num_layers):
        from_input, from_state, input_bias, state_bias = (
            _onnx_gates(getattr(cells, f"{name}_l{layer}")) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        bias = torch.cat([input_bias, state_bias])
        constants = [graph.array(tensor[None].numpy()) for tensor in (from_input, from_state, bias)]
        outputs = graph.ops("GRU", [states, *constants], 2, hidden_size=cells.hidden_size, linear_before_reset=1)
        states = graph.op("Squeeze", outputs[0], graph.integers(1))
    return graph.op("Transpose", states, perm=[1, 0, 2])


def _onnx_gates(gates: Tensor) -> Tensor:
    """Reorder gates: torch stores reset, update, new; ONNX expects update, reset, new."""
    reset, update, new = gates.detach().cpu().chunk(3)
    return torch.cat([update, reset, new])


RECORD = BackboneRecord(
    name="gru",
    label="GRU",
    help="Recurrent network with gated units.",
    family="recurrent",
    build=lambda sizes: GRU(sizes.width, sizes.layers, sizes.dropout),
    reads=frozenset({"layers"}),
    onnx=write_onnx,
)
