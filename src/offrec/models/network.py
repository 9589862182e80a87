"""Network: a backbone, item tables and a repeat term in one module that maps histories to heads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

from offrec.backbones import BACKBONES, Sizes
from offrec.backbones.gru import GRU
from offrec.backbones.gru_on_cpu import Packing
from offrec.catalogue import Head
from offrec.catalogue.corrections import UniqueItems, score_unique_items, unique_items
from offrec.catalogue.initial_values import compute_unless_meta
from offrec.catalogue.shard import Shard, random_rows
from offrec.errors import InputError
from offrec.models.gpu_gradients import add_to_rows, lookup, scale
from offrec.models.item_features import FeatureMap, ItemFeatures, add_features
from offrec.plugins import option
from offrec.types import Batch

Second = Literal["critic", "policy"]


@dataclass(frozen=True)
class NetworkOptions:
    """The shape of a network."""

    backbone: str = "gru"
    """Backbone from history to state; `offrec options` lists them."""
    width: int = option(128, minimum=1, maximum=65_536)
    """Width of states and item vectors."""
    layers: int = option(1, minimum=1, maximum=1_000)
    """Layers of the backbone. A layer of NextItNet has four convolutions; Caser always has one layer."""
    dropout: float = option(0.3, minimum=0.0, below=1.0)
    """Dropout rate of the input vectors, of the states and inside the backbone."""
    history: int = option(50, minimum=1, maximum=1_000_000)
    """Maximum number of recent items that a state depends on."""
    tied: bool = True
    """Share one item table between input and output."""
    repeat: Literal["instead", "bonus", "off"] = "instead"
    """How the learned score of items in the history is used: instead of the item table's score, or added to it."""
    repeat_state: bool = True
    """Whether scores of items in the history depend on the state, or only on recency and count (for small logs)."""
    heads: int = option(2, minimum=1, maximum=1_024)
    """Attention heads (sasrec only)."""
    window: int = option(5, minimum=1, maximum=1_000)
    """Items in the window (caser only)."""
    features: Literal["auto", "off"] = "auto"
    """Whether item vectors depend on item features: auto (if the dataset has any, see prepare --items) or off."""
    free_dropout: float = option(0.1, minimum=0.0, below=1.0)
    """Share of the items in each update whose vectors depend on their features alone, so that items without training
    events get good scores (only with features)."""
    new_item_bonus: float = option(0.75, minimum=-100.0, maximum=100.0)
    """Added to the logits of items without training events when the policy ranks, because their popularity is unknown
    (only with features). Larger values show more new items."""

    @property
    def sizes(self) -> Sizes:
        """The options that a backbone reads."""
        return Sizes(self.width, self.layers, self.dropout, self.history, self.heads, self.window)


class RepeatTerm(nn.Module):
    """Scores each distinct item of the history separately, because visitors return to items they have seen:

        repeat(a) = r[j] + w[j] · state + c log n      j: events since a was last seen, n: times it was seen

    Without state and count, it ranks by recency, which is a strong baseline. With `repeat="instead"`, it replaces
    state · table[a]. If it were added instead, errors of the table would disturb the order of items in the history,
    which matters most on a small log.

    Args:
        width: Width of the state.
        history: Largest j.
        by_state: Whether the score depends on the state.
        value: Whether scores are values, which start at 0, instead of log-odds.
    """

    scale = 4.0  # scores of about log(catalogue / history) are large compared with Adam's steps

    def __init__(self, width: int, history: int, by_state: bool, value: bool = False) -> None:
        super().__init__()

        def by_recency() -> Tensor:
            return (7.0 - 1.5 * torch.arange(1, history + 1).log()) / self.scale

        self.by_recency = nn.Parameter(torch.zeros(history) if value else compute_unless_meta((history,), by_recency))
        self.by_count = nn.Parameter(torch.zeros(()))
        self.by_state = nn.Linear(width, history, bias=False) if by_state else None
        if self.by_state is not None:
            nn.init.zeros_(self.by_state.weight)

    @torch.no_grad()
    def copy_scaled(self, other: "RepeatTerm", factor: float) -> None:
        """Copy the scores of another term, times a factor."""
        for parameter, source in zip(self.parameters(), other.parameters(), strict=True):
            parameter.copy_(factor * source)

    def forward(self, state: Tensor, recent: UniqueItems) -> Tensor:
        """Score the items of the history, most recent first: [B, H] with H ≤ history.

        An item's score is at its most recent position; its earlier positions and padding are 0.
        """
        length = recent.items.shape[1]
        of_state = None if self.by_state is None else linear(state, self.by_state.weight[:length])
        return score_unique_items(recent, self.by_recency, self.by_count, of_state, self.scale)


