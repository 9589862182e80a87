"""Which to try first: places by the mean of ranks, worked by hand."""

import math

import pytest

from offrec.estimation.mean_rank import order_by_mean_rank

NAN = math.nan


def test_places_by_hand() -> None:
    """Ranks 1 2 3 4 and 3 1 4 2: sums 4, 3, 7, 6."""
    assert order_by_mean_rank([9.0, 8.0, 7.0, 6.0], [0.2, 0.9, 0.1, 0.5]) == [2, 1, 4, 3]
    assert order_by_mean_rank([0.5, -1.0, 2.0]) == [2, 3, 1]


def test_of_equal_means_the_better_by_the_last_figure_comes_first() -> None:
    assert order_by_mean_rank([2.0, 1.0], [5.0, 6.0]) == [2, 1]
    assert order_by_mean_rank([5.0, 6.0], [2.0, 1.0]) == [1, 2]


def test_equals_of_a_figure_share_the_mean_of_their_ranks() -> None:
    """Ranks 1.5 1.5 3 and 2 3 1: sums 3.5, 4.5, 4. With a rank of 1 for both the second would be equal to the third."""
    assert order_by_mean_rank([1.0, 1.0, 0.0], [2.0, 1.0, 3.0]) == [1, 3, 2]


def test_equals_by_everything_share_a_place() -> None:
    assert order_by_mean_rank([1.0, 3.0, 1.0, 0.0], [1.0, 3.0, 1.0, 0.0]) == [2, 1, 2, 4]


def test_what_a_figure_lacks_has_no_place_and_takes_none() -> None:
    """The third would be first by the first figure, and so put the second before the first."""
    assert order_by_mean_rank([2.0, 1.0, 9.0], [1.0, 1.5, NAN]) == [2, 1, None]
    assert order_by_mean_rank([NAN, NAN], [1.0, 2.0]) == [None, None]
    assert order_by_mean_rank([], []) == []


def test_figures_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        order_by_mean_rank([1.0], [1.0, 2.0])
