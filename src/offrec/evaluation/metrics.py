"""Ranking figures as functions of ranks alone. An event has one right answer, the item that came next; rank 1 is best.

    HR@k   = 1[rank ≤ k]
    NDCG@k = 1[rank ≤ k] / log2(1 + rank)      the ideal list has the item first, whose gain is 1
    MRR@k  = 1[rank ≤ k] / rank

Each is averaged over events (micro-average). Nothing here knows of policies or datasets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offrec.types import Longs

Doubles = NDArray[np.float64]


def hit_rate(rank: Longs, k: int) -> Doubles:
    """[N] 1 where the item is among the first k."""
    return np.where(rank <= k, 1.0, 0.0)


def ndcg(rank: Longs, k: int) -> Doubles:
    """[N] discounted gain of the one relevant item."""
    return np.where(rank <= k, 1.0 / np.log2(1.0 + rank), 0.0)


def reciprocal_rank(rank: Longs, k: int) -> Doubles:
    """[N] 1 / rank where the item is among the first k."""
    return np.where(rank <= k, 1.0 / rank, 0.0)


PER_EVENT = {"HR": hit_rate, "NDCG": ndcg, "MRR": reciprocal_rank}


@dataclass(frozen=True)
class MetricValues:
    """Averages over `events` events; no events, no figures."""

    events: int
    values: dict[str, float]  # "HR@5" → …

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def compute_metrics(rank: Longs, ks: Sequence[int], more: dict[str, float] | None = None) -> MetricValues:
    """HR, NDCG and MRR at every k over the events given, and what else was measured on them."""
    if len(rank) == 0:
        return MetricValues(0, {})
    values = {f"{name}@{k}": float(of(rank, k).mean()) for name, of in PER_EVENT.items() for k in ks}
    return MetricValues(len(rank), {**values, **(more or {})})
