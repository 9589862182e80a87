"""Write an agent as an ONNX model: histories in, the k best items and their scores out.

Unlike the rest of offrec, the model computes the scores of the whole catalogue, [rows × items], because ONNX has no
operator that streams them.
"""

import math
from dataclasses import dataclass

import numpy as np
import onnx

from offrec.backbones import BACKBONES
from offrec.backbones.onnx_graph import OnnxGraph, Values
from offrec.catalogue.head import MASKED
from offrec.models.agent import Agent
from offrec.models.critic import ROUNDING
from offrec.models.neighbours import STEPS, TINY, NeighbourTerm
from offrec.models.network import Network, RepeatTerm

INPUTS: Values = {"history": (np.int64, ["batch", "length"]), "k": (np.int64, [])}
OUTPUTS: Values = {"items": (np.int64, ["batch", "k"]), "scores": (np.float32, ["batch", "k"])}


@dataclass(frozen=True)
class Histories:
    """Names of the inputs of a network. T is the longest history of the batch, cut to the length that a state reads.

    Attributes:
        tokens: [B, T + 1] the start token, then the items, oldest first; padded at the right with n_items.
        recent: [B, T] the same items, most recent first; padded with n_items.
        count: [B, 1] the number of items of each history.
    """

    tokens: str
    recent: str
    count: str


def build_model(agent: Agent, metadata: dict[str, str]) -> tuple[onnx.ModelProto, int]:
    """Write an agent as an ONNX model.

    Args:
        agent: The agent.
        metadata: Texts to store in the model.

    Returns:
        The model, and the size of its weights in bytes.
    """
    graph = OnnxGraph()
    scores = _write_ranking(graph, agent, _write_histories(graph, agent.n_items, agent.options.history))
    k = graph.op("Min", "k", graph.integer(agent.n_items))
    best = graph.ops("TopK", [scores, graph.op("Reshape", k, graph.integers(1))], 2, axis=1)
    graph.name_output(best[0], "scores")
    graph.name_output(best[1], "items")
    return graph.model(INPUTS, OUTPUTS, metadata), graph.weight_bytes


def _write_histories(graph: OnnxGraph, n_items: int, history: int) -> Histories:
    """Drop numbers outside the catalogue at any position, and keep the last `history` items."""
    zero, one = graph.integers(0), graph.integers(1)
    is_item = graph.op(
        "And", graph.op("GreaterOrEqual", "history", zero), graph.op("Less", "history", graph.integers(n_items))
    )
    number = graph.op("CumSum", graph.cast(is_item, np.int64), graph.integer(1))
    n_known = graph.op("ReduceSum", graph.cast(is_item, np.int64), one, keepdims=1)  # [B, 1]
    count = graph.op("Min", n_known, graph.integers(history))
    position = graph.op("Sub", graph.op("Sub", number, one), graph.op("Sub", n_known, count))
    is_used = graph.op("And", is_item, graph.op("GreaterOrEqual", position, zero))
    longest = graph.op("Max", graph.op("Reshape", graph.op("ReduceMax", count, keepdims=1), one), one)
    shape = graph.concat(graph.length("history", 0), graph.op("Add", longest, one))
    padding = graph.op("Expand", graph.integers(n_items), shape)
    items = graph.op("Where", is_used, "history", graph.integers(n_items))

    def scatter(positions: str) -> str:
        """[B, T] the items at their positions. Unused entries are written to an extra column, which is then dropped."""
        column = graph.op("Where", is_used, positions, longest)
        return graph.slice(graph.op("ScatterElements", padding, column, items, axis=1), longest, 1)

    oldest_first = scatter(position)
    most_recent_first = scatter(graph.op("Sub", graph.op("Sub", count, one), position))
    start = graph.op("Expand", graph.integers(n_items), graph.concat(graph.length("history", 0), one))
    return Histories(graph.concat(start, oldest_first, axis=1), most_recent_first, count)


def _write_ranking(graph: OnnxGraph, agent: Agent, histories: Histories) -> str:
    """[B, A] the scores by which `Agent.forward` ranks."""
    needs = agent.needs
    if needs.ranks == "actor":
        assert agent.actor is not None
        scores = _write_scores(graph, agent.actor, histories, agent.neighbours)
    else:
        assert agent.critic is not None
        scores = _write_scores(graph, agent.critic, histories)
        if needs.temperature is not None:
            scores = graph.op("Mul", scores, graph.real(1.0 / needs.temperature))
    with_prior = needs.ranks == "critic" and needs.with_prior
    if agent.prior is None or not (with_prior or needs.min_probability > 0):
        return scores
    prior = _write_scores(graph, agent.prior, histories)
    if with_prior:
        scores = graph.op("Add", prior, scores)
    return _write_support(graph, scores, prior, needs.min_probability) if needs.min_probability > 0 else scores


def _write_support(graph: OnnxGraph, scores: str, prior: str, delta: float) -> str:
    """Mask items with π̂_b < δ, but never the most likely item."""
    log_sum = graph.op("ReduceLogSumExp", prior, graph.integers(1), keepdims=1)
    largest = graph.op("ReduceMax", prior, graph.integers(1), keepdims=1)
    bound = graph.op("Min", graph.op("Add", log_sum, graph.real(math.log(delta))), largest)
    bound = graph.op("Sub", bound, graph.real(ROUNDING))
    return graph.op("Where", graph.op("Less", prior, bound), graph.real(MASKED), scores)


