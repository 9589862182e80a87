"""Served lists as rows for the user model: what was shown, what was picked, the last picks, and who left."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from offrec.data.dataset import Dataset, SplitName
from offrec.types import Longs, Size

LEAST_LISTS, MOST_LISTS, BATCHES = 256, 4096, 32  # lists per batch: an epoch has about 32 batches


@dataclass(frozen=True)
class ListBatch:
    """D lists of S sessions. The lists of a session are consecutive."""

    offered: Tensor  # [D, k] the list, padded with n_items
    place: Tensor  # [D] 1 + index of the pick in the list; 0 if nothing was picked
    behaviour: Tensor  # [D] behaviour of the pick; 0 without a pick
    memory: Tensor  # [D, m] the last picks before the list, most recent first, padded with n_items
    picks: Tensor  # [D] number of picks before the list
    leaves: Tensor  # [D] whether this is the last list of its session
    session: Tensor  # [D] index of the session
    weight: Tensor  # [S] 1 / D, so that weighted sums over sessions are means over lists

    def __len__(self) -> int:
        return len(self.place)

    @property
    def picked_item(self) -> Tensor:
        """[D] the pick; the first item of the list where nothing was picked."""
        return self.offered.gather(1, (self.place - 1).clamp(min=0)[:, None])[:, 0]


@dataclass(frozen=True)
class ListLog:
    """The lists of a split.

    If the log has no lists, each event is a row whose list contains only the pick. `sampled` then tells `batch` to add
    items sampled by popularity, which represent items that the visitor could have picked.
    """

    rows: ListBatch
    first: Tensor  # [S + 1] the first list of each session
    n_items: int
    sampled: int = 0  # number of items that `batch` adds to each list
    cumulative: Tensor | None = None  # [A] cumulative counts, for sampling by popularity

    @property
    def sessions(self) -> int:
        """The number of sessions."""
        return len(self.first) - 1

    @property
    def k(self) -> int:
        """Length of the lists, with sampled items."""
        return self.rows.offered.shape[1] + self.sampled

    def first_sessions(self, count: int) -> "ListLog":
        """Return the log of the first sessions."""
        first = self.first[: count + 1]
        columns = {column.name: getattr(self.rows, column.name) for column in fields(ListBatch)}
        rows = ListBatch(
            **{name: values if name == "weight" else values[: first[-1]] for name, values in columns.items()}
        )
        return replace(self, rows=rows, first=first)

    def batch(self, sessions: Tensor) -> ListBatch:
        """Return the lists of some sessions, given in ascending order."""
        length = self.first[sessions + 1] - self.first[sessions]
        local = torch.repeat_interleave(torch.arange(len(sessions), device=length.device), length)
        start = length.cumsum(0) - length
        index = self.first[sessions][local] + torch.arange(len(local), device=length.device) - start[local]
        columns = {
            column.name: getattr(self.rows, column.name)[index]
            for column in fields(ListBatch)
            if column.name not in ("session", "weight")
        }
        if self.sampled:
            columns["offered"] = torch.cat([columns["offered"], self._sample(columns["offered"])], 1)
        weight = torch.full((len(sessions),), 1.0 / max(1, len(index)), device=length.device)
        return ListBatch(**columns, session=local, weight=weight)

    def _sample(self, picked: Tensor) -> Tensor:
        """[D, sampled] items by popularity; those equal to the pick are padding."""
        assert self.cumulative is not None
        uniform = torch.rand(len(picked), self.sampled, dtype=torch.double, device=picked.device)
        items = torch.searchsorted(self.cumulative, uniform * self.cumulative[-1], right=True)
        items = items.clamp(max=self.n_items - 1)
        return items.masked_fill(items == picked, self.n_items)


def read_lists(dataset: Dataset, split: SplitName, memory: int, negatives: int, device: torch.device) -> ListLog:
    """Read the lists of a split, or its events if the log has no lists.

    Args:
        dataset: The dataset.
        split: The split.
        memory: Number of last picks per row.
        negatives: Number of sampled items per event, if the log has no lists.
        device: Where to store the rows.
    """
    sessions, decisions = dataset.split(split), dataset.split_decisions(split)
    items, behaviours = np.asarray(dataset.sessions.items), np.asarray(dataset.sessions.behaviours)
    if decisions is None:
        offsets = np.asarray(sessions.offsets)
        event = np.arange(offsets[0], offsets[-1])
        first = offsets - offsets[0]
        session = np.repeat(np.arange(len(sessions)), np.diff(offsets))
        position = np.arange(len(event)) - first[session]
        offered = items[event][:, None].astype(np.int64)
    else:
        offsets = np.asarray(decisions.offsets)
        index = slice(int(offsets[0]), int(offsets[-1]))
        first = offsets - offsets[0]
        session = np.repeat(np.arange(len(sessions)), np.diff(offsets))
        event, position = np.asarray(decisions.event[index]), np.asarray(decisions.positions[index]).astype(np.int64)
        offered = np.asarray(decisions.items[index]).astype(np.int64)
    is_pick, at = event >= 0, np.maximum(event, 0)
    match = (offered == items[at][:, None]) & is_pick[:, None]
    place = np.where(match.any(1), match.argmax(1) + 1, 0)
    back = position[:, None] - 1 - np.arange(memory)
    source = np.asarray(sessions.offsets)[session][:, None] + np.maximum(back, 0)
    last = np.ones(len(event), bool)
    last[:-1] = session[1:] != session[:-1]
    limit = (dataset.meta.get("shop") or {}).get("max_steps")
    if limit is not None and decisions is not None:
        last &= np.diff(offsets)[session] < limit  # the shop ended the session, not the visitor
    columns = {
        "offered": offered,
        "place": place,
        "behaviour": np.where(place > 0, behaviours[at], 0).astype(np.int64),
        "memory": np.where(back >= 0, items[np.minimum(source, max(0, len(items) - 1))], dataset.n_items),
        "picks": position,
        "leaves": last,
        "session": session,
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(values)).to(device) for name, values in columns.items()}
    tensors["memory"] = tensors["memory"].long()
    rows = ListBatch(**tensors, weight=torch.zeros(0, device=device))
    # Sessions without lists contain nothing to learn from.
    starts = torch.from_numpy(first[np.append(np.diff(first) > 0, True)].copy()).to(device)
    if decisions is not None:
        return ListLog(rows, starts, dataset.n_items)
    cumulative = torch.from_numpy(np.asarray(dataset.train_counts, np.float64).cumsum()).to(device)
    return ListLog(rows, starts, dataset.n_items, negatives, cumulative)


def count_lists(dataset: Dataset, split: SplitName) -> Longs:
    """Return the number of lists, or of events if the log has no lists, of each session of a split that has any."""
    decisions = dataset.split_decisions(split)
    counts = np.diff(np.asarray((dataset.split(split) if decisions is None else decisions).offsets))
    return np.asarray(counts[counts > 0])


class ListEpochs:
    """The batches of every epoch: whole sessions in random order.

    Args:
        log: The training lists.
        batch_size: Lists per batch; None: 1/32 of the log, at least 256 and at most 4,096.
        seed: Seed of the order.
        lists: The number of lists, if `log` has the sessions of other processes without their lists.
    """

    def __init__(self, log: ListLog, batch_size: int | None, seed: int, lists: int | None = None) -> None:
        self.log, self.seed = log, seed
        lists = len(log.rows) if lists is None else lists
        self.batch_size = batch_size or max(LEAST_LISTS, min(MOST_LISTS, lists // BATCHES))
        self.epoch = -1
        self.batches: list[Tensor] = []

    def begin(self, epoch: int) -> Sequence[Size]:
        """Plan an epoch and return the size of each of its batches."""
        self.epoch = epoch
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(self.log.sessions, generator=generator)
        first = self.log.first.cpu()
        lengths = (first[1:] - first[:-1])[order]
        number = (lengths.cumsum(0) - lengths) // self.batch_size
        sizes = torch.bincount(number)
        counts: list[int] = sizes[sizes > 0].tolist()
        self.batches = [part.sort().values.to(self.log.first.device) for part in torch.split(order, counts)]
        lists = [int(part.sum()) for part in torch.split(lengths, counts)]
        return [Size(len(part), rows, self.log.k) for part, rows in zip(self.batches, lists, strict=True)]

    def gather(self, step: Tensor, size: Size) -> ListBatch:
        """Return the batch of a step."""
        return self.log.batch(self.batches[int(step)])
