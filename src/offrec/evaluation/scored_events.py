"""The scored events of a split on a device, in the item indices of a policy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offrec.catalogue import Head, rank, rank_and_top_k, rank_last
from offrec.data.dataset import Dataset
from offrec.data.protocol import Protocol
from offrec.data.replay import Replay
from offrec.data.transitions import transitions
from offrec.data.vocabulary import Vocabulary, match_ids
from offrec.errors import InputError
from offrec.evaluation.exposure import LIST_LENGTH, Exposure, ExposureCounter
from offrec.evaluation.ranks import MISS, Ranks
from offrec.policy import Policy, check_skip_recent
from offrec.types import Batch, Longs, Sessions

EvaluationSplit = Literal["test", "validation", "all"]
Progress = Callable[[int, int], None]  # (events ranked so far, total)

BATCH_SIZE = 1024
LIST_ROWS = 2048  # events whose lists are counted after each epoch; a list costs more than a rank
CACHE_BYTES = 1 << 30  # batches of larger splits are not cached but gathered for every pass


@dataclass(frozen=True)
class TranslatedSessions:
    """Sessions in the item indices of another catalogue. Events with unknown items are left out."""

    sessions: Sessions
    event: Longs  # [E'] index of each remaining event in the log
    is_known: NDArray[np.bool_]  # [E] whether each event of the split remains


def translate(dataset: Dataset, split: EvaluationSplit, catalogue: Vocabulary) -> TranslatedSessions:
    """Translate the sessions of a split into the item indices of a catalogue.

    Args:
        dataset: The dataset.
        split: The split.
        catalogue: The item ids of the policy.
    """
    sessions = dataset.split(split)
    begin, end = int(sessions.offsets[0]), int(sessions.offsets[-1])
    index = match_ids(catalogue, dataset.vocabulary)[np.asarray(sessions.items[begin:end])]
    is_known = index >= 0
    before = np.concatenate([[0], np.cumsum(is_known)])
    translated = Sessions(
        index[is_known].astype(np.int32),
        np.asarray(sessions.behaviours[begin:end])[is_known],
        before[np.asarray(sessions.offsets) - begin].astype(np.int64),
    )
    return TranslatedSessions(translated, begin + np.flatnonzero(is_known), is_known)


def is_scored(sessions: Sessions, protocol: Protocol, is_trained: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[E] whether each event of the split is scored. The three options of the protocol apply to the logged sessions.

    Args:
        sessions: The sessions of the split.
        protocol: The protocol.
        is_trained: [A] whether each item occurs in training.
    """
    base = int(sessions.offsets[0])
    start, stop = np.asarray(sessions.offsets[:-1]) - base, np.asarray(sessions.offsets[1:]) - base
    counts = np.ones(sessions.events, dtype=np.bool_)
    if protocol.score_last is not None:
        to_end = np.repeat(stop, stop - start) - np.arange(sessions.events)  # 1 at the last event of a session
        counts &= to_end <= protocol.score_last
    if not protocol.score_first:
        counts[start[start < stop]] = False
    if protocol.unseen == "drop":
        counts &= is_trained[np.asarray(sessions.items[base : base + sessions.events])]
    return counts