def _write_states(graph: OnnxGraph, network: Network, histories: Histories) -> str:
    """[B, d] the state after each history."""
    record = BACKBONES[network.options.backbone]
    assert record.onnx is not None  # ensured by the export
    table = graph.weight(network.items_in)
    if record.causal:
        states = record.onnx(graph, network.backbone, graph.op("Gather", table, histories.tokens))
        return graph.op("GatherND", states, histories.count, batch_dims=1)
    size: int = network.backbone.window  # type: ignore[assignment]
    rows = graph.length(histories.recent, 0)
    padding = graph.op("Expand", graph.integers(network.n_items), graph.concat(rows, graph.integers(size)))
    oldest_first = graph.integers(*reversed(range(size)))
    window = graph.op("Gather", graph.concat(histories.recent, padding, axis=1), oldest_first, axis=1)
    return record.onnx(graph, network.backbone, graph.op("Gather", table, window))


def _write_scores(
    graph: OnnxGraph, network: Network, histories: Histories, neighbours: NeighbourTerm | None = None
) -> str:
    """[B, A] scores. An extra column receives corrections of padding; in a tied table it is the start token's row."""
    n_items, rows = network.n_items, network.n_items + 1
    table = graph.weight(network.items_in) if network.items_out is None else graph.weight(network.items_out, rows)
    states = _write_states(graph, network, histories)
    scaled = states
    if network.scale is not None:
        scaled = graph.op("Mul", states, graph.weight(network.scale.gain))
    scores = graph.op("Gemm", scaled, table, graph.weight(network.bias, rows), transB=1)
    if network.scale is not None:
        # state · (table + level) in two products, so that the table is not copied
        level = graph.array((network.scale.level[:, None] / network.scale.initial_gain).detach().cpu().numpy())
        scores = graph.op("Add", scores, graph.op("MatMul", scaled, level))
    if network.repeat is not None:
        bonus = _write_repeat_bonus(graph, network.repeat, states, histories.recent, n_items)
        if network.options.repeat == "instead":
            zeros = graph.op("Mul", bonus, graph.real(0.0))
            scores = graph.op("ScatterElements", scores, histories.recent, zeros, axis=1)
        scores = graph.op("ScatterElements", scores, histories.recent, bonus, axis=1, reduction="add")
    if neighbours is not None:
        scores = _write_neighbours(graph, neighbours, states, histories.recent, scores)
    return graph.slice(scores, n_items, 1)


def _write_neighbours(graph: OnnxGraph, term: NeighbourTerm, states: str, recent: str, scores: str) -> str:
    """[B, A + 1] the scores with the mass of neighbours added, as in `NeighbourTerm.mix`."""
    recent = graph.slice(recent, STEPS, 1)
    steps, one = graph.length(recent, 1), graph.integers(1)
    totals = graph.op("Gather", graph.weight(term.totals), recent)
    weights = graph.op("MatMul", states, graph.weight(term.by_state, transposed=True))
    weights = graph.slice(graph.op("Add", weights, graph.weight(term.by_recency)), steps, 1)
    log_total = graph.op("Log", graph.op("Add", totals, graph.real(1.0)))
    weights = graph.op("Add", weights, graph.op("Mul", log_total, graph.weight(term.by_total)))
    weights = graph.op("Mul", weights, graph.real(-term.scale))
    weights = graph.op("Neg", graph.op("Softplus", weights))  # log σ
    weights = graph.op("Where", graph.op("Greater", totals, graph.real(0.0)), weights, graph.real(MASKED))
    catalogue = graph.slice(scores, term.n_items, 1)
    weights = graph.op("Add", weights, graph.op("ReduceLogSumExp", catalogue, one, keepdims=1))
    largest = graph.op("ReduceMax", weights, one, keepdims=1)
    mass = graph.op("Unsqueeze", graph.op("Exp", graph.op("Sub", weights, largest)), graph.integers(2))
    mass = graph.op("Mul", mass, graph.op("Gather", graph.weight(term.shares), recent))
    flat = graph.integers(0, -1)
    items = graph.op("Gather", graph.weight(term.items), recent)
    items = graph.cast(graph.op("Reshape", items, flat), np.int64)
    zeros = graph.op("Mul", scores, graph.real(0.0))
    mass = graph.op("ScatterElements", zeros, items, graph.op("Reshape", mass, flat), axis=1, reduction="add")
    log_mass = graph.op("Add", graph.op("Log", graph.op("Max", mass, graph.real(TINY))), largest)
    top = graph.op("Max", scores, log_mass)
    parts = [graph.op("Exp", graph.op("Sub", part, top)) for part in (scores, log_mass)]
    return graph.op("Add", top, graph.op("Log", graph.op("Add", *parts)))


def _write_repeat_bonus(graph: OnnxGraph, term: RepeatTerm, states: str, recent: str, n_items: int) -> str:
    """[B, T] the bonus at an item's most recent position; 0 at its earlier positions and at padding."""
    length = graph.length(recent, 1)
    same = graph.op(
        "Equal", graph.op("Unsqueeze", recent, graph.integers(2)), graph.op("Unsqueeze", recent, graph.integers(1))
    )
    is_same = graph.cast(same, np.float32)  # [B, T, T]
    later = graph.op("Trilu", is_same, graph.integer(-1), upper=0)
    is_latest = graph.op("Less", graph.op("ReduceSum", later, graph.integers(2), keepdims=0), graph.real(0.5))
    is_latest = graph.op("And", is_latest, graph.op("Less", recent, graph.integers(n_items)))
    log_count = graph.op("Log", graph.op("ReduceSum", is_same, graph.integers(2), keepdims=0))
    bonus = graph.op("Mul", log_count, graph.weight(term.by_count))
    bonus = graph.op("Add", bonus, graph.slice(graph.weight(term.by_recency), length, 0))
    if term.by_state is not None:
        bonus = graph.op("Add", bonus, graph.slice(graph.linear(states, term.by_state), length, 1))
    return graph.op("Mul", bonus, graph.op("Mul", graph.cast(is_latest, np.float32), graph.real(term.scale)))
