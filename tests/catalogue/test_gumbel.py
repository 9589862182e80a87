"""The noise bit by bit, samples by chi-square tests, and the Gumbel-softmax against the exact expectation."""

from collections.abc import Callable

import pytest
import torch
from random_heads import built, leaves, make_head
from scipy.stats import chisquare, kstest
from torch import Tensor

from offrec.catalogue import Head, Noise, gumbel_softmax, maximum, reduce, reference, tiled, use_backend
from offrec.catalogue.head import Linear
from offrec.catalogue.noise import gumbel_noise, hash_bits

SEEDS = [0, 1, 0xFFFFFFFF, 2**31, 2**40 + 12345, 2**63 - 1, -1, -(2**63)]


def noise(seed: int) -> Noise:
    return Noise(torch.tensor(seed))


def mixed(h: int) -> int:
    h ^= h >> 16
    h = h * 0x85EBCA6B % 2**32
    h ^= h >> 13
    h = h * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


def bits(seed: int, row: int, item: int) -> int:
    low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    first = mixed((row * 0x9E3779B1 + low) % 2**32)
    return mixed(first ^ ((item * 0x85EBCA77 + high) % 2**32))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_hash_equals_the_definition_bit_by_bit(seed: int) -> None:
    rows, items = [0, 1, 77, 2**20, 2**31 - 1], [0, 1, 2, 99_999, 2**31 - 1]
    hashed = hash_bits(noise(seed), torch.tensor(rows)[:, None], torch.tensor(items))
    assert (hashed.long() & 0xFFFFFFFF).tolist() == [[bits(seed, row, item) for item in items] for row in rows]


def test_the_hash_becomes_a_gumbel_draw() -> None:
    rows, items = torch.arange(50)[:, None], torch.arange(300)
    h = torch.tensor([[bits(5, row, item) for item in range(300)] for row in range(50)])
    expected = -(-(-((h.double() + 0.5) / 2**32).clamp(max=1 - 2**-24)).log1p()).log()
    g = gumbel_noise(noise(5), rows, items)
    assert g.dtype == torch.float32
    winners = h < 0.9 * 2**32  # the others, near u = 1, have little precision and never win
    torch.testing.assert_close(g.double()[winners], expected[winners], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(g.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", [0, 3, 2**40 + 12345])
def test_the_noise_is_gumbel_and_independent(seed: int) -> None:
    g = gumbel_noise(noise(seed), torch.arange(300)[:, None], torch.arange(400))
    assert kstest(g.flatten().numpy(), "gumbel_r").pvalue > 0.001
    other = gumbel_noise(noise(seed + 1), torch.arange(300)[:, None], torch.arange(400))
    pairs = {"rows": (g[1:], g[:-1]), "items": (g[:, 1:], g[:, :-1]), "seeds": (g, other)}
    for name, (one, two) in pairs.items():
        correlation = torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1]
        assert abs(float(correlation)) < 4 / one.numel() ** 0.5, name


def test_the_noise_depends_only_on_row_and_item() -> None:
    whole = gumbel_noise(noise(8), torch.arange(6)[:, None], torch.arange(40))
    assert torch.equal(gumbel_noise(noise(8), torch.arange(2, 5)[:, None], torch.arange(7, 31)), whole[2:5, 7:31])
    assert torch.equal(gumbel_noise(noise(8), torch.tensor([5, 0]), torch.tensor([39, 1])), whole[[5, 0], [39, 1]])


def pair(kinds: tuple[str, str], shape: tuple[int, int, int] = (4, 11, 3)) -> list[Head]:
    random = torch.Generator().manual_seed(0)
    rows, items, width = shape
    return [make_head(random, rows, items, width, kinds[0]), make_head(random, rows, items, width + 1, kinds[1])]


def terms(pi: Head, q: Head) -> Linear:
    return [(1.5, pi), (torch.tensor(-0.5), q)]


@pytest.mark.parametrize("tile", [1, 4, 100])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    "kinds", [("plain", "plain"), ("replaced", "plain"), ("bonus", "replaced"), ("every", "bonus"), ("masked", "plain")]
)
@pytest.mark.parametrize("shape", [(4, 11, 3), (1, 2, 0), (0, 5, 1)])
def test_gumbel_softmax_equals_the_dense_version(
    shape: tuple[int, int, int], kinds: tuple[str, str], hard: bool, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: tile)
    heads, results = pair(kinds, shape), []
    for name in ("reference", "tiled"):
        parts = leaves(*heads)
        pi, q = built(heads, parts)
        with use_backend(name):
            value = gumbel_softmax(pi, terms(pi, q), temperature=0.6, noise=noise(3), hard=hard)
            with torch.no_grad():
                again = gumbel_softmax(pi, terms(pi, q), temperature=0.6, noise=noise(3), hard=hard)
            best = maximum(pi, noise(3))
        torch.testing.assert_close(value, again)
        weight = torch.arange(1.0, shape[0] + 1, dtype=torch.double)
        gradients = torch.autograd.grad((weight * value).sum(), list(parts.values()))
        results.append([value, *gradients, *best])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("tile", [1, 3, 100])
