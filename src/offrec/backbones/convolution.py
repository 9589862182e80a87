"""CNN backbones: Caser over a fixed window, NextItNet causal over a whole session."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Caser(nn.Module):
    """Tang & Wang 2018: filters over the window as over an image, horizontal (unions of items) and vertical (sums of
    them).

    The activation of the last layer, which they choose among identity, sigmoid, tanh and ReLU, is the identity. They
    set a user's vector beside the state; here the state is all there is, and with ReLU it dies: an update moves a unit
    for all histories alike, soon by more than they differ in it, and one that is below 0 for all of them stays there.
    On 4,000 sessions half of the units were dead after 10 updates at a rate of .005, and 97 % after 160.
    """

    causal = False

    def __init__(self, width: int, window: int, dropout: float, filters: int = 16, vertical: int = 4) -> None:
        super().__init__()
        self.window = window
        self.horizontal = nn.ModuleList(nn.Conv1d(width, filters, height) for height in range(1, window + 1))
        self.vertical = nn.Conv2d(1, vertical, (window, 1))
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(filters * window + vertical * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, window, d], oldest first → [B, d]."""
        columns = inputs.transpose(1, 2)
        unions = [convolution(columns).relu().amax(2) for convolution in self.horizontal]
        sums = self.vertical(inputs[:, None]).flatten(1)
        state: Tensor = self.linear(self.dropout(torch.cat([*unions, sums], 1)))
        return state


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

    causal = True

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(NextItNetBlock(width, d, dropout) for _ in range(layers) for d in (1, 4)))

    def forward(self, inputs: Tensor) -> Tensor:
        states: Tensor = self.blocks(inputs)
        return states
