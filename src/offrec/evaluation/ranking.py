"""Compute exact ranks of logged items in the whole catalogue, which is streamed and never sampled."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offrec.catalogue import rank, rank_and_top_k
from offrec.data.dataset import Dataset
from offrec.data.protocol import Protocol
from offrec.data.replay import Replay
from offrec.data.rewards import event_rewards_or_none
from offrec.data.transitions import transitions
from offrec.errors import InputError
from offrec.evaluation.exposure import LIST_LENGTH, Exposure, ExposureCounter
from offrec.evaluation.metrics import MetricValues, compute_metrics, ndcg
from offrec.policy import Policy
from offrec.types import Batch, Bytes, Floats, Longs, Sessions

EvaluationSplit = Literal["test", "validation"]
Progress = Callable[[int, int], None]  # (events ranked so far, total)

KS = (5, 10, 20)
BATCH_SIZE = 1024
LIST_ROWS = 2048  # events whose lists are counted after each epoch; a list costs more than a rank
CACHE_BYTES = 1 << 30  # batches of larger splits are not cached but gathered for every pass


@dataclass(frozen=True)
class Ranks:
    """The ranks of the scored events of a split, in the order of the log."""

    event: Longs  # [N] index of the event in the log
    behaviour: Bytes  # [N]
    rank: Longs  # [N] 1 is best; ties and NaN scores count against the policy

    def metrics(self, ks: Sequence[int] = KS, more: dict[str, float] | None = None) -> MetricValues:
        """Compute every registered metric; `more` contains values that were computed elsewhere."""
        return compute_metrics(self.rank, ks, more)

    def reward_ndcg(self, rewards: Floats, k: int) -> float:
        """Compute NDCG@k with each event weighted by its reward. In [0, 1] unless a reward is negative.

        Args:
            rewards: Reward of every event of the dataset; see `event_rewards`.
            k: Length of the list.
        """
        reward = rewards[self.event].astype(np.float64)
        if not len(reward):
            return 0.0
        return float((reward * ndcg(self.rank, k)).mean() / max(np.abs(reward).mean(), np.finfo(np.float64).tiny))

    def rewards(self, rewards: Floats | None, ks: Sequence[int]) -> dict[str, float]:
        """Return reward@k for every k; nothing if the rewards are unknown."""
        return {} if rewards is None else {f"reward@{k}": self.reward_ndcg(rewards, k) for k in ks}

    def for_behaviour(self, behaviour: int) -> "Ranks":
        """Return the ranks of the events of one behaviour."""
        selected = self.behaviour == behaviour
        return Ranks(self.event[selected], self.behaviour[selected], self.rank[selected])


@dataclass(frozen=True)
class Evaluation:
    """The ranks and metrics of a policy on a split."""

    policy: str
    split: EvaluationSplit
    fingerprint: str
    protocol: dict[str, Any]
    counts: dict[str, int]  # of the dataset
    ranks: Ranks
    metrics: dict[str, MetricValues]  # "all" and each behaviour

    def as_json(self) -> dict[str, Any]:
        """Return what `offrec evaluate --json` prints."""
        return {
            "policy": self.policy,
            "split": self.split,
            "fingerprint": self.fingerprint,
            "protocol": self.protocol,
            "dataset": self.counts,
            "metrics": {name: {"events": one.events, **one.values} for name, one in self.metrics.items()},
        }


def ranks(
    policy: Policy,
    dataset: Dataset,
    split: EvaluationSplit = "validation",
    *,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Ranks:
    """Compute the ranks of the scored events of a split, without metrics."""
    return ScoredEvents.for_policy(policy, dataset, split, batch_size).ranks(policy, progress)


def evaluate(
    policy: Policy,
    dataset: Dataset,
    split: EvaluationSplit = "test",
    ks: Sequence[int] = KS,
    *,
    reward: Mapping[str, float] | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Evaluation:
    """Rank every scored event of a split in the full catalogue and compute all metrics.

    Args:
        policy: A trained policy or a baseline.
        dataset: The dataset from which the policy was made.
        split: "test" or "validation".
        ks: Lengths of the lists that metrics are computed for.
        reward: Rewards by behaviour, if they differ from the defaults. A reward column overrides them.
        batch_size: Events per batch.
        progress: Called with the number of events ranked so far and their total.

    Returns:
        The ranks, and the metrics overall and per behaviour. coverage@k is the share of the catalogue that is among the
        first k items of at least one event. reward@k is NDCG@k with each event weighted by its reward; it is left out
        if a behaviour has no reward.

    Raises:
        InputError: If the policy was made from another dataset, or the split has no scored event.

    Example:
        >>> offrec.evaluate(policy, dataset).metrics["all"]["NDCG@10"]
    """
    ks = _checked(ks)
    events, coverage = (
        ScoredEvents.for_policy(policy, dataset, split, batch_size),
        _Coverage(dataset, ks, policy.device),
    )
    batch_ranks = []
    behaviours = torch.tensor(np.asarray(dataset.sessions.behaviours), device=policy.device).long()
    with torch.no_grad():
        for batch in events.batches(progress):
            position, values, items = rank_and_top_k(policy.head(batch), batch.action, max(ks))
            batch_ranks.append(position)
            coverage.add(behaviours[batch.event], values, items)
    ranked = events.in_log_order(batch_ranks)
    rewards = event_rewards_or_none(dataset, reward or {})
    tables = {"all": ranked.metrics(ks, ranked.rewards(rewards, ks) | coverage.share())}
    for index, name in enumerate(dataset.behaviours):
        part = ranked.for_behaviour(index)
        tables[name] = part.metrics(ks, part.rewards(rewards, ks) | coverage.share(index))
    return Evaluation(
        policy=policy.name,
        split=split,
        fingerprint=dataset.fingerprint,
        protocol=dataset.protocol.as_json(),
        counts=dict(dataset.meta["counts"]),
        ranks=ranked,
        metrics=tables,
    )


def is_scored(sessions: Sessions, protocol: Protocol, train_counts: Longs) -> NDArray[np.bool_]:
    """[E] whether each event of the split is scored. The three options of the protocol apply to the logged sessions."""
    base = int(sessions.offsets[0])
    start, stop = np.asarray(sessions.offsets[:-1]) - base, np.asarray(sessions.offsets[1:]) - base
    counts = np.ones(sessions.events, dtype=np.bool_)
    if protocol.score_last is not None:
        to_end = np.repeat(stop, stop - start) - np.arange(sessions.events)  # 1 at the last event of a session
        counts &= to_end <= protocol.score_last
    if not protocol.score_first:
        counts[start[start < stop]] = False
    if protocol.unseen == "drop":
        counts &= train_counts[np.asarray(sessions.items[base : base + sessions.events])] > 0
    return counts


class ScoredEvents:
    """The scored events of a split on a device. Segments without scored events are not encoded.

    A run creates it once and ranks the events after every epoch. Batches are built without waiting for the device, and
    stay there if they are small enough.

    Args:
        dataset: The dataset.
        split: "test" or "validation".
        history: History length of the policies.
        device: Device of the policies.
        batch_size: Scored events per batch.

    Raises:
        InputError: If the split is unknown or has no scored event.
    """

    def __init__(
        self, dataset: Dataset, split: EvaluationSplit, history: int, device: torch.device, batch_size: int = BATCH_SIZE
    ) -> None:
        if split not in get_args(EvaluationSplit):
            raise InputError(f"The split must be one of {', '.join(get_args(EvaluationSplit))}; got {split!r}.")
        self.dataset, self.history, self.device = dataset, history, device
        sessions = dataset.split(split)
        counts = is_scored(sessions, dataset.protocol, dataset.train_counts)
        if not counts.any():
            raise InputError(
                f"The {split} split has no scored events under this protocol; score more events or choose another "
                "split."
            )
        no_reward = transitions(sessions, None, gamma=0.0)
        self.replay = Replay(sessions, no_reward, dataset.n_items, history, "exact", device)
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
        """Return the scored events for one policy, which must come from this dataset."""
        if policy.data_hash not in (None, dataset.meta["data_hash"]) or policy.n_items != dataset.n_items:
            raise InputError(
                f"{policy.name} was not made from {dataset.path} ({dataset.fingerprint}); evaluate it "
                "on its own dataset."
            )
        return ScoredEvents(dataset, split, policy.history, policy.device, batch_size)

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

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        """Yield the scored events in batches of similar history length."""
        total, done = sum(self.sizes), 0
        for number, (index, chosen) in enumerate(zip(self.segment_batches, self.chosen, strict=True)):
            yield self.cached[number] if self.cached is not None else _rows(self.replay.batch(index), chosen)
            done += self.sizes[number]
            if progress is not None:
                progress(done, total)

    @torch.no_grad()
    def ranks(self, policy: Policy, progress: Progress | None = None) -> Ranks:
        """Rank the logged items under a policy."""
        return self.in_log_order([rank(policy.head(batch), batch.action) for batch in self.batches(progress)])

    @torch.no_grad()
    def ranks_and_exposure(self, policy: Policy) -> tuple[Ranks, Exposure]:
        """Rank the logged items, and count the items of the lists of about `LIST_ROWS` events, in one pass.

        The counted batches are spread evenly over the lengths of histories.
        """
        counter, batch_ranks, counted = ExposureCounter(self.dataset.train_counts, self.device), list[Tensor](), 0
        total, done = sum(self.sizes), 0
        for batch in self.batches():
            head, done = policy.head(batch), done + len(batch)
            if counted < min(1.0, LIST_ROWS / total) * done:
                position, values, items = rank_and_top_k(head, batch.action, LIST_LENGTH)
                counter.add(values, items)
                counted += len(batch)
            else:
                position = rank(head, batch.action)
            batch_ranks.append(position)
        return self.in_log_order(batch_ranks), counter.figures()

    def in_log_order(self, batch_ranks: list[Tensor]) -> Ranks:
        """Sort the ranks of all batches by event."""
        order = np.argsort(self.event)
        event = self.event[order] + self.replay.first_event
        behaviour = np.asarray(self.dataset.sessions.behaviours[event])
        return Ranks(event, behaviour, torch.cat(batch_ranks).cpu().numpy()[order])


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


class _Coverage:
    """Records which items were among the first k, for each k and behaviour."""

    def __init__(self, dataset: Dataset, ks: Sequence[int], device: torch.device) -> None:
        self.ks = ks
        self.seen = torch.zeros(len(ks), len(dataset.behaviours), dataset.n_items, dtype=torch.bool, device=device)

    def add(self, behaviour: Tensor, values: Tensor, items: Tensor) -> None:
        for row, k in enumerate(self.ks):
            shown = ~values[:, :k].isnan()  # a NaN score recommends nothing
            self.seen[row, behaviour[:, None].expand_as(shown)[shown], items[:, :k][shown]] = True

    def share(self, behaviour: int | None = None) -> dict[str, float]:
        seen = self.seen.any(1) if behaviour is None else self.seen[:, behaviour]
        return {f"coverage@{k}": float(share) for k, share in zip(self.ks, seen.double().mean(1).tolist(), strict=True)}


def _checked(ks: Sequence[int]) -> tuple[int, ...]:
    if not ks or min(ks) < 1:
        raise InputError(f"ks must contain lengths of at least 1, for example 5, 10, 20; got {list(ks)}.")
    return tuple(ks)
