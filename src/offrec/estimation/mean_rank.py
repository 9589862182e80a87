"""Order policies by the mean of their ranks under several metrics."""

from collections.abc import Sequence
from math import isnan


def order_by_mean_rank(*metrics: Sequence[float]) -> list[int | None]:
    """Order policies by the mean of their ranks under each metric; larger values are better.

    Args:
        *metrics: One value per policy and metric. NaN means that the value is unknown.

    Returns:
        The place of each policy, starting at 1. A policy with an unknown value gets None and does not count in any
        rank. Equal values share the mean of their ranks. Policies with equal mean ranks are ordered by the last
        metric; if that is equal too, they share a place.
    """
    rows = list(zip(*metrics, strict=True))
    known = [row for row in rows if not any(map(isnan, row))]
    columns = list(zip(*known, strict=True))

    def key(row: tuple[float, ...]) -> tuple[float, float]:
        return sum(_rank(value, column) for value, column in zip(row, columns, strict=True)), -row[-1]

    keys = [key(row) for row in known]
    return [None if any(map(isnan, row)) else 1 + sum(other < key(row) for other in keys) for row in rows]


def _rank(value: float, column: Sequence[float]) -> float:
    """Return the rank of a value in its column, starting at 1; ties share their mean rank."""
    return sum(other > value for other in column) + (1 + sum(other == value for other in column)) / 2
