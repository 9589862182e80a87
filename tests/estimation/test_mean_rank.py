"""Orders by mean rank, worked out by hand."""

import math

import pytest

from offrec.estimation.mean_rank import order_by_mean_rank

NAN = math.nan


def test_places_by_hand() -> None:
    """Ranks 1 2 3 4 and 3 1 4 2: sums 4, 3, 7, 6."""
    assert order_by_mean_rank([9.0, 8.0, 7.0, 6.0], [0.2, 0.9, 0.1, 0.5]) == [2, 1, 4, 3]
    assert order_by_mean_rank([0.5, -1.0, 2.0]) == [2, 3, 1]


def test_the_last_metric_decides_between_equal_mean_ranks() -> None:
    assert order_by_mean_rank([2.0, 1.0], [5.0, 6.0]) == [2, 1]
    assert order_by_mean_rank([5.0, 6.0], [2.0, 1.0]) == [1, 2]


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    """Ranks 1.5 1.5 3 and 2 3 1: sums 3.5, 4.5, 4."""
    assert order_by_mean_rank([1.0, 1.0, 0.0], [2.0, 1.0, 3.0]) == [1, 3, 2]


def test_equal_policies_share_a_place() -> None:
    assert order_by_mean_rank([1.0, 3.0, 1.0, 0.0], [1.0, 3.0, 1.0, 0.0]) == [2, 1, 2, 4]


def test_a_policy_with_an_unknown_value_has_no_place_and_counts_in_no_rank() -> None:
    """If the third policy counted, the first two would have equal mean ranks."""
    assert order_by_mean_rank([2.0, 1.0, 9.0], [1.0, 1.5, NAN]) == [2, 1, None]
    assert order_by_mean_rank([NAN, NAN], [1.0, 2.0]) == [None, None]
    assert order_by_mean_rank([], []) == []


def test_metrics_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        order_by_mean_rank([1.0], [1.0, 2.0])
