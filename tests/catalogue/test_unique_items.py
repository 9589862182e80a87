"""Unique items of each row on a CPU, by sorting: by hand, and against a comparison of all pairs."""

import pytest
import torch

from offrec.catalogue import corrections
from offrec.catalogue.corrections import unique_items


def test_a_long_row_by_hand() -> None:
    """Nine items; 9 and 11 are padding. Item 4 occurs three times, item 0 twice."""
    unique = unique_items(torch.tensor([[4, 0, 4, 8, 0, 4, 9, 9, 11]]), 9)
    assert unique.items.tolist() == [[4, 0, 9, 8, 9, 9, 9, 9, 11]]
    assert unique.filled.tolist() == [[1, 1, 0, 1, 0, 0, 0, 0, 0]]
    assert unique.clamped.tolist() == [[4, 0, 8, 8, 8, 8, 8, 8, 8]]
    assert unique.log_counts.exp().tolist() == [pytest.approx([3, 2, 3, 1, 2, 3, 2, 2, 1])]


@pytest.mark.parametrize("length", [0, 1, 7, 50, 80])
def test_sorting_equals_comparing_all_pairs(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    items = torch.randint(0, 12, (40, length), generator=torch.Generator().manual_seed(length))
    results = []
    for bound in (-1, 1000):
        monkeypatch.setattr(corrections, "MAX_COMPARED_ON_CPU", bound)
        results.append(unique_items(items, 9))
    for field in ("items", "filled", "log_counts", "clamped"):
        assert torch.equal(getattr(results[0], field), getattr(results[1], field))
