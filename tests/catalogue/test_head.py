from dataclasses import replace

import pytest
import torch

from offrec.catalogue import Head, reference
from offrec.catalogue import head as head_module
from offrec.catalogue.head import MASKED, Support


def test_logits_worked_by_hand() -> None:
    head = Head(
        state=torch.tensor([[1.0, 2.0], [0.0, 1.0]]),
        table=torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        bias=torch.tensor([0.5, 0.0, -1.0]),
        items=torch.tensor([[2, 2, 3], [0, 3, 3]]),  # the two corrections of item 2 add up; 3 is padding
        values=torch.tensor([[10.0, 1.0, 99.0], [4.0, 99.0, 99.0]]),
    )
    expected = torch.tensor([[1.5, 2.0, 13.0], [4.5, 1.0, 0.0]])
    assert torch.equal(reference.logits(head), expected)
    assert torch.equal(head.at(torch.tensor([[2, 0, 1], [1, 1, 0]])), torch.tensor([[13.0, 1.5, 2.0], [1.0, 1.0, 4.5]]))


def test_a_nan_correction_affects_only_its_item() -> None:
    head = Head(torch.ones(1, 1), torch.ones(3, 1), items=torch.tensor([[1]]), values=torch.tensor([[torch.nan]]))
    at = head.at(torch.tensor([[0, 1, 2]]))[0]
    assert at[1].isnan()
    assert at[[0, 2]].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("replaces_base", [False, True])
def test_many_corrections_are_compared_in_chunks(replaces_base: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    items, values = torch.randint(0, 12, (3, 5)), torch.randn(3, 5)
    head = Head(torch.randn(3, 2), torch.randn(11, 2), None, items, values, replaces_base)
    head = replace(head, support=Support(Head(torch.ones(3, 1), torch.randn(11, 1)), torch.zeros(3)))
    actions, sizes, real = torch.randint(0, 11, (3, 8)), [], torch.where
    whole = head.at(actions)
    monkeypatch.setattr(head_module, "MAX_COMPARISONS", 45)
    monkeypatch.setattr(head_module.torch, "where", lambda *parts: sizes.append(parts[0].numel()) or real(*parts))
    assert torch.equal(head.at(actions), whole)
    assert max(sizes) == 45


def test_masked_items_have_finite_values_and_no_probability() -> None:
    head = Head(torch.ones(2, 1), torch.tensor([[1.0], [2.0], [3.0]])).mask(torch.tensor([[2, 3], [0, 1]]))
    z = reference.logits(head)
    assert z.isfinite().all()
    assert z[0, 2] == MASKED
    assert torch.softmax(z, 1)[1].tolist() == [0.0, 0.0, 1.0]


def test_masking_keeps_existing_corrections() -> None:
    head = Head(torch.zeros(1, 0), torch.zeros(3, 0), torch.tensor([1.0, 2.0, 3.0]))
    head = head.with_corrections(torch.tensor([[0]]), torch.tensor([[5.0]])).mask(torch.tensor([[1]]))
    assert reference.logits(head)[0, [0, 2]].tolist() == [6.0, 3.0]
    assert reference.logits(head)[0, 1] == MASKED


def test_a_slice_of_rows_is_a_head_of_those_rows() -> None:
    torch.manual_seed(0)
    head = Head(torch.randn(5, 3), torch.randn(7, 3), None, torch.randint(0, 8, (5, 2)), torch.randn(5, 2))
    part = head.slice_rows(1, 4)
    assert part.n_rows == 3
    assert torch.equal(reference.logits(part), reference.logits(head)[1:4])


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"table": torch.zeros(3, 4)}, "does not fit table"),
        ({"state": torch.zeros(2)}, "does not fit table"),
        ({"bias": torch.zeros(2)}, "bias .* does not fit"),
        ({"items": torch.zeros(2, 1, dtype=torch.long)}, "both items and values"),
        ({"items": torch.zeros(2, 1, dtype=torch.long), "values": torch.zeros(2, 2)}, "for 2 rows"),
        ({"items": torch.zeros(3, 1, dtype=torch.long), "values": torch.zeros(3, 1)}, "for 2 rows"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(parts: dict[str, torch.Tensor], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Head(**{"state": torch.zeros(2, 2), "table": torch.zeros(3, 2), **parts})


def full_head() -> Head:
    torch.manual_seed(1)
    items, values = torch.tensor([[0, 0], [2, 3]]), torch.randn(2, 2)
    return Head(torch.randn(2, 2), torch.randn(3, 2), torch.randn(3), items, values)


@pytest.mark.parametrize("by", [2.5, torch.tensor(2.5)])
def test_a_scaled_head_has_scaled_values(by: float | torch.Tensor) -> None:
    for head in (full_head(), replace(full_head(), replaces_base=True), replace(full_head(), bias=None)):
        torch.testing.assert_close(reference.logits(head.scale(by)), 2.5 * reference.logits(head))


def test_the_base_has_no_corrections() -> None:
    head = full_head()
    assert torch.equal(reference.logits(head.base), reference.logits(Head(head.state, head.table, head.bias)))
    assert head.base.state is head.state  # the tiled core recognises π by its tensors


def test_a_detached_head_passes_no_gradient() -> None:
    head = full_head()
    parts = {name: getattr(head, name).requires_grad_() for name in ("state", "table", "bias", "values")}
    bounded = replace(head, **parts, support=Support(replace(head, **parts), parts["bias"][:2]))
    assert bounded.at(head.items.clamp(max=2)).requires_grad
    detached = bounded.detach()
    assert not detached.at(head.items.clamp(max=2)).requires_grad
    assert detached.support is not None
    assert not detached.support.head.state.requires_grad
    assert torch.equal(reference.logits(detached), reference.logits(bounded))


def test_gradients_of_a_frequent_item_are_summed_in_float32() -> None:
    table = torch.zeros(3, 4, requires_grad=True)
    state = torch.full((4096, 4), 1.01)
    Head(state, table).as_bfloat16().at(torch.ones(4096, 1, dtype=torch.long)).sum().backward()
    assert table.grad is not None
    torch.testing.assert_close(
        table.grad[1], torch.full((4,), 4096 * 1.01), rtol=1e-4, atol=0
    )  # bfloat16 would need 1e-2