@pytest.mark.parametrize("kinds", [("plain", "plain"), ("replaced", "bonus")])
def test_gradients_equal_finite_differences(kinds: tuple[str, str], tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the soft value. The gradient of the hard value to π equals that of the soft value with a constant f."""
    monkeypatch.setattr(tiled, "tile_width", lambda head: tile)
    heads = pair(kinds, (2, 5, 2))
    parts = leaves(*heads)

    def call(hard: bool, whole: bool) -> Callable[..., Tensor]:
        def value(*tensors: Tensor) -> Tensor:
            pi, q = built(heads, dict(zip(parts, tensors, strict=True)))
            f = terms(pi, q) if whole else [(2.0, q.detach())]
            return gumbel_softmax(pi, f, temperature=0.8, noise=noise(1), hard=hard)

        return value

    everything = list(parts.values())
    assert torch.autograd.gradcheck(call(hard=False, whole=True), everything)
    of_pi = [part for name, part in parts.items() if name.endswith("0")]
    soft, hard = (torch.autograd.grad(call(hard, whole=False)(*everything).sum(), of_pi) for hard in (False, True))
    torch.testing.assert_close(soft, hard)


def test_a_hard_value_and_its_gradient_to_q_are_those_of_f_at_the_largest_item() -> None:
    heads = pair(("bonus", "replaced"))
    parts = leaves(*heads)
    pi, q = built(heads, parts)
    item = maximum(pi, noise(2))[1][:, None]
    value = gumbel_softmax(pi, [(2.0, q)], temperature=0.5, noise=noise(2), hard=True)
    torch.testing.assert_close(value, 2 * q.at(item)[:, 0])
    theirs = [part for name, part in parts.items() if name.endswith("1")]
    torch.testing.assert_close(
        torch.autograd.grad(value.sum(), theirs), torch.autograd.grad(2 * q.at(item).sum(), theirs)
    )


def many(rows: int) -> tuple[Head, Head]:
    """Repeat one state, so that rows differ only in their noise."""
    random = torch.Generator().manual_seed(1)
    pi, q = make_head(random, 1, 6, 3, "bonus"), make_head(random, 1, 6, 2, "replaced")
    return repeated(pi, rows), repeated(q, rows)


def repeated(head: Head, rows: int) -> Head:
    assert head.items is not None
    assert head.values is not None
    corrections = (head.items.expand(rows, -1), head.values.expand(rows, -1))
    return Head(head.state.expand(rows, -1), head.table, head.bias, *corrections, head.replaces_base)


def test_hard_values_average_to_the_exact_expectation() -> None:
    pi, q = many(20_000)
    exact = reduce(pi, [(1.0, q), (-0.5, pi)]).mean[0]
    drawn = gumbel_softmax(pi, [(1.0, q), (-0.5, pi)], temperature=1.0, noise=noise(4), hard=True)
    assert abs(float(drawn.mean() - exact)) < 4 * float(drawn.std()) / 20_000**0.5
    other = reduce(q, [(1.0, q), (-0.5, pi)]).mean[0]  # the test must reject another policy
    assert abs(float(drawn.mean() - other)) > 10 * float(drawn.std()) / 20_000**0.5


def test_soft_values_and_gradients_approach_the_exact_ones_as_the_temperature_falls() -> None:
    errors = []
    for temperature in (2.0, 0.5, 0.2):
        heads = many(20_000)
        parts = leaves(*(Head(head.state[:1], head.table, head.bias) for head in heads))
        wide = {name: part.expand(20_000, -1) if name.startswith("state") else part for name, part in parts.items()}
        pi, q = built(list(heads), wide)
        exact, soft = (
            reduce(pi, [(1.0, q)]).mean.mean(),
            gumbel_softmax(pi, [(1.0, q)], temperature=temperature, noise=noise(6)).mean(),
        )
        true, relaxed = (torch.autograd.grad(value, parts["state0"], retain_graph=True)[0] for value in (exact, soft))
        errors.append((float(abs(soft - exact).detach()), float((relaxed - true).norm() / true.norm())))
    values, gradients = zip(*errors, strict=True)
    assert values[0] > 3 * values[2]
    assert gradients[0] > 4 * gradients[2]
    assert values[2] < 0.02
    assert gradients[2] < 0.15


@pytest.mark.parametrize("tile", [2, 1000])
def test_the_noisy_maximum_is_a_sample_from_the_policy(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: tile)
    pi, q = many(20_000)
    counts = maximum(pi, noise(7))[1].bincount(minlength=6).double()
    expected = 20_000 * reference.logits(pi)[0].softmax(0)
    assert chisquare(counts.numpy(), expected.numpy()).pvalue > 0.001
    wrong = 20_000 * reference.logits(q)[0].softmax(0)
    assert chisquare(counts.numpy(), wrong.numpy()).pvalue < 1e-9


@pytest.mark.parametrize("tile", [1, 3, 100])
def test_the_maximum_is_the_lowest_index_among_equal_values(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: tile)
    bias = torch.tensor([1.0, 5.0, 3.0, 5.0, 2.0])
    head = Head(torch.zeros(4, 0), torch.zeros(5, 0), bias).with_corrections(
        torch.tensor([[5, 5], [1, 5], [3, 0], [2, 2]]), torch.tensor([[9.0, 9.0], [-1.0, 9.0], [0.0, 4.0], [1.0, 1.0]])
    )
    for name in ("reference", "tiled"):
        with use_backend(name):
            values, items = maximum(head)
        assert items.tolist() == [1, 3, 0, 1]
        assert values.tolist() == [5.0] * 4


def test_gumbel_softmax_without_a_linear_term_is_refused() -> None:
    with pytest.raises(ValueError, match="linear term"):
        gumbel_softmax(pair(("plain", "plain"))[0], [], temperature=1.0, noise=noise(0))