class ValueScale(nn.Module):
    """Converts scores to values: (gain · state) · (table[a] + level).

    Q starts near 0 for any scale of the table. The term gain · state · level is the same for all items, because a value
    depends mostly on the visit and little on the item shown.
    """

    initial_gain = 0.1

    def __init__(self, width: int, shard: Shard | None = None) -> None:
        super().__init__()
        self.shard = shard
        self.gain = nn.Parameter(torch.tensor(self.initial_gain))
        self.level = nn.Parameter(torch.zeros(width))

    def forward(self, state: Tensor) -> Tensor:
        """Scale the states [B, d]."""
        return scale(state, self.gain)

    def table(self, table: Tensor) -> Tensor:
        """Add the level to the item table [A, d]."""
        level: Tensor | None = self.level
        if self.shard is not None:  # each rank adds it to its own rows
            (level,) = self.shard.replicate(level)
        assert level is not None
        return add_to_rows(table, level / self.initial_gain)


class Weights(NamedTuple):
    """The item table and bias of a head, computed once for several heads.

    These are always views of the parameters. Autograd sums gradients from several streams at the view, on its stream,
    so each parameter receives one gradient.
    """

    table: Tensor  # [A, d]
    bias: Tensor  # [A]
    shard: Shard | None = None  # the range of items, if other ranks store the others


class ItemHead(nn.Module):
    """A second head on the states of a network. It always has its own item table.

    Args:
        n_items: Size of the catalogue.
        options: The shape of the network.
        value: Whether the head is a critic.
        features: The features of the items, or None.
        shard: The range of items that this process stores; None: all.
    """

    item_rows: ClassVar = {"items_out": 0, "bias": 0}  # as in `Network`

    def __init__(
        self,
        n_items: int,
        options: NetworkOptions,
        value: bool,
        features: ItemFeatures | None = None,
        shard: Shard | None = None,
    ) -> None:
        super().__init__()
        width, self.instead, self.shard = options.width, options.repeat == "instead", shard
        self.items_out = nn.Parameter(random_rows(n_items, width, shard, width**-0.5))
        self.bias = nn.Parameter(torch.zeros(n_items if shard is None else shard.size))
        self.scale = ValueScale(width, shard) if value else None
        by_state = options.repeat_state
        self.repeat = None if options.repeat == "off" else RepeatTerm(width, options.history, by_state, value)
        self.map_out = None if features is None else FeatureMap(features, width, options.free_dropout, value)

    @property
    def weights(self) -> Weights:
        """The weights of the head."""
        return _weights(*add_features(self.map_out, self.items_out, self.bias), self.scale, self.shard)

    def head(self, states: Tensor, recent: Tensor, weights: Weights | None = None) -> Head:
        """Return the head for states [B, d] and recent items [B, H]."""
        return _head(states, recent, weights or self.weights, self.repeat, self.instead, self.scale)


