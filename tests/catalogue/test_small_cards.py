"""Whether the kernels fit the device: a simulated one with little shared memory, and the GPU if there is one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_heads import DEVICE, TestHead, compare, make
from torch import Tensor

from offrec.catalogue import Head, log_prob, maximum, rank, reduce, reference, top_k, use_backend
from offrec.catalogue.reduction import reduce_with_detached
from offrec.errors import RunError

triton = pytest.importorskip("triton", reason="the kernels need triton")

from offrec.catalogue.triton import (  # noqa: E402
    backward_kernel,
    forward_kernel,
    launch,
    search_kernels,
)
from offrec.catalogue.triton.launch import Blocks  # noqa: E402

pytestmark = pytest.mark.usefixtures("full_float32")
KERNELS = {
    "forward": forward_kernel,
    "backward_table": backward_kernel,
    "backward_rows": backward_kernel,
    "largest": search_kernels,
    "not_below": search_kernels,
    "peaks": search_kernels,
}


class SmallDevice:
    """Refuses blocks above a limit as Triton does, before anything is computed, and runs the others."""

    def __init__(self, patch: pytest.MonkeyPatch, limits: dict[str, int]) -> None:
        self.limits = limits
        self.refused: list[tuple[str, Blocks]] = []
        self.launched: list[tuple[str, Blocks]] = []
        patch.setattr(launch, "_fitting", {})
        for name in limits:
            patch.setattr(KERNELS[name], name, RefusingKernel(self, name, getattr(KERNELS[name], name)))

    def clear(self) -> None:
        self.refused.clear()
        self.launched.clear()


class RefusingKernel:
    """A kernel that raises OutOfResources for large blocks."""

    def __init__(self, device: SmallDevice, name: str, kernel: Any) -> None:
        self.device, self.name, self.kernel = device, name, kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            size = Blocks(*(constants[name] for name in ("BM", "BN", "num_warps", "num_stages")))
            needed = size.rows * size.items * size.stages
            if needed > self.device.limits[self.name]:
                self.device.refused.append((self.name, size))
                raise triton.OutOfResources(needed, self.device.limits[self.name], "shared memory")
            self.device.launched.append((self.name, size))
            self.kernel[grid](*arguments, **constants)

        return launch


def test_blocks_get_smaller_down_to_a_minimum() -> None:
    """Fewer stages, then fewer items, then fewer rows, down to the 16 × 16 of a tensor core."""
    sizes = [Blocks(64, 32, 8, 3)]
    while sizes[-1].smaller is not None:
        sizes.append(sizes[-1].smaller)
    assert [(size.rows, size.items, size.stages) for size in sizes] == [
        (64, 32, 3), (64, 32, 2), (64, 32, 1), (64, 16, 1), (32, 16, 1), (16, 16, 1),
    ]  # fmt: skip
    assert {size.warps for size in sizes} == {8}


@pytest.mark.parametrize(("corrections", "limit"), [("none", 16 * 16), ("replaced", 16 * 16), ("replaced", 64 * 32)])
def test_values_and_gradients_on_a_small_device(monkeypatch: pytest.MonkeyPatch, corrections: str, limit: int) -> None:
    """With three heads; excluded pairs must be sorted into the smaller tiles."""
    device = SmallDevice(monkeypatch, {"forward": limit, "backward_table": limit})
    heads = [make((40, 50, width), corrections, seed=seed) for seed, width in enumerate((8, 11, 4))]
    bound = torch.zeros(40, device=DEVICE)
    compare(
        heads,
        lambda pi, q, b: reduce(pi, [(1.0, pi), (-2.0, q), (0.5, b)], below=(b, bound.to(pi.dtype))),
        tolerance=5e-5,
    )
    for name in ("forward", "backward_table"):
        assert name in [refused for refused, _ in device.refused]
        assert name in [launched for launched, _ in device.launched]


def test_a_separate_pass_on_a_small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The excluded pairs of its tiles are sorted again."""
    monkeypatch.setattr(launch, "SEPARATE_WIDTH", 16)
    device = SmallDevice(monkeypatch, {"backward_rows": 16 * 16})
    q, b = (make((40, 50, width), "replaced", seed=seed).head.detach() for seed, width in ((1, 11), (2, 4)))

    def sums(pi: Head) -> list[Tensor]:
        others = [(-2.0, _as(pi.dtype, q)), (0.5, _as(pi.dtype, b))]
        return [reduce(pi, [(1.0, pi), *others]).mean]

    compare([make((40, 50, 8), "replaced")], sums, tolerance=5e-5)
    assert [size.tile for _, size in device.launched] == [(16, 16)]


def _as(dtype: torch.dtype, head: Head) -> Head:
    floats = {name: getattr(head, name) for name in ("state", "table", "bias", "values")}
    return replace(head, **{name: part.to(dtype) for name, part in floats.items() if part is not None})


def test_picked_items_on_a_small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """With bfloat16, the kernel adds the gradients of picked items."""
    device = SmallDevice(monkeypatch, {"backward_table": 32 * 16})
    actions = torch.tensor([0, 15, 16, 31, 99], device=DEVICE).repeat(14).reshape(70, 1)
    compare([make((70, 100, 16), dtype=torch.bfloat16)], lambda head: [log_prob(head, actions)], tolerance=0.01)
    assert device.launched == [("backward_table", Blocks(32, 16, 4, 1))]


