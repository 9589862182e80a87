"""The GRU kernels against PyTorch's GRU, under Triton's interpreter without a GPU."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offrec.backbones.gru import GRU, KERNEL_ROWS, KERNEL_STEPS
from offrec.catalogue import use_backend

triton = pytest.importorskip("triton", reason="the kernels need triton")

pytestmark = pytest.mark.usefixtures("full_float32")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def states_and_gradients(module: nn.Module, inputs: Tensor, weights: Tensor) -> list[Tensor]:
    inputs = inputs.clone().requires_grad_()
    states: Tensor = module(inputs)
    parameters = [inputs, *module.parameters()]
    return [states.detach(), *torch.autograd.grad((states * weights).sum(), parameters)]


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize(("rows", "steps", "width"), [(1, 1, 3), (5, 3, 8), (33, 4, 20), (16, 5, 64), (3, 2, 128)])
def test_states_and_gradients_equal_those_of_pytorch(
    rows: int, steps: int, width: int, hold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offrec.backbones import gru_on_gpu  # needs triton

    if width <= 64 or not torch.cuda.is_available():  # three TF32 products at width 128 do not fit a GPU
        monkeypatch.setattr(gru_on_gpu, "_holds_weights", lambda *arguments: hold)
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("width", [64, 128])
def test_states_and_gradients_in_tf32(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in training. cuDNN's products of the inputs are TF32, too."""
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    torch.manual_seed(0)
    module = GRU(width, 1, 0.0).to(DEVICE)
    inputs, weights = torch.randn(2, 40, 6, width, device=DEVICE)
    with use_backend("tiled"):
        expected = states_and_gradients(module, inputs, weights)
    with use_backend("kernels"):
        ours = states_and_gradients(module, inputs, weights)
    for one, other in zip(ours, expected, strict=True):
        assert (one - other).abs().max() < 3e-3 * other.abs().max()


class Refused:
    """A kernel that does not fit the device if it holds its weights, or at all; it records its constants."""

    def __init__(self, kernel: Any, fits: dict[bool, bool]) -> None:
        self.kernel, self.fits, self.launched = kernel, fits, list[dict[str, Any]]()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            if not self.fits[constants["HOLD"]]:
                raise triton.OutOfResources(2, 1, "shared memory")
            self.launched.append(constants)
            self.kernel[grid](*arguments, **constants)

        return launch


@pytest.mark.parametrize("kernel", ["forward_steps", "backward_steps"])
@pytest.mark.parametrize("streams", [True, False])
def test_devices_with_little_shared_memory(kernel: str, streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are loaded in every step instead; if a kernel does not fit even then, PyTorch computes the states."""
    from offrec.backbones import gru_kernels, gru_on_gpu  # need triton

    gru_on_gpu._holds_weights.cache_clear()
    refused = Refused(getattr(gru_kernels, kernel), {True: False, False: streams})
    monkeypatch.setattr(gru_kernels, kernel, refused)
    module, inputs = GRU(20, 1, 0.0).to(DEVICE), torch.randn(3, 4, 20, device=DEVICE)
    with use_backend("tiled"):
        expected = states_and_gradients(module, inputs, torch.ones_like(inputs))
    with use_backend("kernels"):
        assert module.uses_kernels(inputs) == streams
        ours = states_and_gradients(module, inputs, torch.ones_like(inputs))
    gru_on_gpu._holds_weights.cache_clear()
    assert bool(refused.launched) == streams
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("width", [1, 20, 128])
def test_the_check_of_the_device_reads_no_memory_beyond_its_tensor(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels load U even if there is nothing to compute."""
    from offrec.backbones import gru_kernels, gru_on_gpu  # need triton

    sizes = []

    class Recorded:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, **constants: sizes.extend(
                one.numel() for one in arguments if isinstance(one, torch.Tensor)
            )

    gru_on_gpu._holds_weights.cache_clear()
    monkeypatch.setattr(gru_kernels, "forward_steps", Recorded())
    monkeypatch.setattr(gru_kernels, "backward_steps", Recorded())
    gru_on_gpu._holds_weights(width, DEVICE, "tf32")
    gru_on_gpu._holds_weights.cache_clear()
    assert len(sizes) == 13
    assert min(sizes) >= max(3 * width * width, gru_on_gpu.GATES * width)


def test_nothing_is_kept_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    from offrec.backbones import gru_kernels  # needs triton

    recorded = Refused(gru_kernels.forward_steps, {True: True, False: True})
    module, inputs = GRU(8, 1, 0.0).to(DEVICE), torch.randn(3, 4, 8, device=DEVICE)
    with use_backend("kernels"):
        module.uses_kernels(inputs)  # launches the kernels once
        monkeypatch.setattr(gru_kernels, "forward_steps", recorded)
        module(inputs)
        with torch.no_grad():
            module(inputs)
    assert [constants["KEEP"] for constants in recorded.launched] == [True, False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_use_pytorch(dtype: torch.dtype) -> None:
    module, inputs = GRU(8, 1, 0.0).to(DEVICE, dtype), torch.randn(3, 4, 8, device=DEVICE, dtype=dtype)
    with use_backend("kernels"):
        assert not module.uses_kernels(inputs)
        assert module(inputs).dtype == dtype


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
