"""An agent as ONNX: histories in, the best k items and their scores out.

Unlike everywhere else in offrec, the scores of the whole catalogue are written out, [rows × items]: ONNX has no
operator that would stream them.
"""

import math
from typing import Any

import numpy as np
import onnx

from offrec.catalogue.head import MASKED
from offrec.models.agent import Agent
from offrec.models.critic import ROUNDING
from offrec.models.network import Network, RepeatTerm
from offrec.serving.onnx_backbones import Histories, state
from offrec.serving.onnx_graph import Graph

INPUTS: dict[str, Any] = {"history": (np.int64, ["batch", "length"]), "k": (np.int64, [])}
OUTPUTS: dict[str, Any] = {"items": (np.int64, ["batch", "k"]), "scores": (np.float32, ["batch", "k"])}


def build(agent: Agent, facts: dict[str, str]) -> tuple[onnx.ModelProto, int]:
    """The model, and how many bytes its weights take."""
    graph = Graph()
    scores = _ranked_by(graph, agent, _histories(graph, agent.n_items, agent.options.history))
    wanted = graph.op("Min", "k", graph.array(np.array(agent.n_items, dtype=np.int64)))
    best = graph.ops("TopK", [scores, graph.op("Reshape", wanted, graph.whole(1))], 2, axis=1)
    graph.name(best[0], "scores")
    graph.name(best[1], "items")
    return graph.model(INPUTS, OUTPUTS, facts), graph.bytes


def _histories(graph: Graph, n_items: int, history: int) -> Histories:
    """Items outside the catalogue are skipped wherever they stand, so they are padding; the last `history` are kept."""
    zero, one = graph.whole(0), graph.whole(1)
    inside = graph.op(
        "And", graph.op("GreaterOrEqual", "history", zero), graph.op("Less", "history", graph.whole(n_items))
    )
    number = graph.op("CumSum", graph.cast(inside, np.int64), graph.array(np.array(1, dtype=np.int64)))
    known = graph.op("ReduceSum", graph.cast(inside, np.int64), one, keepdims=1)  # [B, 1]
    count = graph.op("Min", known, graph.whole(history))
    place = graph.op("Sub", graph.op("Sub", number, one), graph.op("Sub", known, count))
    kept = graph.op("And", inside, graph.op("GreaterOrEqual", place, zero))
    longest = graph.op("Max", graph.op("Reshape", graph.op("ReduceMax", count, keepdims=1), one), one)
    room = graph.op(
        "Expand",
        graph.whole(n_items),
        graph.join(graph.length("history", 0), graph.op("Add", longest, one)),
    )
    items = graph.op("Where", kept, "history", graph.whole(n_items))

    def placed(places: str) -> str:
        """[B, T]; what is not kept falls into one column more, which is cut off."""
        column = graph.op("Where", kept, places, longest)
        return graph.slice(graph.op("ScatterElements", room, column, items, axis=1), longest, 1)

    oldest_first = placed(place)
    most_recent_first = placed(graph.op("Sub", graph.op("Sub", count, one), place))
    start = graph.op("Expand", graph.whole(n_items), graph.join(graph.length("history", 0), one))
    return Histories(graph.join(start, oldest_first, axis=1), most_recent_first, count)


def _ranked_by(graph: Graph, agent: Agent, histories: Histories) -> str:
    """[B, A] what `Agent.forward` ranks by, written out."""
    needs = agent.needs
    if needs.ranks == "actor":
        assert agent.actor is not None
        scores = _scores(graph, agent.actor, histories)
    else:
        assert agent.critic is not None
        scores = _scores(graph, agent.critic, histories)
        if needs.temperature is not None:
            scores = graph.op("Mul", scores, graph.real(1.0 / needs.temperature))
    with_prior = needs.ranks == "critic" and needs.with_prior
    if agent.prior is None or not (with_prior or needs.within > 0):
        return scores
    prior = _scores(graph, agent.prior, histories)
    if with_prior:
        scores = graph.op("Add", prior, scores)
    return _within(graph, scores, prior, needs.within) if needs.within > 0 else scores


def _within(graph: Graph, scores: str, prior: str, delta: float) -> str:
    """Only items with π̂_b ≥ δ and, where there is none, the likeliest."""
    normaliser = graph.op("ReduceLogSumExp", prior, graph.whole(1), keepdims=1)
    likeliest = graph.op("ReduceMax", prior, graph.whole(1), keepdims=1)
    bound = graph.op("Min", graph.op("Add", normaliser, graph.real(math.log(delta))), likeliest)
    bound = graph.op("Sub", bound, graph.real(ROUNDING))
    return graph.op("Where", graph.op("Less", prior, bound), graph.real(MASKED), scores)


def _scores(graph: Graph, network: Network, histories: Histories) -> str:
    """[B, A]. One column more takes the corrections of padding, and is the start's row where the table is tied."""
    n_items, rows = network.n_items, network.n_items + 1
    table = graph.weight(network.items_in) if network.items_out is None else graph.weight(network.items_out, rows)
    states = state(graph, network.backbone, graph.weight(network.items_in), histories, n_items)
    scaled = states
    if network.scale is not None:
        scaled = graph.op("Mul", states, graph.weight(network.scale.gain))
    scores = graph.op("Gemm", scaled, table, graph.weight(network.bias, rows), transB=1)
    if network.scale is not None:
        # state · (table + level) in two parts: the table need not be copied
        level = graph.array((network.scale.level[:, None] / network.scale.small).detach().cpu().numpy())
        scores = graph.op("Add", scores, graph.op("MatMul", scaled, level))
    if network.repeat is not None:
        values = _repeats(graph, network.repeat, states, histories.recent, n_items)
        if network.options.repeat == "instead":
            scores = graph.op(
                "ScatterElements", scores, histories.recent, graph.op("Mul", values, graph.real(0.0)), axis=1
            )
        scores = graph.op("ScatterElements", scores, histories.recent, values, axis=1, reduction="add")
    return graph.slice(scores, n_items, 1)


def _repeats(graph: Graph, term: RepeatTerm, states: str, recent: str, n_items: int) -> str:
    """[B, T]: the score at an item's most recent place, 0 at its earlier ones and at padding."""
    places = graph.length(recent, 1)
    same = graph.op(
        "Equal", graph.op("Unsqueeze", recent, graph.whole(2)), graph.op("Unsqueeze", recent, graph.whole(1))
    )
    each = graph.cast(same, np.float32)  # [B, T, T]
    later = graph.op("Trilu", each, graph.array(np.array(-1, dtype=np.int64)), upper=0)
    latest = graph.op("Less", graph.op("ReduceSum", later, graph.whole(2), keepdims=0), graph.real(0.5))
    latest = graph.op("And", latest, graph.op("Less", recent, graph.whole(n_items)))
    often = graph.op("Log", graph.op("ReduceSum", each, graph.whole(2), keepdims=0))
    score = graph.op("Mul", often, graph.weight(term.by_count))
    score = graph.op("Add", score, graph.slice(graph.weight(term.by_recency), places, 0))
    if term.by_state is not None:
        score = graph.op("Add", score, graph.slice(graph.linear(states, term.by_state), places, 1))
    return graph.op("Mul", score, graph.op("Mul", graph.cast(latest, np.float32), graph.real(term.scale)))