class _Tied(torch.autograd.Function):
    """Returns a table and its first n rows, without the start token.

    A slice would allocate a second table in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, whole: Tensor, n: int) -> tuple[Tensor, Tensor]:
        ctx.n, ctx.more = n, len(whole) - n
        ctx.set_materialize_grads(False)
        return whole.view_as(whole), whole[:n]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_whole: Tensor | None, to_rows: Tensor | None) -> tuple[Tensor | None, None]:
        if to_rows is None:
            return to_whole, None
        if to_whole is None:
            return pad(to_rows, (0, 0, 0, ctx.more)), None
        to_whole[: ctx.n].add_(to_rows)  # safe in place: only the embedding's backward pass has created it
        return to_whole, None


class Network(nn.Module):
    """A backbone with item tables that maps a batch to a head.

    Args:
        n_items: Size of the catalogue.
        options: The shape of the network.
        value: Whether its head is a critic.
        second: The kind of a second head on the same states, or None.
        features: The features of the items, or None.
        shard: The range of items that this process stores; None: all.
    """

    item_rows: ClassVar = {"items_in": 1, "items_out": 0, "bias": 0}  # tensors by item, and their rows after the items

    def __init__(
        self,
        n_items: int,
        options: NetworkOptions,
        *,
        value: bool = False,
        second: Second | None = None,
        features: ItemFeatures | None = None,
        shard: Shard | None = None,
    ) -> None:
        super().__init__()
        self.n_items, self.options, self.shard = n_items, options, shard
        width, history = options.width, options.history
        self.items_in = nn.Parameter(
            random_rows(n_items + 1, width, shard, width**-0.5)
        )  # the last row is the start token and padding
        self.items_out = None if options.tied else nn.Parameter(random_rows(n_items, width, shard, width**-0.5))
        self.bias = nn.Parameter(torch.zeros(n_items if shard is None else shard.size))
        record = BACKBONES[options.backbone]
        self.backbone, self.causal = record.build(options.sizes), record.causal
        self.repeat = None if options.repeat == "off" else RepeatTerm(width, history, options.repeat_state, value)
        self.dropout = nn.Dropout(options.dropout)
        self.scale = ValueScale(width, shard) if value else None
        self.second = None if second is None else ItemHead(n_items, options, second == "critic", features, shard)
        dropout = options.free_dropout
        self.map_in = None if features is None else FeatureMap(features, width, dropout, value)
        self.map_out = None if features is None or options.tied else FeatureMap(features, width, dropout, value)
        self._frozen: tuple[Tensor, Weights] | None = None

    @property
    def table(self) -> Tensor:
        """[A, d] the item table of the output."""
        return self.weights.table

    def tables(self) -> tuple[Tensor, Weights]:
        """Return the input table, and the weights of the head.

        Both uses of a tied table go through one autograd node, which sums their gradients. Only that node waits for
        both: the backward pass through the backbone does not wait for the gradient of the output table.
        """
        if self._frozen is not None:
            return self._frozen
        inputs, bias = add_features(self.map_in, self.items_in, self.bias)
        if self.items_out is not None:
            weights = add_features(self.map_out, self.items_out, self.bias)
            return inputs, _weights(*weights, self.scale, self.shard)
        if not (torch.is_grad_enabled() and inputs.requires_grad):
            return inputs, _weights(inputs[: len(bias)], bias, self.scale, self.shard)
        inputs, table = _Tied.apply(inputs, len(bias))  # type: ignore[no-untyped-call]
        return inputs, _weights(table, bias, self.scale, self.shard)

    def states(self, batch: Batch, inputs: Tensor | None = None) -> Tensor:
        """Return the state of each row, [B, d]. `inputs` is the input table that `tables` returned, if any."""
        if self.causal:
            states = self._sequence(batch, inputs).index_select(0, batch.state_index)
        else:
            states = self._windows(batch.recent, inputs)
        out: Tensor = self.dropout(states)
        return out

    def states_and_next(self, batch: Batch, inputs: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the state of each row and the state after its action, [B, d] each.

        One pass over the segment computes both. After a full history, the next state therefore still includes the
        oldest item, which a served state would not.
        """
        if self.causal:
            sequence = self._sequence(batch, inputs)
            states = sequence.index_select(0, batch.state_index)
            next_states = sequence.index_select(0, batch.next_state_index)
        else:
            windows = self._windows(torch.cat([batch.recent, batch.next_recent]), inputs)
            states, next_states = windows[: len(batch)], windows[len(batch) :]
        return self.dropout(states), self.dropout(next_states)

    def _sequence(self, batch: Batch, inputs: Tensor | None) -> Tensor:
        """Return the states of all segments, [N · (1 + L), d]; each begins with the state of an empty history."""
        tokens = batch.tokens_with_start(self.n_items)
        vectors = self._vectors(tokens, inputs)
        states: Tensor = self.backbone(self.dropout(vectors))
        return states.flatten(0, 1)

    def _windows(self, recent: Tensor, inputs: Tensor | None) -> Tensor:
        size: int = self.backbone.window  # type: ignore[assignment]
        window = pad(recent, (0, max(0, size - recent.shape[1])), value=self.n_items)[:, :size].flip(1)
        states: Tensor = self.backbone(self.dropout(self._vectors(window, inputs)))
        return states

    def _vectors(self, items: Tensor, inputs: Tensor | None) -> Tensor:
        """Return the input vectors of items."""
        inputs = self.tables()[0] if inputs is None else inputs
        return lookup(inputs, items) if self.shard is None else self.shard.lookup(items, inputs)

    @property
    def weights(self) -> Weights:
        """The weights of the head."""
        return self.tables()[1]

    def head(
        self, states: Tensor, recent: Tensor, weights: Weights | None = None, unique: UniqueItems | None = None
    ) -> Head:
        """Return the head for states [B, d] and recent items [B, H]. `unique`: the same items without duplicates."""
        instead = self.options.repeat == "instead"
        return _head(states, recent, weights or self.weights, self.repeat, instead, self.scale, unique)

    def forward(self, batch: Batch) -> Head:
        """Return the head of each row of a batch."""
        inputs, weights = self.tables()
        return self.head(self.states(batch, inputs), batch.recent, weights)

    def logged_head(self, batch: Batch, unique: UniqueItems | None = None) -> Head:
        """Return the head of each row of a batch of a log, as `forward` does, in less time on a CPU.

        Args:
            batch: The batch. Its segments contain the actions of their rows, so the state after a whole segment is not
                needed.
            unique: The recent items without duplicates, if known.
        """
        inputs, weights = self.tables()
        return self.head(self.dropout(self.logged_states(batch, inputs)), batch.recent, weights, unique)

    def logged_states(self, batch: Batch, inputs: Tensor | None = None, next_of: Tensor | None = None) -> Tensor:
        """Return the states of `logged_head` before dropout, [B, d].

        If rows `next_of` [n] are given, the states after their actions follow: [B + n, d].
        """
        next_of = batch.segment[:0] if next_of is None else next_of
        if not self.causal:
            return self._windows(torch.cat([batch.recent, batch.next_recent[next_of]]), inputs)
        index = torch.cat([batch.state_index, batch.next_state_index[next_of]])
        if not (isinstance(self.backbone, GRU) and self.backbone.uses_fast_layer(batch.tokens.device)):
            return self._sequence(batch, inputs).index_select(0, index)
        tokens = batch.tokens_with_start(self.n_items)
        steps = torch.ones(len(tokens), dtype=torch.long)
        steps.scatter_reduce_(0, batch.segment, batch.position + 1, "amax")
        steps.scatter_reduce_(0, batch.segment[next_of], batch.position[next_of] + 2, "amax")
        packing = Packing.of(steps, tokens.shape[1])
        vectors = self._vectors(tokens.flatten()[packing.padded], inputs)
        if self.training and self.dropout.p:
            # The random numbers are those of `_sequence`, so that a fit does not depend on the packing.
            mask = vectors.new_empty(tokens.numel(), vectors.shape[1]).bernoulli_(1 - self.dropout.p)
            vectors = vectors * mask.index_select(0, packing.padded).div_(1 - self.dropout.p)
        return self.backbone.packed_states(vectors, packing).index_select(0, packing.places(index))

    @torch.no_grad()
    def copy_scores(self, policy: "Network", factor: float) -> None:
        """Initialise a critic with the scores of a policy of the same shape, times a factor.

        Raises:
            InputError: If the shapes differ.
        """
        assert self.scale is not None
        if replace(self.options, dropout=policy.options.dropout) != policy.options:
            raise InputError(
                "algorithm.critic_start=supervised needs a critic of π̂_b's shape; do not set critic.backbone, "
                f"critic.width and critic.layers, and set critic.repeat={policy.options.repeat}."
            )
        self.items_in.copy_(policy.items_in)
        self.bias.copy_(factor * policy.bias)
        for own, other in ((self.map_in, policy.map_in), (self.map_out, policy.map_out)):
            if own is not None and other is not None:
                own.copy_scaled(other, factor)
        self.backbone.load_state_dict(policy.backbone.state_dict())
        self.scale.gain.fill_(factor)
        self.scale.level.zero_()
        if self.items_out is not None and policy.items_out is not None:
            self.items_out.copy_(policy.items_out)
        if self.repeat is not None and policy.repeat is not None:
            self.repeat.copy_scaled(policy.repeat, factor)


