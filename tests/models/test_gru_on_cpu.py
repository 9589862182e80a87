"""The GRU layer for training on a CPU: a step by hand, and PyTorch's outputs and gradients."""

import math

import pytest
import torch

from offrec.backbones.gru import GRU
from offrec.backbones.gru_on_cpu import GRULayer


def test_a_step_by_hand() -> None:
    """Width 1, one row, two steps; all biases are 0 except c_n = 1."""
    w, u = torch.tensor([[0.5], [-1.0], [2.0]]), torch.tensor([[1.0], [0.5], [-1.0]])
    b, c = torch.zeros(3), torch.tensor([0.0, 0.0, 1.0])
    states = GRULayer.apply(torch.tensor([[[1.0], [-1.0]]]), w, u, b, c)[0, :, 0].tolist()

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    n = math.tanh(2 + sigmoid(0.5) * 1)
    first = n + sigmoid(-1) * (0 - n)
    n = math.tanh(-2 + sigmoid(-0.5 + first) * (1 - first))
    second = n + sigmoid(1 + 0.5 * first) * (first - n)
    assert states == pytest.approx([first, second], abs=1e-6)


@pytest.mark.parametrize("shape", [(5, 7, 4), (3, 1, 4), (1, 6, 8)])
def test_outputs_and_gradients_are_those_of_pytorch(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    module = GRU(shape[2], 1, 0.0).double()
    inputs, weight = (torch.randn(shape, dtype=torch.double) for _ in range(2))
    inputs.requires_grad_()
    results = []
    for is_fast in (False, True):
        module.has_fast_backward = is_fast
        states = module(inputs)
        results.append((states, *torch.autograd.grad((weight * states).sum(), [inputs, *module.parameters()])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_several_layers_and_inference_use_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRULayer, "apply", lambda *_: pytest.fail("the fast layer was used"))
    deep, single = GRU(4, 2, 0.0), GRU(4, 1, 0.0)
    deep.has_fast_backward = single.has_fast_backward = True
    deep(torch.zeros(1, 2, 4))
    with torch.no_grad():
        single(torch.zeros(1, 2, 4))
