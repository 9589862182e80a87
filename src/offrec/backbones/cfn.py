"""CFN: the "chaos free" recurrent cell of Chen et al. 2019, which the paper uses."""

import torch
from torch import Tensor, nn

from offrec.backbones.record import BackboneRecord


class CFNCell(nn.Module):
    """h′ = σ(U_z h + W_z x + b_z) ⊙ tanh(h) + σ(U_i h + W_i x + b_i) ⊙ tanh(W x)        Chen et al. 2019, Eq. (4)

    With no input the state decays to 0: no strange attractors, hence the name.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(width, 3 * width, bias=False)  # W_z, W_i, W
        self.from_state = nn.Linear(width, 2 * width)  # U_z, U_i and both biases

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, L, d] → [N, L, d], from a state of zeros."""
        of_input = self.from_input(inputs)
        gates_in, new = of_input[..., : -inputs.shape[-1]], of_input[..., -inputs.shape[-1] :].tanh()
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


RECORD = BackboneRecord(
    name="cfn",
    label="CFN",
    help="Recurrent network with the chaos-free cell, as in the paper.",
    family="recurrent",
    build=lambda sizes: CFN(sizes.width, sizes.layers, sizes.dropout),
    reads=frozenset({"layers"}),
)
