"""NextItNet: dilated causal convolutions over a whole session (Yuan et al. 2019)."""

from torch import Tensor, nn
from torch.nn import functional

from offrec.backbones.record import BackboneRecord


class NextItNetBlock(nn.Module):
    """Two dilated causal convolutions, the second reaching twice as far back, around a residual."""

    def __init__(self, width: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.near = CausalConvolution(width, dilation)
        self.far = CausalConvolution(width, 2 * dilation)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.norms[0](self.near(inputs)).relu()
        hidden = self.norms[1](self.far(hidden)).relu()
        hidden = self.dropout(hidden)
        return inputs + hidden


class CausalConvolution(nn.Module):
    def __init__(self, width: int, dilation: int, kernel: int = 3) -> None:
        super().__init__()
        self.reach = (kernel - 1) * dilation
        self.convolution = nn.Conv1d(width, width, kernel, dilation=dilation)

    def forward(self, inputs: Tensor) -> Tensor:
        past = functional.pad(inputs.transpose(1, 2), (self.reach, 0))  # zeros before the start: no look ahead
        found: Tensor = self.convolution(past)
        return found.transpose(1, 2)


class NextItNet(nn.Module):
    """Yuan et al. 2019: each layer is a block with dilations 1, 2 and one with 4, 8."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(NextItNetBlock(width, d, dropout) for _ in range(layers) for d in (1, 4)))

    def forward(self, inputs: Tensor) -> Tensor:
        states: Tensor = self.blocks(inputs)
        return states


RECORD = BackboneRecord(
    name="nextitnet",
    label="NextItNet",
    help="Dilated causal convolutions over the session.",
    family="convolutional",
    build=lambda sizes: NextItNet(sizes.width, sizes.layers, sizes.dropout),
    reads=frozenset({"layers"}),
    presets={"strong": {"training.learning_rate": 0.001}},
)
