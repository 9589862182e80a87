"""The Triton kernels against dense float64, under Triton's interpreter where there is no GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from offrec.catalogue import (
    Head,
    Noise,
    compared,
    gumbel_softmax,
    log_prob,
    logsumexp,
    maximum,
    rank,
    reduce,
    reduce_beside,
    reference,
    top_k,
    using,
)

pytest.importorskip("triton", reason="the kernels need triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [(1, 1, 1), (1, 200, 5), (70, 1, 16), (5, 37, 8), (130, 150, 20), (33, 300, 64)]  # rows, items, width
CORRECTIONS = ["none", "added", "instead", "padding"]


@pytest.fixture(autouse=True)
def exact() -> Any:
    """Products in full float32: then an error is an error, not TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Made:
    """A head, and its tensors that take gradients."""

    head: Head
    leaves: list[Tensor]

    def double(self) -> "Made":
        """The same numbers in float64, with leaves of their own."""
        values = {
            name: None if (part := getattr(self.head, name)) is None else part.detach().double().requires_grad_()
            for name in ("state", "table", "bias", "values")
        }
        head = replace(self.head, **values)
        return Made(head, [part for part in values.values() if part is not None])


def make(
    shape: tuple[int, int, int],
    corrections: str = "none",
    *,
    bias: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Made:
    rows, items, width = shape
    random = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=random).to(DEVICE)

    parts: dict[str, Any] = {"state": draw(rows, width).to(dtype), "table": draw(items, width).to(dtype)}
    if bias:
        parts["bias"] = draw(items)
    if corrections != "none":
        parts["values"] = draw(rows, 7)
    for part in parts.values():
        part.requires_grad_()
    leaves = list(parts.values())
    if corrections != "none":
        low = items if corrections == "padding" else 0
        parts["items"] = torch.randint(low, items + 3, (rows, 7), generator=random).to(DEVICE)
        parts["instead"] = corrections == "instead"
    return Made(Head(**parts), leaves)


def compare(
    made: Sequence[Made], of: Callable[..., Sequence[Tensor]], tolerance: float = 2e-5, dense: Any = None
) -> None:
    """Values and every gradient of `of(*heads)` by kernels against float64 by the dense reference."""
    truth = [one.double() for one in made]
    with using("kernels"):
        found = list(of(*(one.head for one in made)))
    with using("reference"):
        wanted = list(of(*(one.head for one in truth)))
    weights = [torch.randn(part.shape, generator=torch.Generator().manual_seed(9)).to(DEVICE) for part in found]
    for some, leaves in ((found, made), (wanted, truth)):
        for leaf in (leaf for one in leaves for leaf in one.leaves):
            leaf.grad = None
        total = sum((part * weight).sum() for part, weight in zip(some, weights, strict=True))
        assert isinstance(total, Tensor)
        total.backward()
    for part, true in zip(found, wanted, strict=True):
        close(part, true, tolerance)
    for one, true_one in zip(made, truth, strict=True):
        for leaf, true in zip(one.leaves, true_one.leaves, strict=True):
            assert (leaf.grad is None) == (true.grad is None)
            if leaf.grad is not None and true.grad is not None:
                close(leaf.grad, true.grad, tolerance)


