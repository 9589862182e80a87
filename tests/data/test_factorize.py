"""Factorizing ids, compared with numpy.unique."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offrec.data import factorize

numbers = st.lists(
    st.one_of(st.integers(-5, 5), st.integers(-(10**5), 10**5), st.integers(10**9, 10**9 + 9)), min_size=1, max_size=50
)


@given(ids=numbers)
def test_integers_are_numbered_in_ascending_order(ids: list[int]) -> None:
    distinct, indices = factorize.factorize_sorted(pl.Series(ids, dtype=pl.Int64))
    expected, inverse = np.unique(ids, return_inverse=True)
    assert np.array_equal(distinct, expected)
    assert np.array_equal(indices, inverse)


def test_ids_too_far_apart_for_a_table_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    distant = [2**62, -(2**62), 5, 2**62]
    assert factorize._factorize_by_table(np.array(distant)) is None
    assert factorize.factorize_sorted(pl.Series(distant))[1].tolist() == [2, 0, 1, 2]
    monkeypatch.setattr(factorize, "MAX_TABLE_SIZE", 4096)
    assert factorize._factorize_by_table(np.array([0, 10_000])) is None


def test_text_is_numbered_in_the_order_of_its_bytes() -> None:
    distinct, indices = factorize.factorize_sorted(pl.Series(["b", "ä", "a", "b"]))
    assert distinct == ["a", "b", "ä"]
    assert indices.tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize("convert", [int, str])
@given(ids=numbers)
def test_sessions_are_numbered_by_first_appearance(convert: type, ids: list[int]) -> None:
    numbers = factorize.factorize_by_appearance(pl.Series([convert(number) for number in ids]))
    order = list(dict.fromkeys(ids))
    assert numbers.tolist() == [order.index(number) for number in ids]


def test_missing_ids_count_as_one_id() -> None:
    assert factorize.factorize_by_appearance(pl.Series([None, "a", None, "a"])).tolist() == [0, 1, 0, 1]
    assert factorize.factorize_by_appearance(pl.Series([None, None, 4, None], dtype=pl.Int64)).tolist() == [0, 0, 1, 0]
