"""What rounding can break is a tie; what differs by more is none."""

import pytest
import torch

from offrec.catalogue import Head, rank


@pytest.mark.parametrize(("above", "expected"), [(0.0, 2), (1e-7, 2), (1e-4, 2), (-1e-4, 1)])
def test_near_misses_are_no_ties(above: float, expected: int) -> None:
    """Two items of value 1 and 1 + above: the first's rank."""
    head = Head(torch.ones(1, 1), torch.tensor([[1.0], [1.0 + above]]))
    assert rank(head, torch.tensor([0])).item() == expected