@pytest.mark.parametrize("corrections", ["none", "replaced"])
def test_maximum_top_k_and_rank_on_a_small_device(monkeypatch: pytest.MonkeyPatch, corrections: str) -> None:
    device = SmallDevice(monkeypatch, {"largest": 32 * 16, "not_below": 64 * 32, "peaks": 16 * 16})
    head = make((40, 150, 8), corrections).head.detach()
    target = torch.randint(0, 150, (40,), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    with use_backend("kernels"):
        values, items = maximum(head)
        best, order = top_k(head, 12)
        position = rank(head, target)
    expected = reference.top_k(head, 12)
    assert torch.equal(items, expected[1][:, 0])
    torch.testing.assert_close(values, expected[0][:, 0])
    assert torch.equal(order, expected[1])
    torch.testing.assert_close(best, expected[0])
    assert torch.equal(position, reference.rank(head, target))
    assert {name: size.tile for name, size in device.launched} == {
        "largest": (32, 16), "not_below": (64, 32), "peaks": (16, 16),
    }  # fmt: skip


def everything(made: TestHead) -> None:
    with use_backend("kernels"):
        reduce(made.head, [(1.0, made.head)]).mean.sum().backward()
        top_k(made.head.detach(), 3)


def test_the_fitting_size_is_searched_once_per_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that needs less memory keeps its larger blocks."""
    device = SmallDevice(monkeypatch, {"forward": 64 * 16, "backward_table": 1 << 30, "peaks": 64 * 64})
    made = make((20, 30, 8), "added")
    everything(made)
    first = list(device.launched)
    assert {name for name, _ in device.refused} == {"forward", "peaks"}
    assert dict(first)["forward"] == Blocks(64, 16, 4, 1)
    assert dict(first)["backward_table"] == launch.BACKWARD[4, "one"][64]
    device.clear()
    everything(made)
    assert device.refused == []
    assert device.launched == first


@pytest.mark.parametrize("kernel", ["forward", "backward_table", "peaks"])
def test_the_error_on_a_too_small_device_says_what_to_do(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    SmallDevice(monkeypatch, {kernel: 255})
    made = make((9, 40, 8), "added")
    with pytest.raises(RunError) as caught:
        everything(made)
    assert str(caught.value).replace("cuda:0", "cuda") == (
        f"The kernels do not fit the device {DEVICE}: the smallest blocks need 256 bytes of shared memory, "
        "and the device has 255; set catalogue=tiled."
    )


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [64, 128, 256])
def test_four_heads_fit_the_gpu(width: int, dtype: torch.dtype) -> None:
    """With TF32, the largest operands, with and without a backward pass."""
    torch.set_float32_matmul_precision("high")
    made = [make((300, 3000, width), "replaced", seed=seed, dtype=dtype) for seed in range(4)]
    pi, q, b, stay = (one.head for one in made)
    with use_backend("kernels"):
        for learns in (False, True):
            with torch.set_grad_enabled(learns):
                sums, detached = reduce_with_detached(pi, [(1.0, q), (-0.5, b)], [(1.0, stay)], normalised=b)
    sums.mean.sum().backward()
    with torch.no_grad():
        exact = [one.double().head for one in made]
        true = reference.reduce(exact[0], [(1.0, exact[1]), (-0.5, exact[2])])[1]
        true_detached, true_lse = reference.reduce(exact[0], [(1.0, exact[3])])[1], reference.logsumexp(exact[2])
    for mine, its in ((sums.mean, true), (detached.mean, true_detached), (detached.lse, true_lse)):
        assert (mine - its).abs().max() < 0.1 * width**0.5
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in made[0].leaves)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("width", [16, 64, 128, 256])
def test_every_block_size_fits_the_gpu(width: int, heads: int, dtype: torch.dtype) -> None:
    """With TF32 and corrections: a kernel that compiles must also launch."""
    torch.set_float32_matmul_precision("high")
    made = [make((300, 3000, width), "replaced", seed=seed, dtype=dtype) for seed in range(heads)]
    with use_backend("kernels"):
        sums = reduce(made[0].head, [(1.0 - i, one.head) for i, one in enumerate(made)])
        (sums.mean + sums.lse).sum().backward()
        if heads == 1 and dtype == torch.float32:
            head = made[0].head.detach()
            items = top_k(head, 20)[1]
            assert torch.equal(items, reference.top_k(made[0].double().head, 20)[1])
            assert torch.equal(maximum(head)[1], items[:, 0])
            position = rank(head, items[:, 3])  # values that differ only by rounding are ties
            assert position.min() == 4
            assert (position > 4).float().mean() < 0.02
    with torch.no_grad():
        exact = [one.double().head for one in made]
        true = reference.reduce(exact[0], [(1.0 - i, head) for i, head in enumerate(exact)], None)
    assert (sums.lse - true[0]).abs().max() < 0.05 * width**0.5
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for one in made[:1] for leaf in one.leaves)
