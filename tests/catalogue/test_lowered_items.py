"""Lowering items of a head, compared with sorting the whole catalogue."""

import pytest
import torch
from random_heads import KINDS, make_head

from offrec.catalogue import Head, rank_last, reference, sample_k, top_k
from offrec.catalogue.head import ALL_MASKED

ROWS, ITEMS = 16, 9


def by_hand(head: Head, items: torch.Tensor) -> list[list[int]]:
    """Sort each row's items, then move the lowered ones to the end. Masked items stay behind all others."""
    lists = []
    for z, lowered in zip(reference.logits(head), items.tolist(), strict=True):
        order = z.sort(descending=True, stable=True).indices.tolist()
        lists.append(sorted(order, key=lambda item: (bool(z[item] <= ALL_MASKED), item in lowered)))
    return lists


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_lowered_items_come_last_in_their_own_order(kind: str, dtype: torch.dtype, scale: float) -> None:
    random = torch.Generator().manual_seed(0)
    head = make_head(random, ROWS, ITEMS, 4, kind).scale(scale if kind != "masked" else 1.0)
    head = Head(
        *(part if part is None else part.to(dtype) for part in (head.state, head.table, head.bias)),
        head.items,
        None if head.values is None else head.values.to(dtype),
        head.replaces_base,
    )
    items = torch.randint(0, ITEMS + 3, (ROWS, 4), generator=random)  # with duplicates and padding
    lowered = rank_last(head, items)
    assert top_k(lowered, ITEMS)[1].tolist() == by_hand(head, items)


def test_every_item_can_be_lowered() -> None:
    head = make_head(torch.Generator().manual_seed(1), 3, 5, 2)
    lowered = rank_last(head, torch.arange(5).repeat(3, 2))
    assert torch.equal(top_k(lowered, 5)[1], top_k(head, 5)[1])


def test_no_items_leave_the_head_unchanged() -> None:
    head = make_head(torch.Generator().manual_seed(1), 3, 5, 2)
    assert rank_last(head, torch.zeros(3, 0, dtype=torch.long)) is head
    assert torch.equal(reference.logits(rank_last(head, torch.full((3, 2), 5))), reference.logits(head))


def test_a_sampled_list_contains_lowered_items_only_at_its_end() -> None:
    random = torch.Generator().manual_seed(2)
    head = Head(torch.zeros(500, 1), torch.zeros(6, 1))
    lists = sample_k(rank_last(head, torch.tensor([[4, 1]]).expand(500, -1)), 6, random)
    assert set(lists[:, :4].unique().tolist()) == {0, 2, 3, 5}
    assert lists[:, 4:].sort(1).values.eq(torch.tensor([1, 4])).all()
    assert lists[:, 0].bincount(minlength=6).tolist() == pytest.approx([125, 0, 125, 125, 0, 125], abs=45)