def close(found: Tensor, true: Tensor, tolerance: float) -> None:
    found, true = found.detach(), true.detach()
    scale = max(1.0, float(true.abs().max())) if true.numel() else 1.0
    torch.testing.assert_close(found.double(), true.double(), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("corrections", CORRECTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_log_probabilities(shape: tuple[int, int, int], corrections: str) -> None:
    actions = torch.randint(0, shape[1], (shape[0], 3), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    compare([make(shape, corrections)], lambda head: [log_prob(head, actions), logsumexp(head)])


@pytest.mark.parametrize("corrections", CORRECTIONS)
@pytest.mark.parametrize("shape", SHAPES[1::2], ids=str)
def test_expectations_over_three_heads(shape: tuple[int, int, int], corrections: str) -> None:
    """E_π[z − 2q + ½b] and π's mass where b is low; the others have widths and corrections of their own."""
    rows, items, width = shape
    pi, q = make(shape, corrections), make((rows, items, width + 3), "added", seed=1)
    b, bound = make((rows, items, 4), corrections, bias=False, seed=2), torch.zeros(rows, device=DEVICE)
    compare(
        [pi, q, b],
        lambda pi, q, b: reduce(pi, [(1.0, pi), (-2.0, q), (0.5, b)], below=(b, bound.to(pi.dtype))),
        tolerance=5e-5,
    )


@pytest.mark.parametrize("corrections", CORRECTIONS)
@pytest.mark.parametrize("shape", [(1, 200, 5), (130, 150, 20)], ids=str)
def test_what_is_found_beside(shape: tuple[int, int, int], corrections: str) -> None:
    """Four heads in one pass: E_π[q − z + b] with its gradients, E_π[q̄ − z + b] and b's logsumexp without."""
    rows, items, width = shape
    pi, q = make(shape, corrections), make((rows, items, width), "added", seed=1)
    b, stay = make((rows, items, 7), corrections, seed=2), make((rows, items, width), "added", seed=3)
    if corrections != "none":  # as in training, all correct the same items
        share = pi.head.items
        q, b, stay = (Made(replace(one.head, items=share), one.leaves) for one in (q, b, stay))

    def both(pi: Head, q: Head, b: Head, stay: Head) -> Sequence[Tensor]:
        found, beside = reduce_beside(
            pi, [(1.0, q), (-0.5, pi), (0.5, b)], [(1.0, stay), (-0.5, pi), (0.5, b)], normalised=b
        )
        assert not beside.mean.requires_grad
        assert not beside.lse.requires_grad
        return [found.mean, found.lse, beside.mean, beside.lse]

    compare([pi, q, b, stay], both, tolerance=5e-5)


def test_the_policy_itself_may_be_normalised_beside() -> None:
    head = make((9, 40, 8), "instead").head
    with using("kernels"):
        found, beside = reduce_beside(head, [], [(2.0, head)], normalised=head)
    torch.testing.assert_close(beside.lse, found.lse.detach())
    torch.testing.assert_close(beside.mean, 2 * reference.reduce(head, [(1.0, head)])[1].detach())
    assert not found.mean.any()


def test_a_coefficient_may_be_a_tensor() -> None:
    two = torch.tensor(2.0, device=DEVICE)
    compare([make((9, 40, 8)), make((9, 40, 8), seed=1)], lambda pi, q: [reduce(pi, [(two.to(pi.dtype), q)]).mean])


@pytest.mark.parametrize("corrections", ["none", "instead"])
@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax(corrections: str, hard: bool) -> None:
    noise = Noise(torch.tensor(2**40 + 17, device=DEVICE))
    compare(
        [make((20, 150, 8), corrections), make((20, 150, 16), seed=1)],
        lambda pi, q: [gumbel_softmax(pi, [(1.0, pi), (-3.0, q)], temperature=0.7, noise=noise, hard=hard)],
        tolerance=1e-4,
    )


@pytest.mark.parametrize("corrections", CORRECTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maximum_rank_and_top_k(shape: tuple[int, int, int], corrections: str) -> None:
    head = make(shape, corrections).head.detach()
    target = torch.randint(0, shape[1], shape[:1], generator=torch.Generator().manual_seed(3)).to(DEVICE)
    with using("kernels"):
        values, items = maximum(head)
        k = min(12, shape[1])
        best, order = top_k(head, k)
        position = rank(head, target)
    wanted = reference.top_k(head, k)
    assert torch.equal(items, wanted[1][:, 0])
    torch.testing.assert_close(values, wanted[0][:, 0])
    assert torch.equal(order, wanted[1])
    torch.testing.assert_close(best, wanted[0])
    assert torch.equal(position, reference.rank(head, target))


def test_equal_values_are_ordered_and_counted_as_everywhere() -> None:
    state = torch.ones(3, 1, device=DEVICE)
    table = torch.tensor([[1.0], [2.0], [2.0], [0.0]]).repeat(100, 1).to(DEVICE)
    head = Head(state, table)
    with using("kernels"):
        assert top_k(head, 5)[1].tolist() == [[1, 2, 5, 6, 9]] * 3
        assert maximum(head)[1].tolist() == [1] * 3
        assert rank(head, torch.tensor([1, 0, 3], device=DEVICE)).tolist() == [200, 300, 400]


def test_what_is_not_a_number_counts_against_the_target() -> None:
    bias = torch.tensor([1.0, torch.nan, 3.0, 2.0], device=DEVICE)
    head = Head(torch.zeros(4, 1, device=DEVICE), torch.zeros(4, 1, device=DEVICE), bias)
    with using("kernels"):
        assert rank(head, torch.arange(4, device=DEVICE)).tolist() == [4, 4, 2, 3]


def test_every_item_of_a_row_may_be_corrected() -> None:
    made = make((4, 5, 3))
    everything = torch.arange(5, device=DEVICE).repeat(4, 1)
    values = torch.randn(4, 5, generator=torch.Generator().manual_seed(4)).to(DEVICE).requires_grad_()
    head = replace(made.head, items=everything, values=values, instead=True)
    compare([Made(head, [*made.leaves, values])], lambda head: [reduce(head, [(1.0, head)]).mean, logsumexp(head)])


def test_masked_items_are_never_chosen() -> None:
    head = make((6, 90, 8)).head.detach()
    best = reference.top_k(head, 3)[1]
    with using("kernels"):
        assert torch.equal(maximum(head.masked(best[:, :2]))[1], best[:, 2])
        assert torch.equal(top_k(head.masked(best[:, :1]), 2)[1], best[:, 1:])


def test_large_scores_do_not_overflow() -> None:
    head = Head(torch.tensor([[1.0]], device=DEVICE), torch.tensor([[1000.0], [-1000.0], [999.0]], device=DEVICE))
    with using("kernels"):
        assert logsumexp(head).item() == pytest.approx(1000 + torch.tensor(-1.0).exp().log1p().item())


@pytest.mark.parametrize("kind", ["bf16", "tf32"])
@pytest.mark.parametrize("shape", [(64, 500, 32), (20, 300, 64), (256, 5000, 64)], ids=str)
def test_errors_are_no_larger_than_dense_pytorchs(shape: tuple[int, int, int], kind: str) -> None:
    """Same operands; the truth is float64. Root mean squares: a largest error is a matter of luck."""
    if kind == "tf32" and DEVICE.type == "cpu":
        pytest.skip("TF32 needs a GPU")
    if DEVICE.type == "cpu" and shape[1] > 1000:
        pytest.skip("too slow under the interpreter")
    torch.set_float32_matmul_precision("high")
    made = make(shape, bias=False, dtype=torch.bfloat16 if kind == "bf16" else torch.float32)
    actions = torch.randint(0, shape[1], (shape[0], 1), generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def run(one: Made, by: str) -> list[Tensor]:
        for leaf in one.leaves:
            leaf.grad = None
        if by == "dense":
            z = one.head.state @ one.head.table.T
            loss = torch.nn.functional.cross_entropy(z.float(), actions[:, 0], reduction="none")
        else:
            with using(by):
                loss = -log_prob(one.head, actions)[:, 0]
        loss.mean().backward()
        return [loss.detach().double(), *(leaf.grad.double() for leaf in one.leaves if leaf.grad is not None)]

    true, ours, dense = run(made.double(), "reference"), run(made, "kernels"), run(made, "dense")
    # The interpreter cuts bfloat16 off instead of rounding it; the tensor cores do so with a TF32 table.
    slack = 2.0 if DEVICE.type == "cpu" else 1.15 if kind == "tf32" else 1.02
    for found, plain, size in zip(ours, dense, true, strict=True):
        error, allowed = ((part - size).square().mean().sqrt() for part in (found, plain))
        assert error <= slack * allowed + 1e-6 * size.square().mean().sqrt()


@pytest.mark.parametrize("picks", [1, 2])
def test_picked_items_in_few_tiles(picks: int) -> None:
    """bfloat16: the picked items' gradient is added inside of the kernel, in the tiles that hold one alone. Here those
    are the first items and the last ones of tiles, picked by rows of several blocks; every other tile has none.
    """
    made = make((150, 400, 16), dtype=torch.bfloat16)
    actions = torch.tensor([0, 63, 64, 191, 399], device=DEVICE).repeat(150 * picks // 5).reshape(150, picks)
    compare([made], lambda head: [log_prob(head, actions)], tolerance=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (70, 130, 16), (40, 300, 20)], ids=str)
def test_values_at_few_items(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Also at items that many rows take, whose gradients add up."""
    made, random = make(shape, "added", dtype=dtype), torch.Generator().manual_seed(5)
    actions = torch.randint(0, shape[1], (shape[0], 9), generator=random).clamp(max=shape[1] // 2).to(DEVICE)
    compare([made], lambda head: [head.at(actions)], tolerance=2e-6 if dtype == torch.float32 else 0.01)


def test_corrections_compared() -> None:
    """Padding and items that come again leave empty slots, by kernel as without."""
    items = torch.randint(0, 9, (70, 7), generator=torch.Generator().manual_seed(6)).to(DEVICE)
    found = []
    for name in ("kernels", "tiled"):
        with using(name):
            found.append(compared(items.clone(), 7))
    for part in ("items", "empty", "full", "inside", "log_counts"):
        torch.testing.assert_close(getattr(found[0], part), getattr(found[1], part))
    assert compared(items, 7) is compared(items, 7)
    before = compared(items, 7)
    items[0] = 3
    assert compared(items, 7) is not before, "written to since"


def test_kernels_refuse_what_they_do_not_take() -> None:
    head = make((3, 9, 4)).head
    with using("kernels"):
        with pytest.raises(ValueError, match="float32 or bfloat16"):
            logsumexp(Head(head.state.double(), head.table.double()))
        with pytest.raises(ValueError, match="widths"):
            logsumexp(Head(torch.zeros(2, 300, device=DEVICE), torch.zeros(4, 300, device=DEVICE)))


def test_nothing_is_computed_for_a_backward_pass_that_does_not_come() -> None:
    """Where nothing learns, a value is the same number."""
    made = make((9, 40, 8), "instead")
    with using("kernels"):
        learning = reduce(made.head, [(1.0, made.head)])
        with torch.no_grad():
            resting = reduce(made.head, [(1.0, made.head)])
    torch.testing.assert_close(learning.mean.detach(), resting.mean)
    assert not resting.mean.requires_grad


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [64, 128, 256])
def test_four_heads_fit_the_card(width: int, dtype: torch.dtype) -> None:
    """TF32: the largest there is, with a backward pass and without."""
    torch.set_float32_matmul_precision("high")
    made = [make((300, 3000, width), "instead", seed=seed, dtype=dtype) for seed in range(4)]
    pi, q, b, stay = (one.head for one in made)
    with using("kernels"):
        for learns in (False, True):
            with torch.set_grad_enabled(learns):
                found, beside = reduce_beside(pi, [(1.0, q), (-0.5, b)], [(1.0, stay)], normalised=b)
    found.mean.sum().backward()
    with torch.no_grad():
        truth = [one.double().head for one in made]
        true = reference.reduce(truth[0], [(1.0, truth[1]), (-0.5, truth[2])])[1]
        true_held, true_lse = reference.reduce(truth[0], [(1.0, truth[3])])[1], reference.logsumexp(truth[2])
    for mine, its in ((found.mean, true), (beside.mean, true_held), (beside.lse, true_lse)):
        assert (mine - its).abs().max() < 0.1 * width**0.5
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in made[0].leaves)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("width", [16, 64, 128, 256])
def test_every_block_size_fits_the_card(width: int, heads: int, dtype: torch.dtype) -> None:
    """TF32, corrections, noise off and on: what is compiled must also launch."""
    torch.set_float32_matmul_precision("high")
    made = [make((300, 3000, width), "instead", seed=seed, dtype=dtype) for seed in range(heads)]
    with using("kernels"):
        found = reduce(made[0].head, [(1.0 - i, one.head) for i, one in enumerate(made)])
        (found.mean + found.lse).sum().backward()
        if heads == 1 and dtype == torch.float32:
            head = made[0].head.detach()
            items = top_k(head, 20)[1]
            assert torch.equal(items, reference.top_k(made[0].double().head, 20)[1])
            assert torch.equal(maximum(head)[1], items[:, 0])
            position = rank(head, items[:, 3])  # what rounding alone could have ordered counts as a tie
            assert position.min() == 4
            assert (position > 4).float().mean() < 0.02
    with torch.no_grad():
        truth = [one.double().head for one in made]
        true = reference.reduce(truth[0], [(1.0 - i, head) for i, head in enumerate(truth)], None)
    assert (found.lse - true[0]).abs().max() < 0.05 * width**0.5
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for one in made[:1] for leaf in one.leaves)


def test_heads_that_differ_in_their_bias_alone_are_two_heads() -> None:
    made = make((9, 40, 8))
    other = replace(made.head, bias=torch.linspace(-1, 1, 40).to(DEVICE))
    with using("kernels"):
        found = reduce(made.head, [(1.0, other)]).mean.detach()
    torch.testing.assert_close(found, reference.reduce(made.head, [(1.0, other)], None)[1].detach())


def test_no_rows() -> None:
    head = Head(torch.zeros(0, 4, device=DEVICE), torch.ones(7, 4, device=DEVICE))
    with using("kernels"):
        assert logsumexp(head).shape == (0,)
        assert maximum(head)[1].shape == (0,)
        assert top_k(head, 3)[1].shape == (0, 3)
