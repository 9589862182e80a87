"""Ranking metrics as functions of ranks, and their registry. Rank 1 is best.

Each event has one relevant item, the item that came next.

    HR@k   = 1[rank ≤ k]
    NDCG@k = 1[rank ≤ k] / log2(1 + rank)      the ideal list ranks the item first, with gain 1
    MRR@k  = 1[rank ≤ k] / rank

Each is averaged over events (micro-average).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offrec.plugins import Registry, check_callable, check_texts
from offrec.types import Longs

Doubles = NDArray[np.float64]


def hit_rate(rank: Longs, k: int) -> Doubles:
    """[N] 1 if the item is among the first k."""
    return np.where(rank <= k, 1.0, 0.0)


def ndcg(rank: Longs, k: int) -> Doubles:
    """[N] discounted gain of the one relevant item."""
    return np.where(rank <= k, 1.0 / np.log2(1.0 + rank), 0.0)


def reciprocal_rank(rank: Longs, k: int) -> Doubles:
    """[N] 1 / rank if the item is among the first k."""
    return np.where(rank <= k, 1.0 / rank, 0.0)


@dataclass(frozen=True)
class MetricRecord:
    """A ranking metric as commands and reports see it.

    Args:
        name: The name in tables: "NDCG" appears as NDCG@5, NDCG@10 and NDCG@20.
        compute: Computes one value per event, [N], from the ranks [N] (1 is best) and the length k of the list.
        help: One line that says what the metric measures.
    """

    name: str
    compute: Callable[[Longs, int], Doubles]
    help: str


def _check(record: MetricRecord) -> str | None:
    return check_texts(record, ("help",)) or check_callable(record, "compute")


METRICS: Registry[MetricRecord] = Registry("metric", MetricRecord, _check, upper_case=True)


def register_metric(record: MetricRecord) -> MetricRecord:
    """Register a metric, so that every command computes it.

    Args:
        record: Its record.

    Returns:
        The same record.

    Raises:
        InputError: If the record is not valid, or another metric has this name.

    Example:
        >>> hit_at_one = lambda rank, k: (rank == 1).astype(float)
        >>> offrec.register_metric(offrec.MetricRecord("First", hit_at_one, "Share of events ranked first."))
    """
    return METRICS.register(record)


for _record in (
    MetricRecord("HR", hit_rate, "Hit rate: the share of events whose item is among the first k."),
    MetricRecord("NDCG", ndcg, "Normalised discounted cumulative gain of the one relevant item."),
    MetricRecord("MRR", reciprocal_rank, "Mean reciprocal rank, 0 beyond k."),
):
    register_metric(_record)


@dataclass(frozen=True)
class MetricValues:
    """Means over `events` events; empty without events."""

    events: int
    values: dict[str, float]  # "HR@5" → its mean

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def compute_metrics(rank: Longs, ks: Sequence[int], more: dict[str, float] | None = None) -> MetricValues:
    """Compute every registered metric at every k; `more` contains values that were computed elsewhere."""
    if len(rank) == 0:
        return MetricValues(0, {})
    values = {f"{metric.name}@{k}": float(metric.compute(rank, k).mean()) for metric in METRICS.values() for k in ks}
    return MetricValues(len(rank), {**values, **(more or {})})