class ScoredEvents:
    """The scored events of a split on a device. Segments without scored events are not encoded.

    A run creates it once and ranks the events after every epoch. Batches are built without waiting for the device, and
    stay there if they are small enough.

    Args:
        dataset: The dataset.
        split: "test", "validation" or "all".
        history: History length of the policies.
        device: Device of the policies.
        batch_size: Scored events per batch.
        catalogue: The item ids of the policies; None for those of the dataset. Histories then contain known items only,
            and a scored event whose item the policies do not know is a miss.
        is_own: Whether the policies were trained on the dataset. It decides which items `unseen=drop` leaves out: those
            that do not occur in the training sessions or, for policies of another dataset, those that they do not know.

    Raises:
        InputError: If the split is unknown or has no scored event, or the catalogue contains no item of the split.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: EvaluationSplit,
        history: int,
        device: torch.device,
        batch_size: int = BATCH_SIZE,
        catalogue: Vocabulary | None = None,
        is_own: bool = True,
    ) -> None:
        if split not in get_args(EvaluationSplit):
            raise InputError(f"The split must be one of {', '.join(get_args(EvaluationSplit))}; got {split!r}.")
        check_skip_recent(dataset.protocol.skip_recent)
        self.dataset, self.protocol, self.history, self.device = dataset, dataset.protocol, history, device
        sessions, self.n_items = dataset.split(split), dataset.n_items
        is_trained = dataset.train_counts > 0
        self.translated: TranslatedSessions | None = None
        if catalogue is not None and not is_own:
            is_trained = match_ids(catalogue, dataset.vocabulary) >= 0
        if catalogue is not None and catalogue != dataset.vocabulary:
            self.translated, self.n_items = translate(dataset, split, catalogue), len(catalogue)
        counts = is_scored(sessions, dataset.protocol, is_trained)
        if not counts.any():
            raise InputError(
                f"The {split} split has no scored events under this protocol; score more events or choose another "
                "split."
            )
        self.missed: Longs = np.empty(0, np.int64)  # scored events whose items the policies do not know
        if self.translated is not None:
            is_known = self.translated.is_known
            self.missed = int(sessions.offsets[0]) + np.flatnonzero(counts & ~is_known)
            sessions, counts = self.translated.sessions, counts[is_known]
            if not counts.any():
                raise InputError(
                    f"The policy knows no item of the scored events of {dataset.path}; check the item ids."
                )
        self.behaviours = sessions.behaviours
        self.replay = Replay(sessions, transitions(sessions, None, 0.0), self.n_items, history, "exact", device)
        self.segment_batches = _segment_batches(self.replay, counts, batch_size)
        rows = [_events(self.replay, index) for index in self.segment_batches]
        chosen = [np.flatnonzero(counts[row]) for row in rows]
        self.event: Longs = np.concatenate([row[keep] for row, keep in zip(rows, chosen, strict=True)])
        self.chosen = [
            None if len(keep) == len(row) else torch.from_numpy(keep).to(device)
            for row, keep in zip(rows, chosen, strict=True)
        ]
        self.sizes = [len(keep) for keep in chosen]
        self.cached: list[Batch] | None = None

    @staticmethod
    def for_policy(
        policy: Policy, dataset: Dataset, split: EvaluationSplit, batch_size: int = BATCH_SIZE
    ) -> "ScoredEvents":
        """Return the scored events for one policy, in its item indices.

        Raises:
            InputError: If all sessions of the dataset that the policy was trained on would be scored.
        """
        is_own = policy.data_hash == dataset.meta["data_hash"]
        if is_own and split == "all":
            raise InputError(
                f"--split all would evaluate {policy.name} on its own training sessions; use test or another --dataset."
            )
        if policy.data_hash is None:  # it is not known what the policy was made from
            is_own = policy.vocabulary == dataset.vocabulary
        return ScoredEvents(dataset, split, policy.history, policy.device, batch_size, policy.vocabulary, is_own)

    @property
    def bytes(self) -> int:
        """Bytes on the device when the batches are cached."""
        # Recent items, at most the same number of tokens, and the other columns.
        rows = 8 * sum(self.sizes) * (2 * self.history + 8)
        return self.replay.bytes + (rows if rows <= CACHE_BYTES else 0)

    def cache_batches(self) -> "ScoredEvents":
        """Gather the batches once for repeated use, if they are small enough."""
        if self.cached is None and self.bytes > self.replay.bytes:
            self.cached = list(self.batches())
        return self

    def batches(self, progress: Progress | None = None, numbers: Sequence[int] | None = None) -> Iterator[Batch]:
        """Yield the scored events in batches of similar history length; `numbers`: only these batches."""
        numbers = range(len(self.sizes)) if numbers is None else numbers
        total, done = sum(self.sizes[number] for number in numbers), 0
        for number in numbers:
            index, chosen = self.segment_batches[number], self.chosen[number]
            yield self.cached[number] if self.cached is not None else _rows(self.replay.batch(index), chosen)
            done += self.sizes[number]
            if progress is not None:
                progress(done, total)

    def head(self, policy: Policy, batch: Batch) -> Head:
        """Return the policy's head, with items of the history lowered or excluded as the protocol says."""
        head = policy.head(batch)
        if self.protocol.skip_recent:
            head = rank_last(head, batch.recent[:, : self.protocol.skip_recent])
        return head.mask(batch.recent) if self.protocol.exclude_seen else head

    def count_repeats(self, batch: Batch, position: Tensor) -> Tensor:
        """Return the ranks [B] with a miss for every item that the protocol excludes."""
        if not self.protocol.exclude_seen:
            return position
        return position.masked_fill((batch.recent == batch.action[:, None]).any(1), MISS)

    @torch.no_grad()
    def ranks(self, policy: Policy, progress: Progress | None = None) -> Ranks:
        """Rank the logged items under a policy."""
        return self.in_log_order(
            [
                self.count_repeats(batch, rank(self.head(policy, batch), batch.action))
                for batch in self.batches(progress)
            ]
        )

    @torch.no_grad()
    def ranks_and_exposure(self, policy: Policy) -> tuple[Ranks, Exposure]:
        """Rank the logged items, and count the items of the lists of about `LIST_ROWS` events, in one pass.

        The counted batches are spread evenly over the lengths of histories.
        """
        counter = ExposureCounter(self.dataset.train_counts, self.device)
        return self.rank_and_count(policy, counter), counter.figures()

    @torch.no_grad()
    def rank_and_count(self, policy: Policy, counter: ExposureCounter) -> Ranks:
        """Rank the logged items, and add lists to a counter."""
        batch_ranks, counted = list[Tensor](), 0
        total, done = sum(self.sizes), 0
        for batch in self.batches():
            head, done = self.head(policy, batch), done + len(batch)
            if counted < min(1.0, LIST_ROWS / total) * done:
                position, values, items = rank_and_top_k(head, batch.action, LIST_LENGTH)
                counter.add(values, items)
                counted += len(batch)
            else:
                position = rank(head, batch.action)
            batch_ranks.append(self.count_repeats(batch, position))
        return self.in_log_order(batch_ranks)

    def in_log_order(self, batch_ranks: list[Tensor]) -> Ranks:
        """Sort the ranks of all batches by event, and add the events with unknown items."""
        event = self.event + self.replay.first_event
        event = event if self.translated is None else self.translated.event[event]
        position = torch.cat(batch_ranks).cpu().numpy()
        event = np.concatenate([event, self.missed])
        position = np.concatenate([position, np.full(len(self.missed), MISS, position.dtype)])
        order = np.argsort(event)
        event = event[order]
        return Ranks(event, np.asarray(self.dataset.sessions.behaviours[event]), position[order])


