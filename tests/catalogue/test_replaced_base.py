"""Corrections that replace the base: values, gradients, ranks and lists against the dense version."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from offrec.catalogue import Head, log_prob, logsumexp, rank, reference, tiled, top_k


def head_with(rows: int = 4, items: int = 23, width: int = 3, seed: int = 0) -> Head:
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.double)

    where = torch.randint(0, 9, (rows, 6), generator=random)  # with duplicates
    where[:, -1] = items  # padding
    return Head(draw(rows, width), draw(items, width), draw(items), where, draw(rows, 6), replaces_base=True)


def test_logits_by_hand() -> None:
    head = Head(
        state=torch.tensor([[2.0]]),
        table=torch.tensor([[1.0], [10.0], [3.0]]),
        bias=torch.tensor([0.5, 0.5, 0.5]),
        items=torch.tensor([[1, 1, 3]]),  # 3 is padding
        values=torch.tensor([[4.0, 0.25, 99.0]]),
        replaces_base=True,
    )
    assert reference.logits(head).tolist() == [[2.5, 4.25, 6.5]]
    assert head.at(torch.tensor([[2, 1, 0]])).tolist() == [[6.5, 4.25, 2.5]]
    assert reference.logits(replace(head, replaces_base=False)).tolist() == [[2.5, 24.75, 6.5]]


@pytest.mark.parametrize("tile", [1, 5, 100])
def test_all_functions_equal_the_dense_version(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: tile)
    head = head_with()
    everything = torch.arange(head.n_items).expand(head.n_rows, -1)
    torch.testing.assert_close(head.at(everything), reference.logits(head))
    torch.testing.assert_close(logsumexp(head), reference.logsumexp(head))
    torch.testing.assert_close(top_k(head, 6)[1], reference.top_k(head, 6)[1])
    for item in range(head.n_items):
        target = torch.full((head.n_rows,), item)
        torch.testing.assert_close(rank(head, target), reference.rank(head, target))
    masked = head.mask(torch.tensor([[0, 20]]).expand(head.n_rows, -1))
    assert not set(top_k(masked, 21)[1].flatten().tolist()) & {0, 20}


@pytest.mark.parametrize("tile", [1, 5, 100])
def test_gradients_equal_the_dense_version(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: tile)
    head = head_with()
    actions = torch.tensor([[0, 22], [3, 21], [1, 2], [5, 6]])
    parts = (head.state, head.table, head.bias, head.values)
    leaves = [part.clone().requires_grad_() for part in parts if part is not None]

    def tiled_and_dense(state: Tensor, table: Tensor, bias: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        built = Head(state, table, bias, head.items, values, replaces_base=True)
        return log_prob(built, actions), reference.log_prob(built, actions)

    assert torch.autograd.gradcheck(lambda *leaves: tiled_and_dense(*leaves)[0], leaves)
    ours, dense = tiled_and_dense(*leaves)
    for mine, theirs in zip(
        torch.autograd.grad(ours.sum(), leaves, retain_graph=True),
        torch.autograd.grad(dense.sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
