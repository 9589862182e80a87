"""NextItNet: dilated causal convolutions over a whole session (Yuan et al. 2019)."""

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional

from offrec.backbones.record import BackboneRecord

if TYPE_CHECKING:
    from offrec.backbones.onnx_graph import OnnxGraph


class NextItNetBlock(nn.Module):
    """Two dilated causal convolutions with a residual connection; the second reaches back twice as far."""

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
        past = functional.pad(
            inputs.transpose(1, 2), (self.reach, 0)
        )  # pad only the past, so that no output depends on later inputs
        states: Tensor = self.convolution(past)
        return states.transpose(1, 2)


class NextItNet(nn.Module):
    """Stacks two blocks per layer, with dilations (1, 2) and (4, 8)."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(NextItNetBlock(width, d, dropout) for _ in range(layers) for d in (1, 4)))

    def forward(self, inputs: Tensor) -> Tensor:
        states: Tensor = self.blocks(inputs)
        return states


def write_onnx(graph: "OnnxGraph", module: NextItNet, inputs: str) -> str:
    """Write `NextItNet.forward` to an ONNX graph: [B, L, d] → [B, L, d]."""
    states = inputs
    for block in module.blocks:
        assert isinstance(block, NextItNetBlock)
        hidden = states
        for convolution, norm in zip((block.near, block.far), block.norms, strict=True):
            assert isinstance(norm, nn.LayerNorm)
            hidden = graph.op("Relu", graph.layer_norm(_write_onnx_convolution(graph, convolution, hidden), norm))
        states = graph.op("Add", states, hidden)
    return states


def _write_onnx_convolution(graph: "OnnxGraph", layer: CausalConvolution, inputs: str) -> str:
    convolution = layer.convolution
    assert convolution.bias is not None
    constants = graph.weight(convolution.weight), graph.weight(convolution.bias)
    channels = graph.op("Transpose", inputs, perm=[0, 2, 1])
    outputs = graph.op("Conv", channels, *constants, dilations=list(convolution.dilation), pads=[layer.reach, 0])
    return graph.op("Transpose", outputs, perm=[0, 2, 1])


RECORD = BackboneRecord(
    name="nextitnet",
    label="NextItNet",
    help="Dilated causal convolutions over the session.",
    family="convolutional",
    build=lambda sizes: NextItNet(sizes.width, sizes.layers, sizes.dropout),
    reads=frozenset({"layers"}),
    presets={"strong": {"training.learning_rate": 0.001}},
    onnx=write_onnx,
)
