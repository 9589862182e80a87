"""Gradients from stored weights equal those of recomputed tiles."""

import pytest
import torch
from torch import Tensor

from offrec.catalogue import Head, logsumexp, stored_weights

ROWS, ITEMS, WIDTH = 40, 700, 16


def parts(dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = ((ROWS, WIDTH), (ITEMS, WIDTH), (ITEMS,))
    state, table, bias = (torch.randn(*shape, generator=random).to(dtype).requires_grad_() for shape in shapes)
    return state, table, bias


def corrected(state: Tensor, table: Tensor, bias: Tensor) -> Head:
    random = torch.Generator().manual_seed(1)
    items = torch.randint(0, ITEMS + 1, (ROWS, 5), generator=random)
    head = Head(state, table, bias).with_corrections(items, torch.randn(ROWS, 5, generator=random))
    every = torch.arange(ITEMS).expand(ROWS, -1).clone()
    every[1:] = ITEMS  # only the first row has no item left
    return head.mask(every)


def gradients(head: Head, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 2, ROWS)
    return torch.autograd.grad((logsumexp(head)[1:] * weights[1:]).sum(), leaves)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_gradients_equal_those_of_recomputed_tiles(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = parts()
    head = corrected(*leaves)
    head = head.as_bfloat16() if precision == "bf16" else head
    monkeypatch.setattr(stored_weights, "TILE_FLOATS", ROWS * 300)  # three tiles
    assert stored_weights.stores_weights(head.base)
    stored, values = gradients(head, leaves), logsumexp(head)
    monkeypatch.setattr(stored_weights, "MAX_BYTES", 0)
    assert not stored_weights.stores_weights(head.base)
    recomputed = gradients(head, leaves)
    torch.testing.assert_close(values[1:], logsumexp(head)[1:], rtol=1e-6, atol=1e-6)
    for one, other in zip(stored, recomputed, strict=True):
        error = float((one - other).norm() / other.norm())
        assert error < (3e-3 if precision == "bf16" else 1e-6)


def test_a_graph_keeps_its_weights_until_it_is_deleted() -> None:
    """Another graph is built and differentiated between two backward passes of the first."""
    leaves, others = parts(), parts(seed=5)
    lse = logsumexp(Head(*leaves))
    first = torch.autograd.grad(lse.sum(), leaves, retain_graph=True)
    gradients(Head(*others), others)
    second = torch.autograd.grad(lse.sum(), leaves)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_nothing_is_stored_without_gradients() -> None:
    head = Head(*parts())
    assert not stored_weights.stores_weights(head.detach())
    with torch.no_grad():
        assert not stored_weights.stores_weights(head)
