"""History → state. Backbones know nothing of learners.

A causal backbone maps [N, L, d] to [N, L, d], the output at t a function of the inputs up to t, so a session is
encoded once for all its events. The others (Caser) map a window [B, window, d], oldest first, to [B, d].
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from offrec.backbones.attention import SASRec
from offrec.backbones.convolution import Caser, NextItNet
from offrec.backbones.recurrent import CFN, GRU


@dataclass(frozen=True)
class Sizes:
    """What a backbone may read of a network's options."""

    width: int
    layers: int
    dropout: float
    history: int  # the longest history it will see
    heads: int
    window: int


BACKBONES: dict[str, Callable[[Sizes], nn.Module]] = {
    "gru": lambda size: GRU(size.width, size.layers, size.dropout),
    "cfn": lambda size: CFN(size.width, size.layers, size.dropout),
    "caser": lambda size: Caser(size.width, min(size.window, size.history), size.dropout),
    "nextitnet": lambda size: NextItNet(size.width, size.layers, size.dropout),
    # One position for the start.
    "sasrec": lambda size: SASRec(size.width, size.layers, size.dropout, size.heads, size.history + 1),
}

__all__ = ["BACKBONES", "Sizes"]
