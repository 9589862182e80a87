"""Operations with gradients of their own on a GPU, against PyTorch's gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding

from offrec.catalogue import use_backend
from offrec.models import gpu_gradients


def gradients(of: Callable[..., Tensor], *parameters: Tensor) -> list[Tensor]:
    result = of(*parameters)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result)
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), parameters)]


def test_lookup_with_repeated_items() -> None:
    table, items = torch.randn(7, 3, requires_grad=True), torch.tensor([[0, 6, 6], [2, 0, 6]])
    expected = gradients(lambda table: embedding(items, table), table)
    for ours, theirs in zip(
        gradients(lambda table: gpu_gradients._Lookup.apply(table, items), table), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_scale() -> None:
    matrix, factor = torch.randn(5, 3, requires_grad=True), torch.tensor(0.3, requires_grad=True)
    expected = gradients(lambda matrix, factor: factor * matrix, matrix, factor)
    for ours, theirs in zip(gradients(gpu_gradients._Scale.apply, matrix, factor), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("rows", [0, 100])
def test_add_to_rows(rows: int) -> None:
    pytest.importorskip("triton", reason="the kernels need triton")
    table, row = torch.randn(rows, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    expected = gradients(torch.add, table, row)
    with use_backend("kernels"):
        for ours, theirs in zip(gradients(gpu_gradients.add_to_rows, table, row), expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
