"""The GRU kernels against PyTorch's GRU, under Triton's interpreter without a GPU."""

import pytest
import torch
from torch import Tensor, nn

from offrec.backbones.gru import GRU, KERNEL_ROWS, KERNEL_STEPS
from offrec.catalogue import use_backend

pytest.importorskip("triton", reason="the kernels need triton")

pytestmark = pytest.mark.usefixtures("full_float32")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def states_and_gradients(module: nn.Module, inputs: Tensor, weights: Tensor) -> list[Tensor]:
    inputs = inputs.clone().requires_grad_()
    states: Tensor = module(inputs)
    parameters = [inputs, *module.parameters()]
    return [states.detach(), *torch.autograd.grad((states * weights).sum(), parameters)]


@pytest.mark.parametrize(("rows", "steps", "width"), [(1, 1, 3), (5, 3, 8), (33, 4, 20), (16, 5, 64), (3, 2, 128)])
def test_states_and_gradients_equal_those_of_pytorch(rows: int, steps: int, width: int) -> None:
    torch.manual_seed(0)
    module = GRU(width, 1, 0.0).to(DEVICE)
    inputs, weights = torch.randn(2, rows, steps, width, device=DEVICE)
    with use_backend("tiled"):
        expected = states_and_gradients(module, inputs, weights)
    with use_backend("kernels"):
        assert module.uses_kernels(inputs)
        ours = states_and_gradients(module, inputs, weights)
        with torch.no_grad():
            torch.testing.assert_close(module(inputs), expected[0], atol=1e-6, rtol=1e-5)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("layers", "networks", "shape", "expected"),
    [
        (1, 1, (8, KERNEL_STEPS, 64), True),
        (1, 1, (8, KERNEL_STEPS + 1, 64), False),  # cuDNN is faster
        (1, 4, (8, KERNEL_STEPS + 1, 64), True),  # but it would compute four networks one after the other
        (1, 1, (KERNEL_ROWS, 50, 64), True),
        (1, 1, (8, 4, 129), False),
        (2, 1, (8, 4, 64), False),
        (1, 1, (0, 4, 64), False),
    ],
)
def test_when_kernels_are_used(layers: int, networks: int, shape: tuple[int, int, int], expected: bool) -> None:
    module = GRU(shape[2], layers, 0.0)
    module.networks = networks
    with use_backend("kernels"):
        assert module.uses_kernels(torch.zeros(shape)) == expected
    assert not module.uses_kernels(torch.zeros(shape))  # on a CPU
