"""Values that differ only by rounding are ties; larger differences are not."""

import pytest
import torch

from offrec.catalogue import Head, rank


@pytest.mark.parametrize(("above", "expected"), [(0.0, 2), (1e-7, 2), (1e-4, 2), (-1e-4, 1)])
def test_only_rounding_differences_are_ties(above: float, expected: int) -> None:
    """The rank of the first of two items, with values 1 and 1 + above."""
    head = Head(torch.ones(1, 1), torch.tensor([[1.0], [1.0 + above]]))
    assert rank(head, torch.tensor([0])).item() == expected
