"""Caser: convolutions over a fixed window (Tang & Wang 2018)."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from offrec.backbones.record import BackboneRecord

if TYPE_CHECKING:
    from offrec.backbones.onnx_graph import OnnxGraph


class Caser(nn.Module):
    """Treats the window as an image, with horizontal filters (unions of items) and vertical filters (sums of items).

    The last layer has no activation; Tang & Wang choose among identity, sigmoid, tanh and ReLU. They also concatenate a
    user vector with the state. Without that vector, units with ReLU die: an update shifts a unit for all histories at
    once, and a unit that is negative for all histories stays at 0. On 4,000 sessions, with a learning rate of 0.005,
    half of the units were dead after 10 updates and 97 % after 160.
    """

    def __init__(self, width: int, window: int, dropout: float, filters: int = 16, vertical: int = 4) -> None:
        super().__init__()
        self.window = window
        self.horizontal = nn.ModuleList(nn.Conv1d(width, filters, height) for height in range(1, window + 1))
        self.vertical = nn.Conv2d(1, vertical, (window, 1))
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(filters * window + vertical * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map windows [B, window, d], oldest item first, to states [B, d]."""
        columns = inputs.transpose(1, 2)
        unions = [convolution(columns).relu().amax(2) for convolution in self.horizontal]
        sums = self.vertical(inputs[:, None]).flatten(1)
        state: Tensor = self.linear(self.dropout(torch.cat([*unions, sums], 1)))
        return state


def write_onnx(graph: "OnnxGraph", module: Caser, inputs: str) -> str:
    """Write `Caser.forward` to an ONNX graph: [B, window, d] → [B, d]."""
    columns = graph.op("Transpose", inputs, perm=[0, 2, 1])
    features = []
    for layer in module.horizontal:
        assert isinstance(layer, nn.Conv1d)
        assert layer.bias is not None
        union = graph.op("Relu", graph.op("Conv", columns, graph.weight(layer.weight), graph.weight(layer.bias)))
        features.append(graph.op("ReduceMax", union, graph.integers(2), keepdims=0))
    image, vertical = graph.op("Unsqueeze", inputs, graph.integers(1)), module.vertical
    assert vertical.bias is not None
    sums = graph.op("Conv", image, graph.weight(vertical.weight), graph.weight(vertical.bias))
    features.append(graph.op("Flatten", sums, axis=1))
    return graph.linear(graph.concat(*features, axis=1), module.linear)


RECORD = BackboneRecord(
    name="caser",
    label="Caser",
    help="Convolutions over a window of the last items.",
    family="convolutional",
    build=lambda sizes: Caser(sizes.width, min(sizes.window, sizes.history), sizes.dropout),
    reads=frozenset({"window"}),
    causal=False,
    onnx=write_onnx,
)
