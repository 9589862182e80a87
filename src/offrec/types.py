"""What travels from room to room. Imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # preparing a log needs no torch, and importing it takes longer than many a log
    from torch import Tensor

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Sessions:
    """Sessions as flat arrays: session s holds the events offsets[s] … offsets[s + 1] − 1.

    `offsets` need not start at 0, so a split is a view on the arrays of the whole log.
    """

    items: Ints  # [E] item index
    behaviours: Bytes  # [E] index into the dataset's behaviours
    offsets: Longs  # [S + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def events(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])


@dataclass(frozen=True)
class Decisions:
    """Lists that were served, how likely each was, and what came of it: session s was served the lists offsets[s] …
    offsets[s + 1] − 1, sessions in the order of `Sessions`.

    As there, `offsets` need not start at 0. `event` is a place in the whole log.
    """

    offsets: Longs  # [S + 1]
    positions: Ints  # [D] how many of the session's events came before the list: its state
    items: Ints  # [D, K] the ordered list; n_items is padding, at the right
    log_propensity: Doubles  # [D] log probability of the ordered list under the policy that served it
    event: Longs  # [D] the event that was picked from it; −1: none

    def __len__(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def k(self) -> int:
        return int(self.items.shape[1])


@dataclass(frozen=True)
class Size:
    """The shapes of a batch's tensors."""

    pieces: int  # N
    rows: int  # B
    length: int  # L


@dataclass(frozen=True)
class Batch:
    """Rows to learn from or to rank: each row is one event, its state the items of its session before it.

    Rows of one piece of a session share one encoding: row b's state is what the backbone gives after `position[b]`
    items of `tokens[piece[b]]`. A window is a piece with one row.
    """

    tokens: Tensor  # [N, L] items of each piece, oldest first; n_items is padding, at the right
    piece: Tensor  # [B] row → piece
    position: Tensor  # [B] how many of the piece's items come before the row
    recent: Tensor  # [B, H] the same items, most recent first; n_items is padding; H as large as the batch needs
    action: Tensor  # [B] the item that came next
    event: Tensor  # [B] where the event stands in the log
    reward: Tensor  # [B]
    discount: Tensor  # [B] γ, or 0 where the session ends
    return_to_go: Tensor  # [B] discounted return
    weight: Tensor  # [B] the row's share of the batch's mean: they sum to 1, and are 0 on rows that only fill up

    def __len__(self) -> int:
        return len(self.action)

    def knowing(self, **derived: object) -> Batch:
        """The same batch, with what is derived from its tensors where someone has it already."""
        self.__dict__.update(derived)
        return self

    @cached_property
    def next_return_to_go(self) -> Tensor:
        """[B] discounted return from the next state on, 0 where the session ends."""
        goes_on = self.discount > 0
        return (self.return_to_go - self.reward).where(goes_on, 0.0) / self.discount.where(goes_on, 1.0)

    @cached_property
    def place(self) -> Tensor:
        """[B] where a row's state is among the states of all pieces, one of each before its first item."""
        return self.piece * (self.tokens.shape[1] + 1) + self.position

    @cached_property
    def next_place(self) -> Tensor:
        """[B] `place` after the action: a piece holds its rows' actions, so it is there."""
        return self.place + 1

    def started(self, start: int) -> Tensor:
        """[N, 1 + L] the pieces' items after the mark of the start, one tensor for all networks."""
        if start not in self._started:
            from torch.nn.functional import pad

            self._started[start] = pad(self.tokens, (1, 0), value=start)
        return self._started[start]

    @cached_property
    def _started(self) -> dict[int, Tensor]:
        return {}

    @cached_property
    def next_recent(self) -> Tensor:
        """[B, H] `recent` after the action."""
        import torch

        return torch.cat([self.action[:, None], self.recent[:, :-1]], 1)
