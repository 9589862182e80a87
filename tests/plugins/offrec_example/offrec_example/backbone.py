"""A backbone that averages the item vectors seen so far."""

import torch
from torch import Tensor, nn

import offrec


class RunningMean(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, L, d] → [N, L, d]; the state at t is the mean of the inputs up to t."""
        count = torch.arange(1, inputs.shape[1] + 1, device=inputs.device)[:, None]
        states: Tensor = self.linear(inputs.cumsum(1) / count)
        return states


offrec.register_backbone(
    offrec.BackboneRecord(
        name="mean",
        label="Running mean",
        build=lambda sizes: RunningMean(sizes.width),
        help="The mean of the item vectors.",
    )
)
