"""Compute exact ranks of logged items in the whole catalogue, which is streamed and never sampled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrec.catalogue import rank_and_top_k
from offrec.catalogue.head import ALL_MASKED
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards_or_none
from offrec.errors import InputError
from offrec.evaluation.metrics import MetricValues
from offrec.evaluation.ranks import KS, Ranks
from offrec.evaluation.scored_events import BATCH_SIZE, EvaluationSplit, Progress, ScoredEvents
from offrec.policy import Policy


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
    unknown: int = 0  # scored events whose items the policy does not know; each is a miss

    @property
    def unknown_share(self) -> float:
        """The share of the scored events whose items the policy does not know."""
        return self.unknown / max(1, len(self.ranks.event))

    def as_json(self) -> dict[str, Any]:
        """Return what `offrec evaluate --json` prints for each policy."""
        return {
            "policy": self.policy,
            "split": self.split,
            "fingerprint": self.fingerprint,
            "protocol": self.protocol,
            "dataset": self.counts,
            "unknown_events": self.unknown,
            "unknown_share": self.unknown_share,
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

    The dataset may be another one than that of the policy, such as a later log. Items are then matched by id: histories
    contain the items that the policy knows, and an event with an unknown item counts as a miss.

    Args:
        policy: A trained policy or a baseline.
        dataset: The dataset. Its protocol decides which events are scored and which items are excluded
            (`Dataset.with_protocol`).
        split: "test", "validation" or, for a dataset that the policy was not trained on, "all".
        ks: Lengths of the lists that metrics are computed for.
        reward: Rewards by behaviour, if they differ from the defaults. A reward column overrides them.
        batch_size: Events per batch.
        progress: Called with the number of events ranked so far and their total.

    Returns:
        The ranks, and the metrics overall and per behaviour. coverage@k is the share of the catalogue that is among the
        first k items of at least one event. reward@k is NDCG@k with each event weighted by its reward; it is left out
        if a behaviour has no reward.

    Raises:
        InputError: If the split has no scored event or no item that the policy knows, or if the policy was trained on
            all of it.

    Example:
        >>> offrec.evaluate(policy, dataset).metrics["all"]["NDCG@10"]
        >>> offrec.evaluate(policy, later.with_protocol(exclude_seen=True), "all").unknown_share
    """
    ks = _checked(ks)
    events = ScoredEvents.for_policy(policy, dataset, split, batch_size)
    batch_ranks, seen = rank_batches(policy, events, ks, progress=progress)
    return summarise(policy, events, split, ks, batch_ranks, seen, reward)


def rank_batches(
    policy: Policy,
    events: ScoredEvents,
    ks: Sequence[int],
    numbers: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Rank the scored events of some batches.

    Args:
        policy: The policy.
        events: The scored events.
        ks: Lengths of the lists whose coverage is recorded.
        numbers: The batches; None for all of them.
        progress: As in `evaluate`.

    Returns:
        The ranks of each batch, and which items were shown: bool [ks, behaviours, A].
    """
    coverage = _Coverage(len(events.dataset.behaviours), policy.n_items, ks, policy.device)
    batch_ranks = []
    behaviours = torch.tensor(np.asarray(events.behaviours), device=policy.device).long()
    with torch.no_grad():
        for batch in events.batches(progress, numbers):
            position, values, items = rank_and_top_k(events.head(policy, batch), batch.action, max(ks))
            batch_ranks.append(events.count_repeats(batch, position))
            coverage.add(behaviours[batch.event], values, items)
    return batch_ranks, coverage.seen


def summarise(
    policy: Policy,
    events: ScoredEvents,
    split: EvaluationSplit,
    ks: Sequence[int],
    batch_ranks: list[Tensor],
    seen: Tensor,
    reward: Mapping[str, float] | None,
) -> Evaluation:
    """Compute all metrics from the ranks of all batches and the items that were shown."""
    dataset, ranked = events.dataset, events.in_log_order(batch_ranks)
    rewards = event_rewards_or_none(dataset, reward or {})
    tables = {"all": ranked.metrics(ks, ranked.rewards(rewards, ks) | _coverage(seen, ks))}
    for index, name in enumerate(dataset.behaviours):
        part = ranked.for_behaviour(index)
        tables[name] = part.metrics(ks, part.rewards(rewards, ks) | _coverage(seen, ks, index))
    return Evaluation(
        policy=policy.name,
        split=split,
        fingerprint=dataset.fingerprint,
        protocol=dataset.protocol.as_json(),
        counts=dict(dataset.meta["counts"]),
        ranks=ranked,
        metrics=tables,
        unknown=len(events.missed),
    )


class _Coverage:
    """Records which items were among the first k, for each k and behaviour."""

    def __init__(self, behaviours: int, n_items: int, ks: Sequence[int], device: torch.device) -> None:
        self.ks = ks
        self.seen = torch.zeros(len(ks), behaviours, n_items, dtype=torch.bool, device=device)

    def add(self, behaviour: Tensor, values: Tensor, items: Tensor) -> None:
        for row, k in enumerate(self.ks):
            shown = values[:, :k] > ALL_MASKED  # a NaN score recommends nothing, and neither does an excluded item
            self.seen[row, behaviour[:, None].expand_as(shown)[shown], items[:, :k][shown]] = True


def _coverage(seen: Tensor, ks: Sequence[int], behaviour: int | None = None) -> dict[str, float]:
    """Return the share of items that were shown after events of one behaviour, or of any."""
    shown = seen.any(1) if behaviour is None else seen[:, behaviour]
    return {f"coverage@{k}": float(share) for k, share in zip(ks, shown.double().mean(1).tolist(), strict=True)}


def _checked(ks: Sequence[int]) -> tuple[int, ...]:
    if not ks or min(ks) < 1:
        raise InputError(f"ks must contain lengths of at least 1, for example 5, 10, 20; got {list(ks)}.")
    return tuple(ks)
