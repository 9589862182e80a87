"""Backbone, item tables and repeat term as one module: history → state → head."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, linear, pad

from offrec.backbones import BACKBONES, Sizes
from offrec.catalogue import Head
from offrec.catalogue.corrections import UniqueItems, score_unique_items, unique_items
from offrec.errors import InputError
from offrec.plugins import option
from offrec.types import Batch

Second = Literal["critic", "policy"]


@dataclass(frozen=True)
class NetworkOptions:
    """The shape of a network."""

    backbone: str = "gru"
    """gru, cfn, caser, nextitnet or sasrec."""
    width: int = option(128, minimum=1, maximum=65_536)
    """Width of states and item vectors."""
    layers: int = option(1, minimum=1, maximum=1_000)
    """Layers of cells or of attention; a layer of NextItNet is four convolutions. Caser has one."""
    dropout: float = option(0.3, minimum=0.0, below=1.0)
    """On item vectors going in, on states coming out, and inside the backbone."""
    history: int = option(50, minimum=1, maximum=1_000_000)
    """A state knows at most so many of the last items."""
    tied: bool = True
    """One item table for input and output."""
    repeat: Literal["instead", "bonus", "off"] = "instead"
    """A learned score for the items of the history: instead of the item table's, or as a bonus on top of it."""
    repeat_state: bool = True
    """Let the state move the scores of the items seen; without it recency and count alone decide (small logs)."""
    heads: int = option(2, minimum=1)
    """Attention heads (sasrec)."""
    window: int = option(5, minimum=1, maximum=1_000)
    """Items in the window (caser)."""

    @property
    def sizes(self) -> Sizes:
        """The part of the options that a backbone reads."""
        return Sizes(self.width, self.layers, self.dropout, self.history, self.heads, self.window)


class RepeatTerm(nn.Module):
    """People come back to what they have seen: a score of its own for each distinct item of the history,

        repeat(a) = r[j] + w[j] · state + c log n      j: how many events ago a was seen last, n: how often it was seen

    Without state and count this ranks by recency, which by itself beats many a learned model. It stands instead of
    state · table[a]: added to it, the table's errors disturb the order among the items seen, which is what matters most
    on a small log.
    """

    scale = 4.0  # scores are large (log of catalogue over history) and Adam's steps small: learn them in larger units

    def __init__(self, width: int, history: int, by_state: bool, value: bool = False) -> None:
        """`value`: its scores are values, not log-odds, and start at 0."""
        super().__init__()
        by_recency = 7.0 - 1.5 * torch.arange(1, history + 1).log()
        self.by_recency = nn.Parameter(torch.zeros(history) if value else by_recency / self.scale)
        self.by_count = nn.Parameter(torch.zeros(()))
        self.by_state = nn.Linear(width, history, bias=False) if by_state else None
        if self.by_state is not None:
            nn.init.zeros_(self.by_state.weight)

    @torch.no_grad()
    def take(self, other: "RepeatTerm", factor: float) -> None:
        """Another's scores, times a factor."""
        for mine, its in zip(self.parameters(), other.parameters(), strict=True):
            mine.copy_(factor * its)

    def forward(self, state: Tensor, recent: UniqueItems) -> Tensor:
        """Score the items of the history, most recent first: [B, H].

        The score is at an item's most recent position, 0 at its earlier ones and at padding; H ≤ history.
        """
        length = recent.items.shape[1]
        of_state = None if self.by_state is None else linear(state, self.by_state.weight[:length])
        return score_unique_items(recent, self.by_recency, self.by_count, of_state, self.scale)


class ValueScale(nn.Module):
    """Scores into values: (gain · state) · (table[a] + level).

    Q starts near 0, whatever the table's scale, and has a part gain · state · level that is the same for all items:
    most of a value is how well the visit goes, little of it which item is shown.
    """

    small = 0.1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(self.small))
        self.level = nn.Parameter(torch.zeros(width))

    def forward(self, state: Tensor) -> Tensor:
        return self.gain * state

    def table(self, table: Tensor) -> Tensor:
        return table + self.level / self.small


