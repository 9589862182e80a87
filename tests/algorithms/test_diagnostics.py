"""Diagnostics of a ranking that is not a distribution, calculated by hand."""

import math

import pytest
import torch

from offrec.algorithms import diagnostics
from offrec.catalogue import Head
from offrec.models.critic import within_support

# Twelve items: π̂_b takes the first with .5, nine with almost nothing, the last two with .25 each.
LOG_B = torch.tensor([[math.log(0.5), *[math.log(1e-6)] * 9, math.log(0.25), math.log(0.25)]])


def row(values: torch.Tensor) -> Head:
    """A head with one row of values [1, A]."""
    return Head(torch.ones(1, 1), values[0][:, None].contiguous())


@pytest.fixture
def b() -> Head:
    return row(LOG_B)


def test_a_ranking_is_uniform_over_its_top_ten(b: Head) -> None:
    """The top ten are the likeliest item and nine rare ones."""
    found = diagnostics.ranking_diagnostics(row(-torch.arange(12.0)[None]), b)
    assert float(found["~entropy"]) == pytest.approx(math.log(10))
    assert float(found["~rare"]) == pytest.approx(0.9)
    assert float(found["~kl_to_logging"]) == pytest.approx(
        -math.log(10) - (math.log(0.5) + 9 * math.log(1e-6)) / 10, abs=1e-4
    )


def test_only_items_inside_the_support_count(b: Head) -> None:
    """Three items have π̂_b ≥ 0.1, so each has probability 1/3."""
    found = diagnostics.ranking_diagnostics(within_support(row(torch.arange(12.0)[None]), b, 0.1), b)
    assert float(found["~entropy"]) == pytest.approx(math.log(3))
    assert float(found["~rare"]) == 0.0
    assert float(found["~kl_to_logging"]) == pytest.approx(-math.log(3) - math.log(0.5 * 0.25 * 0.25) / 3, abs=1e-4)
