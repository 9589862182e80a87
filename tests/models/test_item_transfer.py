"""Weights are carried over by item id, with numbers worked by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from offrec.data.vocabulary import Vocabulary
from offrec.models.item_transfer import find_item_tensors, match_items, transfer_rows, transfer_weights
from offrec.types import Sessions


def sessions(*items: list[int]) -> Sessions:
    events = [item for session in items for item in session]
    offsets = np.cumsum([0, *map(len, items)]).astype(np.int64)
    return Sessions(np.array(events, np.int32), np.zeros(len(events), np.uint8), offsets)


def test_rows_are_matched_by_id_and_new_items_start_from_their_neighbours() -> None:
    """Old ids 10, 20, 30; new ids 5, 10, 30, 40, 50: 20 has vanished, 5, 40 and 50 are new."""
    old, new = Vocabulary(np.array([10, 20, 30])), Vocabulary(np.array([5, 10, 30, 40, 50]))
    # 5 is one step from 10 and two steps from 30: weights 1 and 1/2. 50 is only near 40, which is new too.
    match = match_items(old, new, sessions([0, 1, 2], [3, 4]))
    assert match.old_index.tolist() == [-1, 0, 2, -1, -1]
    assert (match.matched, match.new, match.vanished) == (2, 3, 1)
    table = torch.tensor([[3.0, 0.0], [100.0, 100.0], [0.0, 6.0], [7.0, 7.0]])  # the last row is the start token
    rows = transfer_rows(table, match)
    mean = [1.5, 3.0]  # of the matched rows; the vanished row does not count
    expected = [[2.0, 2.0], [3.0, 0.0], [0.0, 6.0], mean, mean, [7.0, 7.0]]
    torch.testing.assert_close(rows, torch.tensor(expected))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([10, 20], ["20", "x", "10"], [1, -1, 0]),
        (["a", "b"], ["b", "c", "a"], [1, -1, 0]),
        (["10", "020"], [10, 20], [0, -1]),
        ([30, 10, 20], [10, 15, 30], [1, -1, 0]),
    ],
)
def test_ids_match_whether_they_are_numbers_or_text(
    old: list[int] | list[str], new: list[int] | list[str], expected: list[int]
) -> None:
    vocabularies = [Vocabulary(np.array(ids) if isinstance(ids[0], int) else ids) for ids in (old, new)]  # type: ignore[arg-type]
    match = match_items(*vocabularies, sessions(list(range(len(new)))))
    assert match.old_index.tolist() == expected


class Model(nn.Module):
    """A table whose size equals that of another tensor when there are 4 items."""

    from_log = ("counts",)

    def __init__(self, n_items: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(n_items, 4))
        self.square = nn.Parameter(torch.zeros(4, 4))
        self.register_buffer("counts", torch.zeros(n_items))


def test_tensors_of_items_are_recognised_by_their_dependence_on_the_catalogue() -> None:
    """With 4 items the table and the square have the same shape, but only the table has rows of items."""
    assert find_item_tensors(Model, 4) == {"table": 0, "counts": 0}
    match = match_items(Vocabulary(np.arange(4)), Vocabulary(np.array([3, 2])), sessions([0, 1]))
    model, square = Model(2), torch.arange(16.0).reshape(4, 4)
    weights = {"table": square.clone(), "square": square, "counts": torch.ones(4)}
    transfer_weights(model, weights, match, find_item_tensors(Model, 4))
    assert torch.equal(model.table, square[[3, 2]])
    assert torch.equal(model.square, square)
    assert model.counts.tolist() == [0, 0]  # counted in the new log


def test_a_tensor_of_another_shape_is_refused() -> None:
    match = match_items(Vocabulary(np.arange(4)), Vocabulary(np.arange(4)), sessions([0, 1]))
    weights = {"table": torch.zeros(4, 4), "square": torch.zeros(3, 4)}
    with pytest.raises(ValueError, match=r"square has the shape \[3, 4\] instead of \[4, 4\]"):
        transfer_weights(Model(4), weights, match, find_item_tensors(Model, 4))
