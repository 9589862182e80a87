"""A metric: the share of events whose item is ranked first, whatever k is."""

import numpy as np

import offrec
from offrec.types import Doubles, Longs


def first(rank: Longs, k: int) -> Doubles:
    """[N] 1 if the rank is 1."""
    return np.where(rank == 1, 1.0, 0.0)


offrec.register_metric(offrec.MetricRecord("First", first, "Share of events whose item is ranked first."))
