"""Backbone, item tables and repeat term as one module: history → state → head."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from offrec.backbones import BACKBONES, Sizes
from offrec.catalogue import Head
from offrec.types import Batch


@dataclass(frozen=True)
class NetworkOptions:
    """The shape of a network."""

    backbone: str = "gru"
    """gru, cfn, caser, nextitnet or sasrec."""
    width: int = 128
    """Width of states and item vectors."""
    layers: int = 1
    """Layers of cells or of attention; a layer of NextItNet is four convolutions. Caser has one."""
    dropout: float = 0.3
    """On item vectors going in, on states coming out, and inside the backbone."""
    history: int = 50
    """A state knows at most so many of the last items."""
    tied: bool = True
    """One item table for input and output."""
    repeat: Literal["instead", "bonus", "off"] = "instead"
    """A learned score for the items of the history: instead of the item table's, or as a bonus on top of it."""
    repeat_state: bool = True
    """Let the state move the scores of the items seen; without it recency and count alone decide (small logs)."""
    heads: int = 2
    """Attention heads (sasrec)."""
    window: int = 5
    """Items in the window (caser)."""


class RepeatTerm(nn.Module):
    """People come back to what they have seen: a score of its own for each distinct item of the history,

        repeat(a) = r[j] + w[j] · state + c log n      j: how many events ago a was seen last, n: how often it was seen

    Without state and count this ranks by recency, which by itself beats many a learned model. It stands instead of
    state · table[a]: added to it, the table's errors disturb the order among the items seen, which is what matters most
    on a small log.
    """

    scale = 4.0  # scores are large (log of catalogue over history) and Adam's steps small: learn them in larger units

    def __init__(self, width: int, history: int, by_state: bool) -> None:
        super().__init__()
        self.by_recency = nn.Parameter((7.0 - 1.5 * torch.arange(1, history + 1).log()) / self.scale)
        self.by_count = nn.Parameter(torch.zeros(()))
        self.by_state = nn.Linear(width, history, bias=False) if by_state else None
        if self.by_state is not None:
            nn.init.zeros_(self.by_state.weight)

    def forward(self, state: Tensor, recent: Tensor, n_items: int) -> Tensor:
        """[B, H]: the score at an item's most recent place, 0 at its earlier ones and at padding."""
        same = recent[:, :, None] == recent[:, None, :]  # [B, H, H]
        latest = ~same.tril(-1).any(2) & (recent < n_items)
        score: Tensor = self.by_recency + self.by_count * same.sum(2).log()
        score = score if self.by_state is None else score + self.by_state(state)
        return score * (self.scale * latest)


class Network(nn.Module):
    def __init__(self, n_items: int, options: NetworkOptions) -> None:
        super().__init__()
        self.n_items, self.options = n_items, options
        width, history = options.width, options.history
        self.items_in = nn.Parameter(torch.randn(n_items + 1, width) * width**-0.5)  # the last row is the start
        self.items_out = None if options.tied else nn.Parameter(torch.randn(n_items, width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(n_items))
        sizes = Sizes(width, options.layers, options.dropout, history, options.heads, options.window)
        self.backbone = BACKBONES[options.backbone](sizes)
        self.repeat = None if options.repeat == "off" else RepeatTerm(width, history, options.repeat_state)
        self.dropout = nn.Dropout(options.dropout)

    @property
    def table(self) -> Tensor:
        return self.items_in[: self.n_items] if self.items_out is None else self.items_out

    def states(self, batch: Batch) -> Tensor:
        """[B, d] the state of each row."""
        if self.backbone.causal:
            start = torch.full_like(batch.tokens[:, :1], self.n_items)
            tokens = torch.cat([start, batch.tokens], 1)  # after the start alone: the state of an empty history
            states = self.backbone(self.dropout(self.items_in[tokens]))[batch.piece, batch.position]
        else:
            window = batch.recent[:, : self.backbone.window].flip(1)
            states = self.backbone(self.dropout(self.items_in[window]))
        out: Tensor = self.dropout(states)
        return out

    def forward(self, batch: Batch) -> Head:
        states = self.states(batch)
        if self.repeat is None:
            return Head(states, self.table, self.bias)
        repeat = self.repeat(states, batch.recent, self.n_items)
        return Head(states, self.table, self.bias, batch.recent, repeat, instead=self.options.repeat == "instead")
