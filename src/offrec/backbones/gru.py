"""GRU: the gated recurrent unit."""

from torch import Tensor, nn

from offrec.backbones.record import BackboneRecord


class GRU(nn.Module):
    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.cells = nn.GRU(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)

    def forward(self, inputs: Tensor) -> Tensor:
        states: Tensor = self.cells(inputs)[0]
        return states


RECORD = BackboneRecord(
    name="gru",
    label="GRU",
    help="Recurrent network with gated units.",
    family="recurrent",
    build=lambda sizes: GRU(sizes.width, sizes.layers, sizes.dropout),
    reads=frozenset({"layers"}),
)