def precompute_shared(batch: Batch, n_items: int) -> None:
    """Compute and cache the tensors of a batch that several networks share, before the networks run concurrently."""
    batch.tokens_with_start(n_items)
    batch.next_state_index  # noqa: B018 cached by the batch, `state_index` too
    batch.next_recent  # noqa: B018 cached by the batch


def _weights(table: Tensor, bias: Tensor, scale: ValueScale | None, shard: Shard | None) -> Weights:
    return Weights(table.view_as(table) if scale is None else scale.table(table), bias.view_as(bias), shard)


def _head(
    states: Tensor,
    recent: Tensor,
    weights: Weights,
    repeat: RepeatTerm | None,
    instead: bool,
    scale: ValueScale | None,
    unique: UniqueItems | None = None,
) -> Head:
    table, bias, shard = weights
    if repeat is None:
        unique = None
    elif unique is None:
        unique = unique_items(recent, len(bias) if shard is None else shard.n_items)
    values = None if repeat is None or unique is None else repeat(states, unique)
    states = states if scale is None else scale(states)
    if values is None:
        return Head(states, table, bias, shard=shard)
    return Head(states, table, bias, recent, values, instead, corrections_merged=True, unique=unique, shard=shard)


def detached_head(head: Callable[..., Head], states: Tensor, recent: Tensor, weights: Weights | None = None) -> Head:
    """Return a detached head, computed without an autograd graph."""
    with torch.no_grad():
        return head(states, recent, weights).detach()


