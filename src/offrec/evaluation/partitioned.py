"""Evaluate a policy on several machines: each ranks some batches of events.

The batches are those of one machine, so every rank is computed from the same numbers. The ranks are put into the order
of the log before any metric is computed, so the metrics are those of one machine too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from offrec.data.dataset import Dataset
from offrec.evaluation.ranking import Evaluation, rank_batches, summarise
from offrec.evaluation.ranks import KS
from offrec.evaluation.scored_events import BATCH_SIZE, EvaluationSplit, Progress, ScoredEvents
from offrec.policy import Policy
from offrec.types import Bytes, Longs

LoadPolicy = Callable[[Dataset], Policy]  # the dataset is the one to evaluate on


class MapEngine(Protocol):
    """Calls a function for many parts, such as `offrec.scale.ray_engine.RayEngine`."""

    slots: int

    def map(self, step: Callable[..., Any], parts: Sequence[Any], *shared: Any) -> Iterator[Any]: ...


@dataclass(frozen=True)
class _Task:
    """What a machine needs to rank batches."""

    load: LoadPolicy
    dataset: Path
    protocol: dict[str, Any]
    split: EvaluationSplit
    ks: tuple[int, ...]
    batch_size: int


def evaluate_on(
    engine: MapEngine,
    load: LoadPolicy,
    policy: Policy,
    dataset: Dataset,
    split: EvaluationSplit = "test",
    *,
    reward: Mapping[str, float] | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate a policy as `offrec.evaluate` does, with the batches ranked through an engine.

    Args:
        engine: Where batches are ranked. All machines need the folders of the policy and of the dataset.
        load: Loads the policy there.
        policy: The same policy, on this machine.
        dataset: The dataset, as for `offrec.evaluate`.
        split: The split.
        reward: Rewards by behaviour.
        batch_size: Events per batch.
        progress: Called with the number of events ranked so far and their total.

    Returns:
        The same evaluation.
    """
    events = ScoredEvents.for_policy(policy, dataset, split, batch_size)
    task = _Task(load, dataset.path.resolve(), dataset.protocol.as_json(), split, KS, batch_size)
    count, total, done = len(events.sizes), sum(events.sizes), 0
    groups = [list(range(first, count, 2 * engine.slots)) for first in range(min(count, 2 * engine.slots))]
    batch_ranks: dict[int, torch.Tensor] = {}
    seen: Bytes | None = None
    for numbers, (ranks, shown) in zip(groups, engine.map(_rank_group, groups, task), strict=True):
        batch_ranks |= {number: torch.from_numpy(rank.copy()) for number, rank in zip(numbers, ranks, strict=True)}
        seen = shown if seen is None else seen | shown
        done += sum(events.sizes[number] for number in numbers)
        if progress is not None:
            progress(done, total)
    assert seen is not None
    shape = (len(KS), len(dataset.behaviours), policy.n_items)
    bits = np.unpackbits(seen, count=int(np.prod(shape))).reshape(shape).astype(np.bool_)
    ordered = [batch_ranks[number] for number in range(count)]
    return summarise(policy, events, split, KS, ordered, torch.from_numpy(bits), reward)


def _rank_group(numbers: list[int], task: _Task) -> tuple[list[Longs], Bytes]:
    """Rank some batches; return their ranks, and which items were shown, as bits."""
    dataset = Dataset.open(task.dataset)
    scoring = ("score_first", "unseen", "score_last", "exclude_seen", "skip_recent")
    dataset = dataset.with_protocol(**{name: task.protocol[name] for name in scoring if name in task.protocol})
    policy = task.load(dataset)
    events = ScoredEvents.for_policy(policy, dataset, task.split, task.batch_size)
    ranks, seen = rank_batches(policy, events, task.ks, numbers)
    return [rank.cpu().numpy() for rank in ranks], np.packbits(seen.cpu().numpy())
