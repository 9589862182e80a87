"""CFN: the "chaos free" recurrent cell of Chen et al. 2019, which the paper uses."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from offrec.backbones.record import BackboneRecord

if TYPE_CHECKING:
    from offrec.backbones.onnx_graph import OnnxGraph


class CFNCell(nn.Module):
    """h′ = σ(U_z h + W_z x + b_z) ⊙ tanh(h) + σ(U_i h + W_i x + b_i) ⊙ tanh(W x)        Chen et al. 2019, Eq. (4)

    Without input, the state decays to 0. The cell is called "chaos free" because it has no strange attractors.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(width, 3 * width, bias=False)  # W_z, W_i, W
        self.from_state = nn.Linear(width, 2 * width)  # U_z, U_i, b_z, b_i

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs [N, L, d] to states [N, L, d]. The initial state is 0."""
        projected = self.from_input(inputs)
        gates_in, new = projected[..., : -inputs.shape[-1]], projected[..., -inputs.shape[-1] :].tanh()
        state = torch.zeros_like(inputs[:, 0])
        states = []
        for step in range(inputs.shape[1]):
            keep, take = (self.from_state(state) + gates_in[:, step]).sigmoid().chunk(2, -1)
            state = keep * state.tanh() + take * new[:, step]
            states.append(state)
        return torch.stack(states, 1)


class CFN(nn.Module):
    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.cells = nn.ModuleList(CFNCell(width) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        for number, cell in enumerate(self.cells):
            inputs = cell(inputs if number == 0 else self.dropout(inputs))
        return inputs


def write_onnx(graph: "OnnxGraph", module: CFN, inputs: str) -> str:
    """Write `CFN.forward` to an ONNX graph: [B, L, d] → [B, L, d]."""
    states = graph.op("Transpose", inputs, perm=[1, 0, 2])
    for layer, cell in enumerate(module.cells):
        assert isinstance(cell, CFNCell)
        states = _write_onnx_cell(graph, cell, states, f"cell_{len(graph.nodes)}_{layer}_")
    return graph.op("Transpose", states, perm=[1, 0, 2])


def _write_onnx_cell(graph: "OnnxGraph", cell: CFNCell, inputs: str, prefix: str) -> str:
    """Write one cell, [L, B, d] → [L, B, d]: project the inputs of all steps at once, then loop over the steps."""
    width = cell.from_input.in_features
    sizes = graph.integers(2 * width, width)
    gates, new = graph.ops("Split", [graph.linear(inputs, cell.from_input), sizes], 2, axis=2)
    body = graph.begin_loop(prefix)
    before, step_gates, step_new = (f"{prefix}{name}" for name in ("before", "gates", "new"))
    open_gates = body.op("Sigmoid", body.op("Add", body.linear(before, cell.from_state), step_gates))
    keep, take = body.ops("Split", [open_gates, body.integers(width, width)], 2, axis=1)
    old = body.op("Mul", keep, body.op("Tanh", before))
    body.name_output(body.op("Add", old, body.op("Mul", take, step_new)), f"{prefix}after")
    body.name_output(f"{prefix}after", f"{prefix}state")
    loop = body.loop_body(
        {before: width, step_gates: 2 * width, step_new: width}, {f"{prefix}after": width, f"{prefix}state": width}
    )
    start = graph.op("Expand", graph.real(0.0), graph.concat(graph.length(inputs, 1), graph.integers(width)))
    return graph.ops("Scan", [start, gates, graph.op("Tanh", new)], 2, body=loop, num_scan_inputs=2)[1]


RECORD = BackboneRecord(
    name="cfn",
    label="CFN",
    help="Recurrent network with the chaos-free cell, as in the paper.",
    family="recurrent",
    build=lambda sizes: CFN(sizes.width, sizes.layers, sizes.dropout),
    reads=frozenset({"layers"}),
    onnx=write_onnx,
)