class Weights(NamedTuple):
    """What heads read of each item: for several of them it is made once. Never parameters themselves: whatever stream
    their gradients are made on, they meet here, on the stream of this, and reach the parameter in one piece.
    """

    table: Tensor  # [A, d]
    bias: Tensor  # [A]


class ItemHead(nn.Module):
    """A further head on a network's states, with an item table of its own even where the network's is tied."""

    def __init__(self, n_items: int, options: NetworkOptions, value: bool) -> None:
        super().__init__()
        width, self.instead = options.width, options.repeat == "instead"
        self.items_out = nn.Parameter(torch.randn(n_items, width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(n_items))
        self.scale = ValueScale(width) if value else None
        by_state = options.repeat_state
        self.repeat = None if options.repeat == "off" else RepeatTerm(width, options.history, by_state, value)

    @property
    def weights(self) -> Weights:
        return _weights(self.items_out, self.bias, self.scale)

    def head(self, states: Tensor, recent: Tensor, weights: Weights | None = None) -> Head:
        return _head(states, recent, weights or self.weights, self.repeat, self.instead, self.scale)


class _Tied(torch.autograd.Function):
    """A table [n + 1, d], and its first n rows. Slicing would fill and copy a table more in the backward pass."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, n: int) -> tuple[Tensor, Tensor]:
        ctx.n = n
        ctx.set_materialize_grads(False)
        return whole.view_as(whole), whole[:n]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_whole: Tensor | None, to_rows: Tensor | None) -> tuple[Tensor | None, None]:
        if to_rows is None:
            return to_whole, None
        if to_whole is None:
            return pad(to_rows, (0, 0, 0, 1)), None
        to_whole[: ctx.n].add_(to_rows)  # made for this sum alone, by the one embedding that reads the table
        return to_whole, None


class Network(nn.Module):
    def __init__(
        self, n_items: int, options: NetworkOptions, *, value: bool = False, second: Second | None = None
    ) -> None:
        """`value`: its head is a critic's. `second`: a further head on the same states, a critic's or a policy's."""
        super().__init__()
        self.n_items, self.options = n_items, options
        width, history = options.width, options.history
        self.items_in = nn.Parameter(torch.randn(n_items + 1, width) * width**-0.5)  # the last row is the start
        self.items_out = None if options.tied else nn.Parameter(torch.randn(n_items, width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(n_items))
        record = BACKBONES[options.backbone]
        self.backbone, self.causal = record.build(options.sizes), record.causal
        self.repeat = None if options.repeat == "off" else RepeatTerm(width, history, options.repeat_state, value)
        self.dropout = nn.Dropout(options.dropout)
        self.scale = ValueScale(width) if value else None
        self.second = None if second is None else ItemHead(n_items, options, value=second == "critic")

    @property
    def table(self) -> Tensor:
        return self.items_in[: self.n_items] if self.items_out is None else self.items_out

    def tables(self) -> tuple[Tensor, Weights]:
        """What goes in, and what its heads read. Both uses of a tied table are one node of the graph, where their
        gradients meet in one tensor. That node alone waits for both: the way back through the backbone does not wait
        for the gradient of the table that heads read.
        """
        if self.items_out is not None or not (torch.is_grad_enabled() and self.items_in.requires_grad):
            return self.items_in, self.weights
        inputs, table = _Tied.apply(self.items_in, self.n_items)  # type: ignore[no-untyped-call]
        return inputs, _weights(table, self.bias, self.scale)

    def states(self, batch: Batch, inputs: Tensor | None = None) -> Tensor:
        """[B, d] the state of each row. `inputs`: the table that goes in."""
        if self.causal:
            states = self._sequence(batch, inputs).index_select(0, batch.state_index)
        else:
            states = self._windows(batch.recent, inputs)
        out: Tensor = self.dropout(states)
        return out

    def states_and_next(self, batch: Batch, inputs: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[B, d] twice: of each row, and after its action. One pass over the piece gives both; so after a full history
        the next state still holds its oldest item, one more than a state that is served.
        """
        if self.causal:
            sequence = self._sequence(batch, inputs)
            found = sequence.index_select(0, batch.state_index), sequence.index_select(0, batch.next_state_index)
        else:
            both = self._windows(torch.cat([batch.recent, next_recent(batch)]), inputs)
            found = both[: len(batch)], both[len(batch) :]
        return self.dropout(found[0]), self.dropout(found[1])

    def _sequence(self, batch: Batch, inputs: Tensor | None) -> Tensor:
        """[N · (1 + L), d] piece after piece; after the start alone: the state of an empty history."""
        tokens = batch.tokens_with_start(self.n_items)
        vectors = embedding(tokens, self.items_in if inputs is None else inputs)
        states: Tensor = self.backbone(self.dropout(vectors))
        return states.flatten(0, 1)

    def _windows(self, recent: Tensor, inputs: Tensor | None) -> Tensor:
        size: int = self.backbone.window  # type: ignore[assignment]
        window = pad(recent, (0, max(0, size - recent.shape[1])), value=self.n_items)[:, :size].flip(1)
        vectors = embedding(window, self.items_in if inputs is None else inputs)
        states: Tensor = self.backbone(self.dropout(vectors))
        return states

    @property
    def weights(self) -> Weights:
        return _weights(self.table, self.bias, self.scale)

    def head(self, states: Tensor, recent: Tensor, weights: Weights | None = None) -> Head:
        instead = self.options.repeat == "instead"
        return _head(states, recent, weights or self.weights, self.repeat, instead, self.scale)

    def forward(self, batch: Batch) -> Head:
        inputs, weights = self.tables()
        return self.head(self.states(batch, inputs), batch.recent, weights)

    @torch.no_grad()
    def take_scores(self, policy: "Network", factor: float) -> None:
        """Begin, as a critic, with the scores of a policy of the same shape, times a factor."""
        assert self.scale is not None
        if replace(self.options, dropout=policy.options.dropout) != policy.options:
            raise InputError(
                "To start from π̂_b, the critic must have its shape: leave critic.backbone, width and layers as they "
                f"are and set critic.repeat={policy.options.repeat}."
            )
        self.items_in.copy_(policy.items_in)
        self.bias.copy_(factor * policy.bias)
        self.backbone.load_state_dict(policy.backbone.state_dict())
        self.scale.gain.fill_(factor)
        self.scale.level.zero_()
        if self.items_out is not None and policy.items_out is not None:
            self.items_out.copy_(policy.items_out)
        if self.repeat is not None and policy.repeat is not None:
            self.repeat.take(policy.repeat, factor)


def next_recent(batch: Batch) -> Tensor:
    """[B, H] `recent` of s′: one tensor for all who ask, so that the catalogue sees that corrections fall together."""
    return batch.next_recent


def prepared(batch: Batch, n_items: int) -> None:
    """What several networks read of a batch, made once and before they run beside each other."""
    batch.tokens_with_start(n_items)
    batch.next_state_index  # noqa: B018 cached by the batch, `state_index` too
    batch.next_recent  # noqa: B018 cached by the batch


def _weights(table: Tensor, bias: Tensor, scale: ValueScale | None) -> Weights:
    return Weights(table.view_as(table) if scale is None else scale.table(table), bias.view_as(bias))


def _head(
    states: Tensor,
    recent: Tensor,
    weights: Weights,
    repeat: RepeatTerm | None,
    instead: bool,
    scale: ValueScale | None,
) -> Head:
    unique = None if repeat is None else unique_items(recent, len(weights.bias))
    values = None if repeat is None else repeat(states, unique)
    states = states if scale is None else scale(states)
    if values is None:
        return Head(states, *weights)
    return Head(states, *weights, recent, values, instead, corrections_merged=True, unique=unique)


def detached_head(head: Callable[..., Head], states: Tensor, recent: Tensor, weights: Weights | None = None) -> Head:
    """A head held fixed, made without a graph."""
    with torch.no_grad():
        return head(states, recent, weights).detach()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def item_tables(module: nn.Module, n_items: int) -> list[nn.Parameter]:
    """The parameters that hold a vector for each item, and perhaps one for the start."""
    rows = (n_items, n_items + 1)
    return [parameter for parameter in module.parameters() if parameter.ndim == 2 and len(parameter) in rows]
