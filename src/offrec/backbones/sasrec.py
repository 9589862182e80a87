"""SASRec: causal self-attention over the session (Kang & McAuley 2018)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from offrec.backbones.record import BackboneRecord, Sizes


class SASRecBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_feed_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        n, length, width = inputs.shape
        projected = self.query_key_value(self.norm_attention(inputs)).view(
            n, length, 3, self.heads, width // self.heads
        )
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        rate = self.dropout.p if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        inputs = inputs + self.dropout(self.out(mixed.transpose(1, 2).reshape(n, length, width)))
        hidden: Tensor = self.dropout(self.feed_forward(self.norm_feed_forward(inputs)))
        return inputs + hidden


class SASRec(nn.Module):
    def __init__(self, width: int, layers: int, dropout: float, heads: int, length: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(SASRecBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs: Tensor) -> Tensor:
        # The state after a full history's next item is one place longer than any that is learned from or served: it
        # shares the last place.
        place = torch.arange(inputs.shape[1], device=inputs.device).clamp(max=len(self.positions) - 1)
        states: Tensor = self.norm(self.blocks(inputs + self.positions[place]))
        return states


def _check(sizes: Sizes) -> str | None:
    if sizes.width % sizes.heads:
        return f"width must be a multiple of network.heads, {sizes.heads}; got {sizes.width}."
    return None


RECORD = BackboneRecord(
    name="sasrec",
    label="SASRec",
    help="Transformer: causal self-attention over the session.",
    family="attention",
    # One more position than items, for the start.
    build=lambda sizes: SASRec(sizes.width, sizes.layers, sizes.dropout, sizes.heads, sizes.history + 1),
    reads=frozenset({"layers", "heads"}),
    presets={"strong": {"network.layers": 2, "training.learning_rate": 0.001}},
    check=_check,
)
