"""History → state, as ONNX: the same as `offrec.backbones`, one function a backbone, in evaluation mode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offrec.backbones.caser import Caser
from offrec.backbones.cfn import CFN, CFNCell
from offrec.backbones.gru import GRU
from offrec.backbones.nextitnet import CausalConvolution, NextItNet, NextItNetBlock
from offrec.backbones.sasrec import SASRec, SASRecBlock
from offrec.serving.onnx_graph import Graph


@dataclass(frozen=True)
class Histories:
    """Names of what a network reads. T: the longest history of the batch, cut to what a state may know."""

    tokens: str  # [B, T + 1] the start, then items, oldest first; n_items is padding, at the right
    recent: str  # [B, T] the same items, most recent first; n_items is padding
    count: str  # [B, 1] how many items each has


def state(graph: Graph, backbone: nn.Module, items: str, histories: Histories, n_items: int) -> str:
    """[B, d]; `items`: the name of the table of item vectors going in."""
    if isinstance(backbone, Caser):
        return _caser(graph, backbone, graph.op("Gather", items, _window(graph, histories, backbone.window, n_items)))
    return BACKBONES[type(backbone)](graph, backbone, graph.op("Gather", items, histories.tokens), histories.count)


def _window(graph: Graph, histories: Histories, size: int, n_items: int) -> str:
    """[B, size] the last items, oldest first, padded at the left."""
    rows = graph.length(histories.recent, 0)
    room = graph.op("Expand", graph.whole(n_items), graph.join(rows, graph.whole(size)))
    return graph.op("Gather", graph.join(histories.recent, room, axis=1), graph.whole(*reversed(range(size))), axis=1)


def _at(graph: Graph, states: str, count: str, axis: int) -> str:
    """[B, d]: of states [B, T + 1, d], or [T + 1, B, d] where `axis` is 0, each row's own last one."""
    if axis == 0:
        states = graph.op("Transpose", states, perm=[1, 0, 2])
    return graph.op("GatherND", states, count, batch_dims=1)


def _gru(graph: Graph, backbone: GRU, inputs: str, count: str) -> str:
    cells = backbone.cells
    value = graph.op("Transpose", inputs, perm=[1, 0, 2])
    lengths = graph.cast(graph.op("Squeeze", graph.op("Add", count, graph.whole(1)), graph.whole(1)), np.int32)
    last = ""
    for layer in range(cells.num_layers):
        weights = [_gates(graph, getattr(cells, f"{kind}_l{layer}")) for kind in ("weight_ih", "weight_hh")]
        biases = [getattr(cells, f"{kind}_l{layer}") for kind in ("bias_ih", "bias_hh")]
        bias = graph.array(np.concatenate([_reordered(one) for one in biases])[None])
        every, last = graph.ops(
            "GRU", [value, *weights, bias, lengths], 2, hidden_size=cells.hidden_size, linear_before_reset=1
        )
        value = graph.op("Squeeze", every, graph.whole(1))
    return graph.op("Squeeze", last, graph.whole(0))


def _gates(graph: Graph, weight: Tensor) -> str:
    return graph.array(_reordered(weight)[None])


def _reordered(gates: Tensor) -> Any:
    """torch has reset, update, new; ONNX update, reset, new."""
    reset, update, new = gates.detach().cpu().chunk(3)
    return torch.cat([update, reset, new]).numpy()


def _cfn(graph: Graph, backbone: CFN, inputs: str, count: str) -> str:
    value = graph.op("Transpose", inputs, perm=[1, 0, 2])
    for number, cell in enumerate(backbone.cells):
        assert isinstance(cell, CFNCell)
        value = _cfn_layer(graph, cell, value, f"cell_{len(graph.nodes)}_{number}_")
    return _at(graph, value, count, axis=0)


def _cfn_layer(graph: Graph, cell: CFNCell, inputs: str, prefix: str) -> str:
    """[T, B, d] → [T, B, d]: what the input brings for all steps at once, then a loop over the steps."""
    width = cell.from_input.in_features
    gates, new = graph.ops("Split", [graph.linear(inputs, cell.from_input), graph.whole(2 * width, width)], 2, axis=2)
    body = Graph(prefix, graph)
    before, step_gates, step_new = (f"{prefix}{name}" for name in ("before", "gates", "new"))
    both = body.op("Sigmoid", body.op("Add", body.linear(before, cell.from_state), step_gates))
    keep, take = body.ops("Split", [both, body.whole(width, width)], 2, axis=1)
    kept = body.op("Mul", keep, body.op("Tanh", before))
    body.name(body.op("Add", kept, body.op("Mul", take, step_new)), f"{prefix}after")
    body.name(f"{prefix}after", f"{prefix}state")
    wide = {before: width, step_gates: 2 * width, step_new: width}
    inner = body.body(
        {name: (np.float32, ["batch", size]) for name, size in wide.items()},
        {f"{prefix}{name}": (np.float32, ["batch", width]) for name in ("after", "state")},
    )
    start = graph.op("Expand", graph.real(0.0), graph.join(graph.length(inputs, 1), graph.whole(width)))
    return graph.ops("Scan", [start, gates, graph.op("Tanh", new)], 2, body=inner, num_scan_inputs=2)[1]


