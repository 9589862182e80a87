"""An item at the bound is inside the support in every computation: of a few items, of all, or of one row."""

import pytest
import torch

from offrec.catalogue import Head, log_prob, maximum, top_k
from offrec.catalogue.head import MASKED
from offrec.models import critic
from offrec.models.critic import within_support


@pytest.mark.parametrize(("delta", "alike", "left"), [(2.0, False, 1), (0.02, True, 50)])
def test_an_item_at_the_bound_is_within(delta: float, alike: bool, left: int) -> None:
    """If no item reaches δ, the likeliest is at its own bound; fifty equal items are all at δ = 1/50."""
    random = torch.Generator().manual_seed(0)
    state, table = torch.randn(200, 96, generator=random), torch.randn(50, 96, generator=random)
    b = Head(state, table[:1].repeat(50, 1) if alike else table)
    bounded = within_support(Head(state, table), b, delta)
    best, items = top_k(bounded, left)
    assert (best > MASKED).all()
    torch.testing.assert_close(bounded.at(items), best)
    assert (log_prob(bounded, items) > MASKED).all()
    for row in range(200):
        assert (top_k(bounded.slice_rows(row, row + 1), left)[0] > MASKED).all()
    assert ((bounded.at(torch.arange(50).expand(200, -1)) > MASKED).sum(1) == left).all()


def coarsely(head: Head) -> Head:
    """Truncate operands to ten bits, as TF32 does."""
    cut = [part.view(torch.int32).bitwise_and(~0x1FFF).view(torch.float32) for part in (head.state, head.table)]
    return Head(*cut)


def test_the_likeliest_is_within_where_a_pass_multiplies_coarsely(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: values from a pass have errors of either sign; values of single items have none."""
    torch.manual_seed(0)
    b = Head(torch.randn(2000, 64), torch.randn(30, 64))
    passed = coarsely(b)
    off = (passed.at(maximum(b)[1][:, None])[:, 0] - maximum(b)[0]).abs()
    assert off.max() > critic.ROUNDING, "or there is nothing to be seen here"
    monkeypatch.setattr(Head, "product_error", 2.0**-9)
    bounded = within_support(Head(torch.randn(2000, 4), torch.randn(30, 4)), b, delta=2.0)
    assert bounded.support is not None
    for head in (b, passed):
        assert (head.at(torch.arange(30).expand(2000, -1)) >= bounded.support.bound[:, None]).any(1).all()


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
def test_every_computation_finds_an_item_inside_the_support(device: str, narrow: bool) -> None:
    torch.manual_seed(0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        b = Head(torch.randn(4000, 64, device=device), torch.randn(3000, 64, device=device))
        ranked = Head(torch.randn(4000, 4, device=device), torch.randn(3000, 4, device=device))
        bounded = within_support(ranked, b.as_bfloat16() if narrow else b, delta=2.0)
        best, _ = top_k(bounded, 1)
        assert (best > MASKED).all()
        assert (bounded.at(maximum(b)[1][:, None]) > MASKED).all()
    finally:
        torch.set_float32_matmul_precision(before)
