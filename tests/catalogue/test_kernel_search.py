"""Argmax, rank, top-k and the values of single items with kernels, under Triton's interpreter without a GPU."""

import pytest
import torch
from kernel_heads import CORRECTIONS, DEVICE, SHAPES, compare, make

from offrec.catalogue import Head, maximum, rank, reference, top_k, use_backend

pytest.importorskip("triton", reason="the kernels need triton")

pytestmark = pytest.mark.usefixtures("full_float32")


@pytest.mark.parametrize("corrections", CORRECTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maximum_rank_and_top_k(shape: tuple[int, int, int], corrections: str) -> None:
    head = make(shape, corrections).head.detach()
    target = torch.randint(0, shape[1], shape[:1], generator=torch.Generator().manual_seed(3)).to(DEVICE)
    with use_backend("kernels"):
        values, items = maximum(head)
        k = min(12, shape[1])
        best, order = top_k(head, k)
        position = rank(head, target)
    expected = reference.top_k(head, k)
    assert torch.equal(items, expected[1][:, 0])
    torch.testing.assert_close(values, expected[0][:, 0])
    assert torch.equal(order, expected[1])
    torch.testing.assert_close(best, expected[0])
    assert torch.equal(position, reference.rank(head, target))


def test_ties_are_ordered_by_index_and_count_against_the_target() -> None:
    state = torch.ones(3, 1, device=DEVICE)
    table = torch.tensor([[1.0], [2.0], [2.0], [0.0]]).repeat(100, 1).to(DEVICE)
    head = Head(state, table)
    with use_backend("kernels"):
        assert top_k(head, 5)[1].tolist() == [[1, 2, 5, 6, 9]] * 3
        assert maximum(head)[1].tolist() == [1] * 3
        assert rank(head, torch.tensor([1, 0, 3], device=DEVICE)).tolist() == [200, 300, 400]


def test_nan_counts_against_the_target() -> None:
    bias = torch.tensor([1.0, torch.nan, 3.0, 2.0], device=DEVICE)
    head = Head(torch.zeros(4, 1, device=DEVICE), torch.zeros(4, 1, device=DEVICE), bias)
    with use_backend("kernels"):
        assert rank(head, torch.arange(4, device=DEVICE)).tolist() == [4, 4, 2, 3]


def test_masked_items_are_never_chosen() -> None:
    head = make((6, 90, 8)).head.detach()
    best = reference.top_k(head, 3)[1]
    with use_backend("kernels"):
        assert torch.equal(maximum(head.mask(best[:, :2]))[1], best[:, 2])
        assert torch.equal(top_k(head.mask(best[:, :1]), 2)[1], best[:, 1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (70, 130, 16), (40, 300, 20)], ids=str)
def test_values_of_single_items(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Including items that many rows share, whose gradients add up."""
    made, random = make(shape, "added", dtype=dtype), torch.Generator().manual_seed(5)
    actions = torch.randint(0, shape[1], (shape[0], 9), generator=random).clamp(max=shape[1] // 2).to(DEVICE)
    compare([made], lambda head: [head.at(actions)], tolerance=2e-6 if dtype == torch.float32 else 0.01)
