"""The tiled functions against the dense ones, with tiles so small that every boundary is tested."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from offrec.catalogue import Head, log_prob, logsumexp, rank, rank_and_top_k, reference, tiled, top_k

SHAPES = [(1, 1, 1), (1, 5, 3), (7, 1, 2), (4, 16, 3), (5, 37, 4), (3, 64, 0), (6, 129, 8)]  # rows, items, width
WIDTHS = [1, 7, 40, 1000]


@pytest.fixture(params=WIDTHS, ids=lambda width: f"tile{width}")
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(tiled, "tile_width", lambda head: request.param)
    return int(request.param)


def random_head(
    rows: int, items: int, width: int, *, seed: int = 0, corrections: int = 6, bias: bool = True, levels: int = 0
) -> Head:
    """Make a random head whose corrections include duplicates and padding.

    `levels` > 0 makes all values small integers, so that there are ties.
    """
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        if levels:
            return torch.randint(0, levels, shape, generator=random).double()
        return torch.randn(*shape, generator=random, dtype=torch.double)

    where = torch.randint(0, min(items, 4) + 1, (rows, corrections), generator=random)
    where[where == min(items, 4)] = items  # padding
    return Head(draw(rows, width), draw(items, width), draw(items) if bias else None, where, draw(rows, corrections))


def each_shape(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))(test)


@each_shape
def test_tiles_equal_the_logits(shape: tuple[int, int, int], width: int) -> None:
    for head in (random_head(*shape), random_head(*shape, bias=False), random_head(*shape, corrections=0)):
        parts = list(tiled.tiles(head))
        assert [first for first, _ in parts] == list(range(0, head.n_items, width))
        torch.testing.assert_close(torch.cat([z for _, z in parts], 1), reference.logits(head))


@each_shape
def test_logsumexp_and_log_prob_equal_the_dense_version(shape: tuple[int, int, int], width: int) -> None:
    head = random_head(*shape)
    actions = torch.randint(0, shape[1], (shape[0], 3), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(logsumexp(head), reference.logsumexp(head))
    torch.testing.assert_close(log_prob(head, actions), reference.log_prob(head, actions))


def test_probabilities_of_all_items_sum_to_one() -> None:
    head = random_head(3, 40, 5)
    everything = torch.arange(40).expand(3, -1)
    torch.testing.assert_close(log_prob(head, everything).exp().sum(1), torch.ones(3, dtype=torch.double))


def test_large_logits_do_not_overflow(width: int) -> None:
    head = Head(torch.tensor([[1.0]]), torch.tensor([[1000.0], [-1000.0], [999.0]]))
    assert logsumexp(head).item() == pytest.approx(1000 + torch.tensor(-1.0).exp().log1p().item())


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 2), (2, 9, 0)])
@pytest.mark.parametrize("tile", [1, 4, 100])
def test_gradients_equal_finite_differences(
    shape: tuple[int, int, int], tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: tile)
    head = random_head(*shape)
    assert head.bias is not None
    assert head.values is not None
    actions = torch.zeros(shape[0], 2, dtype=torch.long)
    leaves = [part.clone().requires_grad_() for part in (head.state, head.table, head.bias, head.values)]

    def build(state: Tensor, table: Tensor, bias: Tensor, values: Tensor) -> Head:
        return Head(state, table, bias, head.items, values)

    assert torch.autograd.gradcheck(lambda *parts: logsumexp(build(*parts)), leaves)
    assert torch.autograd.gradcheck(lambda *parts: log_prob(build(*parts), actions), leaves)


@each_shape
def test_gradients_equal_the_dense_version(shape: tuple[int, int, int], width: int) -> None:
    head = random_head(*shape)
    weight = torch.randn(shape[0], dtype=torch.double, generator=torch.Generator().manual_seed(2))
    gradients = []
    for function in (logsumexp, reference.logsumexp):
        leaves = {name: getattr(head, name).clone().requires_grad_() for name in ("state", "table", "bias", "values")}
        (function(Head(items=head.items, **leaves)) * weight).sum().backward()
        gradients.append([leaf.grad for leaf in leaves.values()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("wanted", ["state", "table", "bias", "values"])
def test_a_single_tensor_gets_its_gradient(wanted: str) -> None:
    head, gradients = random_head(3, 7, 2), []
    for function in (logsumexp, reference.logsumexp):
        leaf = getattr(head, wanted).clone().requires_grad_()
        function(replace(head, **{wanted: leaf})).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)


@each_shape
@pytest.mark.parametrize("levels", [0, 2])
def test_rank_and_top_k_equal_the_dense_version(shape: tuple[int, int, int], levels: int, width: int) -> None:
    head = random_head(*shape, levels=levels)
    target = torch.randint(0, shape[1], shape[:1], generator=torch.Generator().manual_seed(3))
    for k in sorted({1, min(5, shape[1]), shape[1]}):
        values, items = reference.top_k(head, k)
        for best in (top_k(head, k), rank_and_top_k(head, target, k)[1:]):
            torch.testing.assert_close(best[0], values)
            assert torch.equal(best[1], items)
        assert torch.equal(rank_and_top_k(head, target, k)[0], reference.rank(head, target))
    assert torch.equal(rank(head, target), reference.rank(head, target))


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_top_k_when_every_tile_or_no_tile_has_better_items(order: str, width: int) -> None:
    column = torch.arange(300.0)[:, None] * (1 if order == "rising" else -1)
    head = Head(torch.tensor([[1.0], [-1.0], [0.0]]), column)
    values, items = reference.top_k(head, 7)
    assert torch.equal(top_k(head, 7)[0], values)
    assert torch.equal(top_k(head, 7)[1], items)


def test_a_head_without_rows(width: int) -> None:
    head, nothing = random_head(0, 20, 3), torch.zeros(0, dtype=torch.long)
    ranks, values, items = rank_and_top_k(head, nothing, 5)
    assert (len(ranks), values.shape, items.shape) == (0, (0, 5), (0, 5))
    assert logsumexp(head).shape == (0,)


def test_ties_count_against_the_target(width: int) -> None:
    head = Head(torch.zeros(4, 0), torch.zeros(5, 0), torch.tensor([3.0, 1.0, 3.0, 3.0, 2.0]))
    assert rank(head, torch.tensor([0, 1, 3, 4])).tolist() == [3, 5, 3, 4]


def test_rounding_does_not_break_ties() -> None:
    torch.manual_seed(0)
    rows, items = 64, 512
    head = Head(torch.randn(rows, 48), torch.randn(1, 48).expand(items, -1).clone(), torch.full((items,), 0.3))
    assert rank(head, torch.randint(0, items, (rows,))).tolist() == [items] * rows


def test_a_masked_target_is_ranked_last(width: int) -> None:
    head = random_head(4, 33, 3).mask(torch.full((4, 1), 5))
    assert rank(head, torch.full((4,), 5)).tolist() == [33] * 4


def test_nan_counts_against_the_target(width: int) -> None:
    bias = torch.tensor([1.0, torch.nan, 3.0, 2.0])
    head = Head(torch.zeros(4, 0), torch.zeros(4, 0), bias)
    assert rank(head, torch.arange(4)).tolist() == [4, 4, 2, 3]


def test_nan_comes_first_in_the_top_k(width: int) -> None:
    bias = torch.arange(200.0)
    bias[[7, 130]] = torch.nan
    head = Head(torch.zeros(2, 0), torch.zeros(200, 0), bias)
    _, values, items = rank_and_top_k(head, torch.tensor([49, 0]), 4)
    assert items.tolist() == [[7, 130, 199, 198]] * 2
    assert torch.equal(values.isnan(), torch.tensor([[True, True, False, False]] * 2))


def test_k_above_the_catalogue_size_returns_all_items(width: int) -> None:
    assert top_k(random_head(2, 5, 3), 9)[1].shape == (2, 5)


def test_a_tile_is_never_the_whole_matrix() -> None:
    for rows in (1, 200, 1024, 4096):
        head = Head(torch.zeros(rows, 1), torch.zeros(1, 1).expand(10**7, -1))
        assert rows * tiled.tile_width(head) <= tiled.CACHE_FLOATS
