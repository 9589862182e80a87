"""Which policy to try first, where two figures that err differently speak of the same policies."""

from collections.abc import Sequence
from math import isnan


def order_by_mean_rank(*figures: Sequence[float]) -> list[int | None]:
    """Places from 1, by the mean of the ranks that each figure gives, larger being better.

    A policy that any figure lacks (NaN) gets None and no rank of anything. Equals of a figure share the mean of their
    ranks. Of equal means the better by the last figure comes first; equals by that too share a place, and the next
    one's is as many further.
    """
    rows = list(zip(*figures, strict=True))
    there = [row for row in rows if not any(map(isnan, row))]
    columns = list(zip(*there, strict=True))

    def key(row: tuple[float, ...]) -> tuple[float, float]:
        return sum(_rank(value, column) for value, column in zip(row, columns, strict=True)), -row[-1]

    keys = [key(row) for row in there]
    return [None if any(map(isnan, row)) else 1 + sum(one < key(row) for one in keys) for row in rows]


def _rank(value: float, among: Sequence[float]) -> float:
    """From 1; `among` holds the value itself."""
    return sum(one > value for one in among) + (1 + sum(one == value for one in among)) / 2
