"""What is asked of few items, by kernels (Triton's interpreter where there is no GPU) and without."""

import pytest
import torch

from offrec.catalogue import Head, use_backend
from offrec.catalogue.slots import precompute_unique_items, score_unique_items, unique_items

pytest.importorskip("triton", reason="the kernels need triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("kind", ["strided", "bf16"])
def test_a_bias_of_any_layout_and_kind(kind: str) -> None:
    random = torch.Generator().manual_seed(0)
    state, table = (torch.randn(n, 4, generator=random).to(DEVICE) for n in (3, 10))
    whole = torch.randn(10, 2, generator=random).to(DEVICE)
    bias = (whole[:, 0] if kind == "strided" else whole[:, 0].bfloat16()).detach().requires_grad_()
    items = torch.randint(0, 10, (3, 5), generator=random).to(DEVICE)
    found = {}
    for name in ("kernels", "tiled"):
        with use_backend(name):
            z = Head(state, table, bias).at(items)
            found[name] = z, *torch.autograd.grad((z * z.detach()).sum(), bias)
    for mine, its in zip(found["kernels"], found["tiled"], strict=True):
        torch.testing.assert_close(mine.float(), its.float(), atol=1e-2 if kind == "bf16" else 1e-5, rtol=1e-2)


def test_what_was_compared_while_serving_can_be_learned_from() -> None:
    items = torch.tensor([[1, 1, 2]])
    with torch.inference_mode():
        unique_items(items, 7)
    weight = torch.ones(1, 3, requires_grad=True)
    (weight * unique_items(items, 7).log_counts).sum().backward()
    torch.testing.assert_close(weight.grad, torch.tensor([[2.0, 2.0, 1.0]]).log())


@pytest.mark.parametrize("name", ["kernels", "tiled"])
def test_two_compared_at_once_are_each_compared(name: str) -> None:
    random = torch.Generator().manual_seed(7)
    one, other = (torch.randint(0, 9, (70, 7), generator=random).to(DEVICE) for _ in range(2))
    with use_backend(name):
        precompute_unique_items(one, other, 7)
        for items in (one, other):
            known, alone = unique_items(items, 7), unique_items(items.clone(), 7)
            assert known is unique_items(items, 7)
            for part in ("items", "full", "inside", "log_counts"):
                assert torch.equal(getattr(known, part), getattr(alone, part)), part
        before = unique_items(one, 7)
        other[0] = 3
        precompute_unique_items(one, other, 7)
        assert unique_items(one, 7) is before
        assert unique_items(other, 7).items[0].tolist() == [3, *[7] * 6]


@pytest.mark.parametrize("of_state", [True, False])
def test_scores_of_what_was_seen(of_state: bool) -> None:
    """More places learned than the batch needs, items seen twice, padding: the same values and gradients."""
    random = torch.Generator().manual_seed(0)
    items = torch.randint(0, 9, (90, 7), generator=random).to(DEVICE)
    shapes = {"by_place": (12,), "by_count": (), "product": (90, 7)}
    given = {name: torch.randn(shape, generator=random).to(DEVICE).requires_grad_() for name, shape in shapes.items()}
    push = torch.randn(90, 7, generator=random).to(DEVICE)
    leaves = [given[name] for name in shapes if of_state or name != "product"]
    found = []
    for name in ("kernels", "tiled"):
        with use_backend(name):
            product = given["product"] if of_state else None
            z = score_unique_items(unique_items(items.clone(), 7), given["by_place"], given["by_count"], product, 4.0)
        found.append([z, *torch.autograd.grad((z * push).sum(), leaves)])
    for mine, its in zip(*found, strict=True):
        assert mine.shape == its.shape
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)
    assert (found[0][0][items >= 7] == 0).all()
    assert found[0][1][7:].eq(0).all()


@pytest.mark.parametrize("name", ["kernels", "tiled"])
@pytest.mark.parametrize(("places", "product"), [(6, None), (1, None), (12, (90, 6)), (12, (89, 7)), (12, (1, 7))])
def test_scores_of_other_shapes_are_refused(name: str, places: int, product: tuple[int, int] | None) -> None:
    """A kernel would read beyond them and give numbers, and one place would stand for all."""
    known = unique_items(torch.zeros(90, 7, dtype=torch.long, device=DEVICE), 7)
    of_state = None if product is None else torch.zeros(product, device=DEVICE)
    with use_backend(name), pytest.raises(ValueError, match=r"do not fit items \(90, 7\)"):
        score_unique_items(known, torch.zeros(places, device=DEVICE), torch.zeros((), device=DEVICE), of_state, 4.0)