def _events(replay: Replay, index: Longs) -> Longs:
    """Return the events of these segments, in the order of the rows of a batch."""
    rows = replay.rows[index]
    first = replay.segments.first[index] - replay.first_event
    return np.repeat(first - (np.cumsum(rows) - rows), rows) + np.arange(rows.sum())


def _segment_batches(replay: Replay, counts: NDArray[np.bool_], batch_size: int) -> list[Longs]:
    """Return segments with scored rows, sorted by length, in batches of about `batch_size` scored rows."""
    segments, before = replay.segments, np.concatenate([[0], np.cumsum(counts)])
    rows = before[segments.end - replay.first_event] - before[segments.first - replay.first_event]
    order = np.argsort(segments.end - segments.begin, kind="stable")
    order = order[rows[order] > 0]
    number = (np.cumsum(rows[order]) - 1) // batch_size
    return np.split(order, np.flatnonzero(np.diff(number)) + 1)


def _rows(batch: Batch, chosen: Tensor | None) -> Batch:
    """Select rows of a batch; its segments are unchanged."""
    if chosen is None:
        return batch
    fields = ("segment", "position", "recent", "action", "event", "reward", "discount", "return_to_go")
    weight = torch.full_like(batch.reward[chosen], 1 / len(chosen))
    return batch.with_columns(**{name: getattr(batch, name)[chosen] for name in fields}, weight=weight)
