"""An item at the bound is within, whoever asks: among few items, among all, or in a row by itself."""

import pytest
import torch

from offrec import critic
from offrec.catalogue import MASKED, Head, log_prob, maximum, top_k
from offrec.critic import within_support


@pytest.mark.parametrize(("delta", "alike", "left"), [(2.0, False, 1), (0.02, True, 50)])
def test_an_item_at_the_bound_is_within(delta: float, alike: bool, left: int) -> None:
    """The likeliest is at its own bound where none reaches δ; fifty items alike are all at δ = 1/50."""
    random = torch.Generator().manual_seed(0)
    state, table = torch.randn(200, 96, generator=random), torch.randn(50, 96, generator=random)
    b = Head(state, table[:1].repeat(50, 1) if alike else table)
    bounded = within_support(Head(state, table), b, delta)
    best, items = top_k(bounded, left)
    assert (best > MASKED).all()
    torch.testing.assert_close(bounded.at(items), best)
    assert (log_prob(bounded, items) > MASKED).all()
    for row in range(200):
        assert (top_k(bounded.rows_slice(row, row + 1), left)[0] > MASKED).all()
    assert ((bounded.at(torch.arange(50).expand(200, -1)) > MASKED).sum(1) == left).all()


@pytest.mark.parametrize("off", [-0.02, 0.02])
def test_the_likeliest_is_within_where_a_pass_multiplies_coarsely(monkeypatch: pytest.MonkeyPatch, off: float) -> None:
    """As a GPU does: what a pass finds differs from what is read of one item, either way."""
    torch.manual_seed(0)
    b = Head(torch.randn(50, 4), torch.randn(30, 4))

    def coarse(head: Head) -> tuple[torch.Tensor, torch.Tensor]:
        value, item = maximum(head)
        return value + off, item

    monkeypatch.setattr(critic, "maximum", coarse)
    bounded = within_support(Head(torch.randn(50, 4), torch.randn(30, 4)), b, delta=2.0)
    assert bounded.within is not None
    _, likeliest = maximum(b)
    assert (b.at(likeliest[:, None])[:, 0] >= bounded.within.bound).all()
    assert (maximum(b)[0] + off >= bounded.within.bound).all()
