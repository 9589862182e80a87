"""The GRU layer for fits on a CPU: a step by hand, PyTorch's outputs and gradients, and packed sequences."""

import math

import pytest
import torch
from torch import Tensor

from offrec.backbones.gru import GRU
from offrec.backbones.gru_on_cpu import GRULayer, Packing


def test_a_step_by_hand() -> None:
    """Width 1, one row, two steps; all biases are 0 except c_n = 1."""
    w, u = torch.tensor([[0.5], [-1.0], [2.0]]), torch.tensor([[1.0], [0.5], [-1.0]])
    b, c = torch.zeros(3), torch.tensor([0.0, 0.0, 1.0])
    packing = Packing.of(torch.tensor([2]), 2)
    states = GRULayer.apply(torch.tensor([[1.0], [-1.0]]), w, u, b, c, packing)[:, 0].tolist()

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    n = math.tanh(2 + sigmoid(0.5) * 1)
    first = n + sigmoid(-1) * (0 - n)
    n = math.tanh(-2 + sigmoid(-0.5 + first) * (1 - first))
    second = n + sigmoid(1 + 0.5 * first) * (first - n)
    assert states == pytest.approx([first, second], abs=1e-6)


def outputs_and_gradients(module: GRU, inputs: Tensor, weight: Tensor) -> list[Tensor]:
    states = module(inputs)
    return [states, *torch.autograd.grad((weight * states).sum(), [inputs, *module.parameters()])]


@pytest.mark.parametrize("shape", [(5, 7, 4), (3, 1, 4), (1, 6, 8)])
def test_outputs_and_gradients_are_those_of_pytorch(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    module = GRU(shape[2], 1, 0.0).double()
    inputs, weight = (torch.randn(shape, dtype=torch.double) for _ in range(2))
    inputs.requires_grad_()
    expected = outputs_and_gradients(module, inputs, weight)
    module.is_fast_on_cpu = True
    for one, other in zip(outputs_and_gradients(module, inputs, weight), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_a_packing_by_hand() -> None:
    """Sequences of 1, 3 and 2 elements: the first step has all of them, the longest first."""
    packing = Packing.of(torch.tensor([1, 3, 2]), 4)
    assert packing.padded.tolist() == [4, 8, 0, 5, 9, 6]
    assert packing.before.tolist() == [0, 1, 3]
    assert packing.edges == [0, 3, 5, 6, 6]
    assert packing.places(torch.tensor([0, 4, 5, 6, 9])).tolist() == [2, 0, 3, 5, 4]


@pytest.mark.parametrize("lengths", [[1, 3, 2], [4, 4], [1], [2, 5, 5, 1, 3]])
def test_packed_sequences_are_those_that_are_padded(lengths: list[int]) -> None:
    """Outputs and gradients equal those of padded sequences whose padding does not count."""
    torch.manual_seed(0)
    steps, width = max(lengths), 4
    module = GRU(width, 1, 0.0).double()
    inputs, weight = (torch.randn(len(lengths), steps, width, dtype=torch.double) for _ in range(2))
    inputs.requires_grad_()
    weight = weight * (torch.arange(steps) < torch.tensor(lengths)[:, None])[:, :, None]
    expected = outputs_and_gradients(module, inputs, weight)
    packing = Packing.of(torch.tensor(lengths), steps)
    states = module.packed_states(inputs.flatten(0, 1)[packing.padded], packing)
    loss = (weight.flatten(0, 1)[packing.padded] * states).sum()
    found = torch.autograd.grad(loss, [inputs, *module.parameters()])
    torch.testing.assert_close(states, expected[0].flatten(0, 1)[packing.padded], atol=1e-12, rtol=1e-12)
    for one, other in zip(found, expected[1:], strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_several_layers_use_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRULayer, "apply", lambda *_: pytest.fail("the fast layer was used"))
    deep, single = GRU(4, 2, 0.0), GRU(4, 1, 0.0)
    deep.is_fast_on_cpu = True
    deep(torch.zeros(1, 2, 4))
    single(torch.zeros(1, 2, 4))
