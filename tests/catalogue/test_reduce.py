"""Expectations under π and π's mass under a bound: by hand, against the dense version, by finite differences."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from random_heads import KINDS, built, leaves, make_head
from torch import Tensor

from offrec.catalogue import Head, log_prob, logsumexp, reduce, tiled, use_backend
from offrec.catalogue.reduction import Reduced

SHAPES = [(1, 1, 1), (1, 5, 3), (7, 1, 2), (5, 19, 4), (3, 33, 0), (0, 6, 2)]  # rows, items, width


@pytest.fixture(params=[1, 4, 1000], ids=lambda width: f"tile{width}")
def _tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: request.param)


def three(shape: tuple[int, int, int], kinds: tuple[str, str, str], *, seed: int = 0, bias: bool = True) -> list[Head]:
    """Make π, Q and b with different widths and corrections."""
    random = torch.Generator().manual_seed(seed)
    rows, items, width = shape
    widths = (width, width + 2, 0 if bias else 1)
    return [make_head(random, rows, items, wide, kind, bias=bias) for wide, kind in zip(widths, kinds, strict=True)]


def everything(heads: list[Head]) -> Reduced:
    """Call `reduce` with all arguments: π and two other heads in f, a coefficient that is a tensor, a bound on b."""
    pi, q, b = heads
    bound = torch.linspace(-1, 1, pi.n_rows, dtype=torch.double)
    return reduce(pi, [(0.7, pi), (torch.tensor(-2.0), q), (0.3, b)], (b, bound))


def agree(heads: list[Head], call: Callable[[list[Head]], tuple[Tensor, ...]]) -> None:
    """Compare values and all gradients, tiled against dense."""
    results = []
    for name in ("reference", "tiled"):
        parts = leaves(*heads)
        with use_backend(name):
            outputs = call(list(built(heads, parts)))
        random = torch.Generator().manual_seed(9)
        total = sum((torch.randn(out.shape, generator=random, dtype=torch.double) * out).sum() for out in outputs)
        gradients = torch.autograd.grad(total, list(parts.values()), allow_unused=True, materialize_grads=True)
        results.append([*outputs, *gradients])
    torch.testing.assert_close(*results)


def test_reduce_by_hand() -> None:
    """π = (1/2, 1/4, 1/4) at temperature 1; the third item is corrected in π, the second in Q."""
    log = math.log
    nothing = torch.zeros(1, 0)
    pi = Head(nothing, torch.zeros(3, 0), torch.tensor([log(4.0), log(2.0), log(7.0)])).with_corrections(
        torch.tensor([[2]]), torch.tensor([[log(2.0) - log(7.0)]])
    )
    q = Head(
        nothing,
        torch.zeros(3, 0),
        torch.tensor([8.0, 99.0, 4.0]),
        torch.tensor([[1, 3]]),
        torch.tensor([[2.0, 5.0]]),
        True,
    )
    lse, mean, mass = reduce(pi, [(3.0, q)], (q, torch.tensor([4.0])))
    assert lse.item() == pytest.approx(log(8))
    assert mean.item() == pytest.approx(3 * (8 / 2 + 2 / 4 + 4 / 4))
    assert mass.item() == pytest.approx(1 / 2)  # the values 2 and 4 are at most 4
    entropy = lse - reduce(pi, [(1.0, pi)]).mean
    assert entropy.item() == pytest.approx(1.5 * log(2))
    assert reduce(pi, (), (q, torch.tensor([3.9]))).mass.item() == pytest.approx(1 / 4)


def test_a_value_equal_to_the_bound_counts_as_below() -> None:
    """The first row has no corrections; in the second, the item at the bound is corrected."""
    head = Head(torch.zeros(2, 0), torch.zeros(3, 0), torch.tensor([1.0, 2.0, 3.0]))
    low = head.with_corrections(torch.tensor([[3], [1]]), torch.tensor([[9.0], [0.0]]))
    mass = reduce(head, (), (low, torch.tensor([2.0, 2.0]))).mass
    torch.testing.assert_close(mass, torch.softmax(torch.tensor([1.0, 2.0, 3.0]), 0)[:2].sum().expand(2))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize(
    "kinds",
    [("plain",) * 3, ("bonus",) * 3, ("replaced",) * 3, ("replaced", "bonus", "plain"), ("masked", "replaced", "plain"),
     ("masked", "plain", "plain"), ("every", "plain", "replaced"), ("plain", "plain", "every")],
    ids="-".join,
)  # fmt: skip
@pytest.mark.usefixtures("_tile")
def test_reduce_equals_the_dense_version(shape: tuple[int, int, int], kinds: tuple[str, str, str]) -> None:
    if kinds[0] == "masked":
        shape = (shape[0], max(2, shape[1]), shape[2])  # at least one item must be unmasked
    agree(three(shape, kinds), everything)


@given(some.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_reduce_equals_the_dense_version_for_random_corrections(data: some.DataObject) -> None:
    unmasked = some.sampled_from(
        [kind for kind in KINDS if kind != "masked"]
    )  # only π masks; the linear heads are finite
    kinds = data.draw(some.tuples(some.sampled_from(KINDS), unmasked, unmasked))
    items = data.draw(some.integers(2 if kinds[0] == "masked" else 1, 12))
    shape = (data.draw(some.integers(0, 4)), items, data.draw(some.integers(0, 3)))
    heads = three(shape, kinds, seed=data.draw(some.integers(0, 999)), bias=data.draw(some.booleans()))
    with pytest.MonkeyPatch.context() as patch:
        tile = data.draw(some.integers(1, 13))
        patch.setattr(tiled, "tile_width", lambda head: tile)
        agree(heads, everything)


@pytest.mark.parametrize("replaces_base", [False, True])
def test_heads_that_share_their_corrected_items_equal_the_dense_version(replaces_base: bool) -> None:
    heads = three((4, 11, 3), ("replaced", "plain", "plain") if replaces_base else ("bonus", "plain", "plain"))
    items = heads[0].items
    assert items is not None
    shared = [
        heads[0],
        *(Head(h.state, h.table, h.bias, items, torch.randn(items.shape).double(), replaces_base) for h in heads[1:]),
    ]
    agree(shared, everything)


@pytest.mark.parametrize("tile", [1, 3, 100])
@pytest.mark.parametrize("kinds", [("plain",) * 3, ("replaced", "bonus", "plain"), ("bonus", "every", "replaced")])
def test_gradients_equal_finite_differences(
    kinds: tuple[str, str, str], tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled, "tile_width", lambda head: tile)
    heads = three((2, 5, 2), kinds)
    parts = leaves(*heads)

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(everything(list(built(heads, dict(zip(parts, tensors, strict=True))))))

    assert torch.autograd.gradcheck(call, list(parts.values()))


@pytest.mark.parametrize("wanted", ["state", "table", "bias", "values"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_single_tensor_gets_its_gradient(wanted: str, which: int) -> None:
    heads, gradients = three((3, 9, 2), ("bonus", "replaced", "plain")), []
    for name in ("reference", "tiled"):
        leaf = leaves(heads[which])[f"{wanted}0"]
        own = list(heads)
        (own[which],) = built([heads[which]], {f"{wanted}0": leaf})
        with use_backend(name):
            (everything(own).mean.sum() + everything(own).mass.sum()).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)


def test_coefficients_bounds_and_detached_heads_get_no_gradient() -> None:
    """The head below a bound gets none either."""
    for name in ("reference", "tiled"):
        heads = three((4, 9, 3), ("bonus", "bonus", "bonus"))
        parts = leaves(*heads)
        pi, q, b = built(heads, parts)
        weight, bound = torch.tensor(2.0, requires_grad=True), torch.zeros(4, dtype=torch.double, requires_grad=True)
        with use_backend(name):
            lse, mean, mass = reduce(pi, [(weight, q.detach()), (1.0, pi)], (b, bound))
        reached = {**parts, "weight": weight, "bound": bound}
        gradients = torch.autograd.grad((lse + mean + mass).sum(), list(reached.values()), allow_unused=True)
        with_gradient = {leaf for leaf, gradient in zip(reached, gradients, strict=True) if gradient is not None}
        assert with_gradient == {"state0", "table0", "bias0", "values0"}
        with use_backend(name):
            assert not reduce(pi.detach(), [(weight, q.detach())], (b, bound)).mean.requires_grad


def test_mean_and_mass_are_zero_if_not_requested() -> None:
    for kind in ("plain", "bonus"):
        head = three((3, 9, 2), (kind,) * 3)[0]
        lse, mean, mass = reduce(head)
        assert torch.equal(lse, logsumexp(head))
        assert not mean.any()
        assert not mass.any()


def test_the_mass_below_a_large_bound_is_one() -> None:
    pi, q, _ = three((3, 40, 5), ("bonus", "replaced", "plain"))
    torch.testing.assert_close(reduce(pi, (), (q, torch.full((3,), 1e9))).mass, torch.ones(3, dtype=torch.double))


def test_masked_items_have_no_weight() -> None:
    pi, q, _ = three((3, 8, 2), ("plain", "plain", "plain"))
    few = Head(pi.state, pi.table[:5], pi.bias[:5] if pi.bias is not None else None)
    few_q = Head(q.state, q.table[:5], q.bias[:5] if q.bias is not None else None)
    masked = pi.mask(torch.tensor([[5, 6, 7]]).expand(3, -1))
    torch.testing.assert_close(
        tuple(reduce(masked, [(1.0, masked), (2.0, q)])), tuple(reduce(few, [(1.0, few), (2.0, few_q)]))
    )


def test_the_tiled_core_handles_rows_with_all_items_excluded() -> None:
    heads = three((3, 7, 2), ("plain",) * 3)
    parts = leaves(*heads)
    pi, q, b = built(heads, parts)
    excluded = torch.stack([torch.arange(7), torch.full((7,), 7), torch.arange(7).clamp(max=5)])
    outputs = tiled.reduce(pi, [(1.0, pi), (1.0, q)], (b, torch.zeros(3)), excluded, None, 1.0, True)
    assert outputs[0][0] <= -1e29
    assert outputs[1][0] == outputs[2][0] == 0
    assert (outputs[0][1:] > -100).all()
    for gradient in torch.autograd.grad(sum(out.sum() for out in outputs), [parts["state0"], parts["state1"]]):
        assert not gradient[0].any()
        assert gradient[1:].all()
    values, items = tiled.maximum(pi.detach(), excluded, None)
    assert values[0] <= -1e29
    assert items[2] == 6


def test_replaced_items_do_not_read_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    pi, q, _ = three((3, 9, 2), ("replaced", "plain", "plain"))
    q = Head(q.state, q.table, q.bias, pi.items, pi.values, replaces_base=True)
    expected = reduce(pi, [(1.0, q)], (pi, torch.zeros(3)))

    def refuse(self: Head, actions: Tensor) -> Tensor:
        raise AssertionError("the table was read")

    monkeypatch.setattr(Head, "base_at", refuse)
    torch.testing.assert_close(tuple(reduce(pi, [(1.0, q)], (pi, torch.zeros(3)))), tuple(expected))


def test_sums_of_bfloat16_operands_have_float32_precision() -> None:
    heads = three((6, 200, 16), ("bonus", "plain", "plain"))
    exact, rounded = [], []
    for kind, results in ((torch.float32, exact), (torch.bfloat16, rounded)):
        parts = {
            name: part.detach()
            .bfloat16()
            .to(kind if name[:-1] in ("state", "table") else torch.float32)
            .requires_grad_()
            for name, part in leaves(*heads).items()
        }
        outputs = everything(list(built(heads, parts)))
        assert all(out.dtype == torch.float32 for out in outputs)
        gradients = torch.autograd.grad(sum(out.sum() for out in outputs), list(parts.values()))
        assert [g.dtype for g in gradients] == [part.dtype for part in parts.values()]
        results += [*outputs, *(g.float() for g in gradients)]
    torch.testing.assert_close(rounded[:3], exact[:3])
    torch.testing.assert_close(
        rounded[3:], exact[3:], rtol=2e-2, atol=1e-2
    )  # both parts of a gradient are rounded before they are added
    assert log_prob(next(built(heads, parts)), torch.zeros(6, 1, dtype=torch.long)).dtype == torch.float32


def test_slots_do_not_synchronise_with_the_device() -> None:
    """Tensors on the meta device have no data: reading a value on the host would fail."""
    from offrec.catalogue.reduction import Slots

    head = three((3, 9, 2), ("replaced", "plain", "plain"))[0]
    meta = Head(*(part.to("meta") for part in (head.state, head.table, head.bias, head.items, head.values)), True)
    other = Head(meta.state, meta.table, None, meta.items.clone(), meta.values)
    slots = Slots.of([meta, other])
    assert slots is not None
    assert slots.at(meta).shape == slots.at(other).shape == (3, 10)


def test_heads_of_different_shapes_are_refused() -> None:
    head, other = Head(torch.zeros(2, 1), torch.zeros(3, 1)), Head(torch.zeros(2, 1), torch.zeros(4, 1))
    with pytest.raises(ValueError, match="expected"):
        reduce(head, [(1.0, other)])
    with pytest.raises(ValueError, match="for 2 rows"):
        reduce(head, (), (head, torch.zeros(2, 1)))
