"""Types that all packages share. This module does not import any other module of offrec."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # `offrec prepare` does not need torch, and importing it can take longer than preparing a log
    import torch
    from torch import Tensor

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Indices = NDArray[np.integer[Any]]  # int32, or int64 if 32 bits are too few
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Sessions:
    """Sessions as flat arrays: session s consists of the events offsets[s] … offsets[s + 1] − 1.

    `offsets` need not start at 0: a split can be a view of the arrays of the whole log.
    """

    items: Ints  # [E] item index
    behaviours: Bytes  # [E] index into the dataset's behaviours
    offsets: Longs  # [S + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def events(self) -> int:
        """The number of events."""
        return int(self.offsets[-1] - self.offsets[0])


@dataclass(frozen=True)
class Decisions:
    """Served lists with their propensities and outcomes.

    Session s was served the lists offsets[s] … offsets[s + 1] − 1. Sessions have the same order as in `Sessions`, and
    `offsets` need not start at 0. `event` is an index into the whole log.
    """

    offsets: Longs  # [S + 1]
    positions: Ints  # [D] number of the session's events before the list; these events define its state
    items: Ints  # [D, K] the ordered list, padded on the right with n_items
    log_propensity: Doubles  # [D] log probability of the ordered list under the policy that served it
    event: Longs  # [D] the event in which an item of the list was picked; −1 if none was

    def __len__(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def k(self) -> int:
        """The length of the longest list."""
        return int(self.items.shape[1])


@dataclass(frozen=True)
class Size:
    """The shapes of a batch's tensors."""

    segments: int  # N
    rows: int  # B
    length: int  # L


class DerivedColumns(NamedTuple):
    """Tensors derived from a batch's columns, for batches gathered by a kernel that also computes these tensors."""

    state_index: Tensor  # [B]
    next_state_index: Tensor  # [B]
    next_return_to_go: Tensor  # [B]
    next_recent: Tensor  # [B, H]
    tokens_with_start: Tensor  # [N, 1 + L]


@dataclass(frozen=True)
class Batch:
    """Rows for training or ranking. A row is one event; its state is defined by the earlier items of its session.

    A segment is a contiguous part of a session that is encoded once for all its rows: the state of row b is the output
    of the backbone after `position[b]` items of `tokens[segment[b]]`. A window is a segment with a single row.
    """

    tokens: Tensor  # [N, L] items of each segment, oldest first, padded on the right with n_items
    segment: Tensor  # [B] the row's segment
    position: Tensor  # [B] number of the segment's items before the row
    recent: Tensor  # [B, H] those items, most recent first, padded with n_items; H depends on the batch
    action: Tensor  # [B] the next item
    event: Tensor  # [B] index of the event in the log
    reward: Tensor  # [B]
    discount: Tensor  # [B] γ, or 0 at the end of the session
    return_to_go: Tensor  # [B] discounted return
    weight: Tensor  # [B] the row's weight in the batch mean; weights sum to 1 and are 0 for padding rows
    derived: DerivedColumns | None = None

    def __len__(self) -> int:
        return len(self.action)

    @property
    def nbytes(self) -> int:
        """Size of all columns in bytes, without derived columns."""
        return sum(getattr(self, column.name).nbytes for column in fields(self) if column.name != "derived")

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        columns = (column.name for column in fields(self) if column.name != "derived")
        return self.with_columns(**{name: getattr(self, name).to(device) for name in columns})

    def with_columns(self, **columns: Tensor) -> Batch:
        """Return a batch with some columns replaced and the derived columns recomputed."""
        return replace(self, derived=None, **columns)

    @cached_property
    def next_return_to_go(self) -> Tensor:
        """[B] discounted return from the next state on, 0 at the end of the session."""
        if self.derived is not None:
            return self.derived.next_return_to_go
        continues = self.discount > 0
        return (self.return_to_go - self.reward).where(continues, 0.0) / self.discount.where(continues, 1.0)

    @cached_property
    def state_index(self) -> Tensor:
        """[B] index of the row's state among the states of all segments; each segment begins with an initial state."""
        if self.derived is not None:
            return self.derived.state_index
        return self.segment * (self.tokens.shape[1] + 1) + self.position

    @cached_property
    def next_state_index(self) -> Tensor:
        """[B] `state_index` after the action; segments contain the actions of their rows."""
        return self.state_index + 1 if self.derived is None else self.derived.next_state_index

    @cached_property
    def next_recent(self) -> Tensor:
        """[B, H] `recent` after the action."""
        if self.derived is not None:
            return self.derived.next_recent
        import torch

        return torch.cat([self.action[:, None], self.recent[:, :-1]], 1)

    def tokens_with_start(self, start: int) -> Tensor:
        """Return the items of each segment after the index `start`, [N, 1 + L]. All networks share the tensor."""
        if self.derived is not None:
            return self.derived.tokens_with_start
        if start not in self._tokens_with_start:
            from torch.nn.functional import pad

            self._tokens_with_start[start] = pad(self.tokens, (1, 0), value=start)
        return self._tokens_with_start[start]

    @cached_property
    def _tokens_with_start(self) -> dict[int, Tensor]:
        return {}
