"""A head with a support: items below a bound in another head are masked in every function."""

from dataclasses import replace

import pytest
import torch
from random_heads import built, leaves, make_head

from offrec import catalogue
from offrec.catalogue import Head, Noise, maximum, reduce, reference, tiled, use_backend
from offrec.catalogue.head import MASKED, Support

KINDS = [("plain", "plain"), ("bonus", "replaced"), ("replaced", "bonus"), ("plain", "every")]


@pytest.fixture(params=[1, 5, 100], ids=lambda width: f"tile{width}", autouse=True)
def _tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: request.param)


def bounded(kinds: tuple[str, str], rows: int = 4, items: int = 17) -> Head:
    random = torch.Generator().manual_seed(0)
    head, other = (make_head(random, rows, items, width, kind) for width, kind in zip((3, 2), kinds, strict=True))
    return replace(head, support=Support(other, reference.logits(other).median(1).values - 1e-6))


def test_masked_values_by_hand() -> None:
    other = Head(torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0], [2.0], [3.0]]))
    head = Head(
        torch.ones(2, 1), torch.tensor([[4.0], [5.0], [6.0]]), support=Support(other, torch.tensor([2.0, -2.0]))
    )
    expected = torch.tensor([[MASKED, 5.0, 6.0], [4.0, 5.0, MASKED]])
    assert torch.equal(reference.logits(head), expected)
    assert torch.equal(head.at(torch.arange(3).expand(2, -1)), expected)
    assert torch.equal(torch.cat([z for _, z in tiled.tiles(head)], 1), expected)
    assert maximum(head)[1].tolist() == [2, 1]
    assert torch.equal(reference.logits(head.slice_rows(1, 2)), expected[1:])
    assert torch.equal(reference.logits(head.base), torch.tensor([[4.0, 5.0, 6.0]] * 2))


@pytest.mark.parametrize("kinds", KINDS)
def test_ranking_and_sampling_equal_the_dense_version(kinds: tuple[str, str]) -> None:
    head = bounded(kinds)
    z = reference.logits(head)
    assert (z == MASKED).sum(1).tolist() == [8] * 4
    torch.testing.assert_close(head.at(torch.arange(17).expand(4, -1)), z)
    values, items = reference.top_k(head, 9)
    torch.testing.assert_close(catalogue.top_k(head, 9)[0], values)
    assert torch.equal(catalogue.top_k(head, 9)[1], items)
    for target in (items[:, 0], items[:, 8], reference.top_k(head, 17)[1][:, 16]):
        assert torch.equal(catalogue.rank(head, target), reference.rank(head, target))
        assert torch.equal(catalogue.rank_and_top_k(head, target, 3)[0], reference.rank(head, target))
    sampled = catalogue.sample_k(head, 9, torch.Generator().manual_seed(0))
    assert torch.equal(sampled.sort(1).values, items.sort(1).values)
    for noise in (None, Noise(torch.tensor(3))):
        torch.testing.assert_close(maximum(head, noise), reference.maximum(head, noise))


@pytest.mark.parametrize("kinds", KINDS)
def test_sums_and_gradients_equal_the_dense_version(kinds: tuple[str, str]) -> None:
    heads = [bounded(kinds), make_head(torch.Generator().manual_seed(1), 4, 17, 2, "bonus")]
    results = []
    for name in ("reference", "tiled"):
        parts = leaves(*heads)
        pi, q = built(heads, parts)
        noise = Noise(torch.tensor(5))
        with use_backend(name):
            outputs = [
                *reduce(pi, [(1.0, pi), (0.5, q)], (q, torch.zeros(4))),
                catalogue.log_prob(pi, maximum(pi)[1][:, None])[:, 0],
                catalogue.gumbel_softmax(pi, [(1.0, pi), (0.5, q)], temperature=0.7, noise=noise),
                catalogue.gumbel_softmax(pi, [(1.0, pi), (0.5, q)], temperature=0.7, noise=noise, hard=True),
            ]
        total = sum((i + 1.0) * out.sum() for i, out in enumerate(outputs))
        results.append([*outputs, *torch.autograd.grad(total, list(parts.values()))])
    torch.testing.assert_close(*results)


def test_a_linear_head_may_have_the_same_support_as_the_policy() -> None:
    """The masked values of Q have no weight and get no gradient."""
    pi = bounded(("bonus", "replaced"))
    q = replace(make_head(torch.Generator().manual_seed(1), 4, 17, 2), support=pi.support)
    results = []
    for name in ("reference", "tiled"):
        parts = leaves(pi, q)
        one, two = built([pi, q], parts)
        with use_backend(name):
            mean = reduce(one, [(2.0, two)]).mean
        results.append([mean, *torch.autograd.grad(mean.sum(), list(parts.values()))])
    torch.testing.assert_close(*results)


def test_supports_of_other_shapes_are_refused() -> None:
    head = Head(torch.zeros(2, 1), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="support needs"):
        replace(head, support=Support(head, torch.zeros(3)))
    with pytest.raises(ValueError, match="support needs"):
        replace(head, support=Support(Head(torch.zeros(2, 1), torch.zeros(4, 1)), torch.zeros(2)))
