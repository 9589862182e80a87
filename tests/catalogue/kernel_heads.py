"""Random heads for the kernels, and a comparison of their results with the dense reference in float64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from offrec.catalogue import Head, use_backend

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [(1, 1, 1), (1, 200, 5), (70, 1, 16), (5, 37, 8), (130, 150, 20), (33, 300, 64)]  # rows, items, width
CORRECTIONS = ["none", "added", "replaced", "padding"]


@dataclass(frozen=True)
class TestHead:
    """A head, and those of its tensors that need gradients."""

    __test__ = False  # not a test class

    head: Head
    leaves: list[Tensor]

    def double(self) -> "TestHead":
        """Return the same head in float64, with new leaves."""
        values = {
            name: None if (part := getattr(self.head, name)) is None else part.detach().double().requires_grad_()
            for name in ("state", "table", "bias", "values")
        }
        head = replace(self.head, **values)
        return TestHead(head, [part for part in values.values() if part is not None])


def make(
    shape: tuple[int, int, int],
    corrections: str = "none",
    *,
    bias: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> TestHead:
    """Make a random head of a shape (rows, items, width) with one kind of CORRECTIONS."""
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
        parts["replaces_base"] = corrections == "replaced"
    return TestHead(Head(**parts), leaves)


def compare(
    made: Sequence[TestHead], of: Callable[..., Sequence[Tensor]], tolerance: float = 2e-5, dense: Any = None
) -> None:
    """Compare values and all gradients of `of(*heads)`: kernels against the dense reference in float64."""
    exact = [one.double() for one in made]
    with use_backend("kernels"):
        outputs = list(of(*(one.head for one in made)))
    with use_backend("reference"):
        expected = list(of(*(one.head for one in exact)))
    weights = [torch.randn(part.shape, generator=torch.Generator().manual_seed(9)).to(DEVICE) for part in outputs]
    for some, leaves in ((outputs, made), (expected, exact)):
        for leaf in (leaf for one in leaves for leaf in one.leaves):
            leaf.grad = None
        total = sum((part * weight).sum() for part, weight in zip(some, weights, strict=True))
        assert isinstance(total, Tensor)
        total.backward()
    for part, true in zip(outputs, expected, strict=True):
        close(part, true, tolerance)
    for one, true_one in zip(made, exact, strict=True):
        for leaf, true in zip(one.leaves, true_one.leaves, strict=True):
            assert (leaf.grad is None) == (true.grad is None)
            if leaf.grad is not None and true.grad is not None:
                close(leaf.grad, true.grad, tolerance)


def close(part: Tensor, true: Tensor, tolerance: float) -> None:
    """Assert that two tensors agree, relative to the largest value."""
    part, true = part.detach(), true.detach()
    scale = max(1.0, float(true.abs().max())) if true.numel() else 1.0
    torch.testing.assert_close(part.double(), true.double(), rtol=0, atol=tolerance * scale)
