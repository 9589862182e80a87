"""SASRec: causal self-attention over the session (Kang & McAuley 2018)."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from offrec.backbones.record import BackboneRecord, Sizes
from offrec.catalogue.shard import random_rows

if TYPE_CHECKING:
    from offrec.backbones.onnx_graph import OnnxGraph


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
        self.positions = nn.Parameter(random_rows(length, width, None, 0.02))
        self.blocks = nn.Sequential(*(SASRecBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs: Tensor) -> Tensor:
        # After a full history, the next state has one position more than any trained or served state. It reuses the
        # vector of the last position.
        position = torch.arange(inputs.shape[1], device=inputs.device).clamp(max=len(self.positions) - 1)
        states: Tensor = self.norm(self.blocks(inputs + self.positions[position]))
        return states


def write_onnx(graph: "OnnxGraph", module: SASRec, inputs: str) -> str:
    """Write `SASRec.forward` to an ONNX graph: [B, L, d] → [B, L, d]."""
    length = graph.length(inputs, 1)
    states = graph.op("Add", inputs, graph.slice(graph.weight(module.positions), length, 0))
    mask = graph.op("Expand", graph.real(-1e30), graph.concat(length, length))
    mask = graph.op("Trilu", mask, graph.integer(1), upper=1)  # above the diagonal: later items
    for block in module.blocks:
        assert isinstance(block, SASRecBlock)
        states = graph.op("Add", states, _write_onnx_attention(graph, block, states, mask))
        widen, narrow = block.feed_forward[0], block.feed_forward[2]
        assert isinstance(widen, nn.Linear)
        assert isinstance(narrow, nn.Linear)
        hidden = graph.op("Gelu", graph.linear(graph.layer_norm(states, block.norm_feed_forward), widen))
        states = graph.op("Add", states, graph.linear(hidden, narrow))
    return graph.layer_norm(states, module.norm)


def _write_onnx_attention(graph: "OnnxGraph", block: SASRecBlock, inputs: str, mask: str) -> str:
    width, heads = block.out.in_features, block.heads
    projected = graph.linear(graph.layer_norm(inputs, block.norm_attention), block.query_key_value)
    shape = graph.integers(0, 0, 3, heads, width // heads)  # 0 copies the length of the input
    parts = graph.op("Transpose", graph.op("Reshape", projected, shape), perm=[2, 0, 3, 1, 4])
    split = graph.ops("Split", [parts], 3, axis=0, num_outputs=3)
    query, key, value = (graph.op("Squeeze", part, graph.integers(0)) for part in split)  # [B, heads, L, width / heads]
    scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = graph.op("Add", graph.op("Mul", scores, graph.real((width // heads) ** -0.5)), mask)
    mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), value)
    mixed = graph.op("Reshape", graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), graph.integers(0, 0, width))
    return graph.linear(mixed, block.out)


def _check(sizes: Sizes) -> str | None:
    if sizes.width % sizes.heads:
        return f"width must be a multiple of network.heads, {sizes.heads}; got {sizes.width}."
    return None


RECORD = BackboneRecord(
    name="sasrec",
    label="SASRec",
    help="Transformer: causal self-attention over the session.",
    family="attention",
    # One position more than items, for the start token.
    build=lambda sizes: SASRec(sizes.width, sizes.layers, sizes.dropout, sizes.heads, sizes.history + 1),
    reads=frozenset({"layers", "heads"}),
    presets={"strong": {"network.layers": 2, "training.learning_rate": 0.001}},
    check=_check,
    onnx=write_onnx,
)