@contextmanager
def frozen_tables(module: nn.Module) -> Iterator[None]:
    """Compute the item tables of all networks of a module once, for a `with` block that changes no weights."""
    networks = [one for one in module.modules() if isinstance(one, Network) and one.map_in is not None]
    try:
        with eval_mode(module), torch.no_grad():
            for network in networks:
                network._frozen = network.tables()
        yield
    finally:
        for network in networks:
            network._frozen = None


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Set a module to evaluation mode inside a `with` block."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def item_tables(module: nn.Module, n_items: int) -> list[nn.Parameter]:
    """Return the parameters with one vector per item, with or without a start token."""
    if any(shard_of(one) is not None for one in module.modules()):
        by_name = dict(module.named_parameters())
        return [by_name[name] for name in sharded_rows(module) if name in by_name and by_name[name].ndim == 2]
    rows = (n_items, n_items + 1)
    return [parameter for parameter in module.parameters() if parameter.ndim == 2 and len(parameter) in rows]


def shard_of(module: nn.Module) -> Shard | None:
    """Return the range of items that a module stores, or None if it stores all items or none."""
    shard = getattr(module, "shard", None)
    return shard if isinstance(shard, Shard) else None


def sharded_rows(module: nn.Module) -> dict[str, slice]:
    """Return the names in the state dict of all tensors by item, with the rows of the whole that are stored here."""
    rows: dict[str, slice] = {}
    for prefix, one in module.named_modules():
        shard = shard_of(one)
        for name, more in getattr(one, "item_rows", {}).items() if shard is not None else ():
            if shard is not None and getattr(one, name) is not None:
                rows[f"{prefix}.{name}" if prefix else name] = shard.rows(more)
    return rows
