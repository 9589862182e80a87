"""Operations on few items per row: kernels (under Triton's interpreter without a GPU) against PyTorch."""

import pytest
import torch

from offrec.catalogue import Head, use_backend
from offrec.catalogue.corrections import score_unique_items, unique_items

pytest.importorskip("triton", reason="the kernels need triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FIELDS = ("items", "filled", "clamped", "log_counts")


@pytest.mark.parametrize("kind", ["strided", "bf16"])
def test_a_bias_may_have_any_layout_and_type(kind: str) -> None:
    random = torch.Generator().manual_seed(0)
    state, table = (torch.randn(n, 4, generator=random).to(DEVICE) for n in (3, 10))
    whole = torch.randn(10, 2, generator=random).to(DEVICE)
    bias = (whole[:, 0] if kind == "strided" else whole[:, 0].bfloat16()).detach().requires_grad_()
    items = torch.randint(0, 10, (3, 5), generator=random).to(DEVICE)
    results = {}
    for name in ("kernels", "tiled"):
        with use_backend(name):
            z = Head(state, table, bias).at(items)
            results[name] = z, *torch.autograd.grad((z * z.detach()).sum(), bias)
    for mine, its in zip(results["kernels"], results["tiled"], strict=True):
        torch.testing.assert_close(mine.float(), its.float(), atol=1e-2 if kind == "bf16" else 1e-5, rtol=1e-2)


@pytest.mark.parametrize("name", ["kernels", "tiled"])
def test_unique_items_by_hand(name: str) -> None:
    """Seven items; 7 and 8 are padding."""
    with use_backend(name):
        unique = unique_items(torch.tensor([[3, 5, 3, 8, 3], [7, 0, 0, 1, 7]], device=DEVICE), 7)
    assert unique.filled.tolist() == [[1, 1, 0, 0, 0], [0, 1, 0, 1, 0]]
    slots = unique.filled.bool()
    assert unique.items[slots].tolist() == [3, 5, 0, 1]
    assert (unique.items[~slots] >= 7).all()
    assert unique.log_counts[slots].exp().tolist() == pytest.approx([3, 1, 2, 1])
    assert (unique.clamped < 7).all()


def test_unique_items_agree_with_pytorch() -> None:
    """Padding and repeated items leave empty slots."""
    items = torch.randint(0, 9, (70, 7), generator=torch.Generator().manual_seed(6)).to(DEVICE)
    results = []
    for name in ("kernels", "tiled"):
        with use_backend(name):
            results.append(unique_items(items, 7))
    for field in FIELDS:
        torch.testing.assert_close(getattr(results[0], field), getattr(results[1], field))


@pytest.mark.parametrize("with_product", [True, False])
def test_scores_of_unique_items_agree_with_pytorch(with_product: bool) -> None:
    """More positions than the batch needs, repeated items, padding: equal values and gradients."""
    random = torch.Generator().manual_seed(0)
    items = torch.randint(0, 9, (90, 7), generator=random).to(DEVICE)
    shapes = {"by_position": (12,), "by_count": (), "product": (90, 7)}
    given = {name: torch.randn(shape, generator=random).to(DEVICE).requires_grad_() for name, shape in shapes.items()}
    weight = torch.randn(90, 7, generator=random).to(DEVICE)
    leaves = [given[name] for name in shapes if with_product or name != "product"]
    results = []
    for name in ("kernels", "tiled"):
        with use_backend(name):
            product = given["product"] if with_product else None
            z = score_unique_items(unique_items(items, 7), given["by_position"], given["by_count"], product, 4.0)
        results.append([z, *torch.autograd.grad((z * weight).sum(), leaves)])
    for mine, its in zip(*results, strict=True):
        assert mine.shape == its.shape
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)
    assert (results[0][0][items >= 7] == 0).all()
    assert results[0][1][7:].eq(0).all()


@pytest.mark.parametrize("name", ["kernels", "tiled"])
@pytest.mark.parametrize(("positions", "product"), [(6, None), (1, None), (12, (90, 6)), (12, (89, 7)), (12, (1, 7))])
def test_scores_of_other_shapes_are_refused(name: str, positions: int, product: tuple[int, int] | None) -> None:
    """A kernel would read out of bounds, and PyTorch would broadcast."""
    unique = unique_items(torch.zeros(90, 7, dtype=torch.long, device=DEVICE), 7)
    products = None if product is None else torch.zeros(product, device=DEVICE)
    with use_backend(name), pytest.raises(ValueError, match=r"do not match items \(90, 7\)"):
        score_unique_items(
            unique, torch.zeros(positions, device=DEVICE), torch.zeros((), device=DEVICE), products, 4.0
        )  # fmt: skip
