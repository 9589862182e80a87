"""SL calculated by hand, with three items and two rows."""

import math
from dataclasses import replace

import pytest
import torch

from offrec import losses
from offrec.algorithms import NeighbourMasses, Symbols
from offrec.algorithms.supervised import Supervised
from offrec.catalogue import Head


def symbols(rewards: list[float]) -> Symbols:
    table = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.double)
    head = Head(torch.tensor([[1.0], [0.0]], dtype=torch.double), table)
    column = torch.tensor(rewards, dtype=torch.double)[:, None]
    return Symbols(head, torch.tensor([[2], [0]]), column, torch.zeros_like(column), column[:, 0])


EXPECTED = [-2 + math.log(1 + math.e + math.e**2), math.log(3)]  # −log softmax([0, 1, 2])[2] and −log 1/3


def test_negative_log_likelihood() -> None:
    assert losses.negative_log_likelihood(torch.tensor([-2.5])).item() == 2.5


def test_equal_weights() -> None:
    terms = Supervised().loss(symbols([0.2, 1.0]))
    assert terms.keys() == {"cross_entropy"}
    assert terms["cross_entropy"].tolist() == pytest.approx(EXPECTED)


def test_reward_weights_do_not_depend_on_the_unit() -> None:
    small, large = (
        Supervised("reward").loss(symbols([unit * 1.0, unit * 3.0]))["cross_entropy"] for unit in (0.1, 50.0)
    )
    assert small.tolist() == pytest.approx([EXPECTED[0] * 0.5, EXPECTED[1] * 1.5])
    torch.testing.assert_close(small, large)


def test_neighbours_add_mass_and_the_network_keeps_its_own_loss() -> None:
    x = symbols([0.2, 1.0])
    masses = NeighbourMasses(torch.tensor([0.25, 0.5]).double().log(), torch.tensor([0.5, 1.0]).double().log())
    terms = Supervised(neighbours=2).loss(replace(x, neighbours=masses))
    first, second = (math.exp(-loss) for loss in EXPECTED)
    mixed = [-math.log((first + 0.25) / 1.5), -math.log((second + 0.5) / 2)]
    assert terms["cross_entropy"].tolist() == pytest.approx(mixed)
    assert terms["without_neighbours"].tolist() == pytest.approx(EXPECTED)