def _caser(graph: Graph, backbone: Caser, inputs: str) -> str:
    columns = graph.op("Transpose", inputs, perm=[0, 2, 1])
    found = []
    for one in backbone.horizontal:
        assert isinstance(one, nn.Conv1d)
        assert one.bias is not None
        union = graph.op("Relu", graph.op("Conv", columns, graph.weight(one.weight), graph.weight(one.bias)))
        found.append(graph.op("ReduceMax", union, graph.whole(2), keepdims=0))
    image, filters = graph.op("Unsqueeze", inputs, graph.whole(1)), backbone.vertical
    assert filters.bias is not None
    sums = graph.op("Conv", image, graph.weight(filters.weight), graph.weight(filters.bias))
    found.append(graph.op("Flatten", sums, axis=1))
    return graph.linear(graph.join(*found, axis=1), backbone.linear)


def _nextitnet(graph: Graph, backbone: NextItNet, inputs: str, count: str) -> str:
    value = inputs
    for block in backbone.blocks:
        assert isinstance(block, NextItNetBlock)
        hidden = value
        for convolution, norm in zip((block.near, block.far), block.norms, strict=True):
            assert isinstance(norm, nn.LayerNorm)
            hidden = graph.op("Relu", graph.norm(_convolved(graph, convolution, hidden), norm))
        value = graph.op("Add", value, hidden)
    return _at(graph, value, count, axis=1)


def _convolved(graph: Graph, layer: CausalConvolution, inputs: str) -> str:
    one = layer.convolution
    assert one.bias is not None
    channels = graph.op("Transpose", inputs, perm=[0, 2, 1])
    found = graph.op(
        "Conv",
        channels,
        graph.weight(one.weight),
        graph.weight(one.bias),
        dilations=list(one.dilation),
        pads=[layer.reach, 0],
    )
    return graph.op("Transpose", found, perm=[0, 2, 1])


def _sasrec(graph: Graph, backbone: SASRec, inputs: str, count: str) -> str:
    length = graph.length(inputs, 1)
    value = graph.op("Add", inputs, graph.slice(graph.weight(backbone.positions), length, 0))
    barred = graph.op("Expand", graph.real(-1e30), graph.join(length, length))
    barred = graph.op("Trilu", barred, graph.array(np.array(1, dtype=np.int64)), upper=1)  # above the diagonal
    for block in backbone.blocks:
        assert isinstance(block, SASRecBlock)
        value = graph.op("Add", value, _attention(graph, block, value, barred))
        wider, narrower = block.feed_forward[0], block.feed_forward[2]
        assert isinstance(wider, nn.Linear)
        assert isinstance(narrower, nn.Linear)
        hidden = graph.op("Gelu", graph.linear(graph.norm(value, block.norm_feed_forward), wider))
        value = graph.op("Add", value, graph.linear(hidden, narrower))
    return graph.norm(_at(graph, value, count, axis=1), backbone.norm)


def _attention(graph: Graph, block: SASRecBlock, inputs: str, barred: str) -> str:
    width, heads = block.out.in_features, block.heads
    split = graph.whole(0, 0, 3, heads, width // heads)  # 0: as it is
    projected = graph.op(
        "Reshape", graph.linear(graph.norm(inputs, block.norm_attention), block.query_key_value), split
    )
    each = graph.ops("Split", [graph.op("Transpose", projected, perm=[2, 0, 3, 1, 4])], 3, axis=0, num_outputs=3)
    query, key, value = (graph.op("Squeeze", one, graph.whole(0)) for one in each)  # [B, heads, T, width / heads]
    scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = graph.op("Add", graph.op("Mul", scores, graph.real((width // heads) ** -0.5)), barred)
    mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), value)
    mixed = graph.op("Reshape", graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), graph.whole(0, 0, width))
    return graph.linear(mixed, block.out)


BACKBONES: dict[type[nn.Module], Callable[..., str]] = {
    GRU: _gru,
    CFN: _cfn,
    Caser: _caser,
    NextItNet: _nextitnet,
    SASRec: _sasrec,
}
