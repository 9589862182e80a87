"""Numbers for ids, against numpy's own."""

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
def test_items_are_numbered_by_id(ids: list[int]) -> None:
    distinct, places = factorize.factorize_sorted(pl.Series(ids, dtype=pl.Int64))
    expected, inverse = np.unique(ids, return_inverse=True)
    assert np.array_equal(distinct, expected)
    assert np.array_equal(places, inverse)


def test_ids_that_lie_too_far_apart_for_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    far = [2**62, -(2**62), 5, 2**62]
    assert factorize._factorize_by_table(np.array(far)) is None
    assert factorize.factorize_sorted(pl.Series(far))[1].tolist() == [2, 0, 1, 2]
    monkeypatch.setattr(factorize, "MAX_TABLE_SIZE", 4096)
    assert factorize._factorize_by_table(np.array([0, 10_000])) is None


def test_text_is_numbered_by_its_bytes() -> None:
    distinct, places = factorize.factorize_sorted(pl.Series(["b", "ä", "a", "b"]))
    assert distinct == ["a", "b", "ä"]
    assert places.tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize("spell", [int, str])
@given(ids=numbers)
def test_sessions_are_numbered_as_they_appear(spell: type, ids: list[int]) -> None:
    found = factorize.factorize_by_appearance(pl.Series([spell(number) for number in ids]))
    order = list(dict.fromkeys(ids))
    assert found.tolist() == [order.index(number) for number in ids]


def test_a_missing_user_is_a_user() -> None:
    assert factorize.factorize_by_appearance(pl.Series([None, "a", None, "a"])).tolist() == [0, 1, 0, 1]
    assert factorize.factorize_by_appearance(pl.Series([None, None, 4, None], dtype=pl.Int64)).tolist() == [0, 0, 1, 0]
