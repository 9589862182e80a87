"""Copy trained weights to a model of another catalogue. Rows of items are matched by item id, not by position."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from offrec.data.item_properties import ItemProperties
from offrec.data.neighbours import MAX_GAP
from offrec.data.vocabulary import Vocabulary, match_ids
from offrec.types import Longs, Sessions

CHUNK = 1 << 18  # pairs of items whose rows are gathered at once
FEATURE_MAPS = ("map_in", "map_out", "prior_mean")  # names of feature maps in networks and user models
CATEGORY_TENSORS = (".categories", ".category_bias")  # of a feature map, with one row per category
ItemTensors = dict[str, int]  # the tensors with one row per item, and how many rows they have in addition


@dataclass(frozen=True)
class Neighbours:
    """The old items that occur near new items in the new log, as P pairs in ascending order."""

    row: Tensor  # [P] the new item, counted among the new items
    index: Tensor  # [P] the old item
    weight: Tensor  # [P] the weights of a new item sum to 1


@dataclass(frozen=True)
class ItemMatch:
    """The items of a new catalogue in an old one.

    Attributes:
        old_index: [A] index of each item in the old catalogue; −1 for a new item.
        old_items: Size of the old catalogue.
        neighbours: The old items that occur near the new items.
    """

    old_index: Longs
    old_items: int
    neighbours: Neighbours

    @property
    def matched(self) -> int:
        """Number of items in both catalogues."""
        return int((self.old_index >= 0).sum())

    @property
    def new(self) -> int:
        """Number of items in the new catalogue alone."""
        return len(self.old_index) - self.matched

    @property
    def vanished(self) -> int:
        """Number of items in the old catalogue alone."""
        return self.old_items - self.matched

    @property
    def is_identity(self) -> bool:
        """Whether both catalogues are the same."""
        return len(self.old_index) == self.old_items and bool((self.old_index == np.arange(self.old_items)).all())


def match_items(old: Vocabulary, new: Vocabulary, sessions: Sessions) -> ItemMatch:
    """Match two catalogues by item id.

    Args:
        old: The catalogue of the trained weights.
        new: The catalogue of the new log.
        sessions: The training sessions of the new log, with the items of `new`.
    """
    old_index = match_ids(old, new)
    return ItemMatch(old_index, len(old), _neighbour_weights(sessions, old_index, len(old)))


def _neighbour_weights(sessions: Sessions, old_index: Longs, old_items: int) -> Neighbours:
    """Count old items near new items as in `data/neighbours.py`: a pair with a gap of n events counts 1 / n."""
    begin, end = int(sessions.offsets[0]), int(sessions.offsets[-1])
    items = np.asarray(sessions.items[begin:end]).astype(np.int64)
    session = np.repeat(np.arange(len(sessions)), np.diff(sessions.offsets))
    row_of = np.cumsum(old_index < 0) - 1  # of a new item in the result
    pairs, weights = [np.empty(0, np.int64)], [np.empty(0)]
    for gap in range(1, min(MAX_GAP, len(items) - 1) + 1):
        earlier = np.flatnonzero(session[gap:] == session[:-gap])
        for one, other in ((items[earlier], items[earlier + gap]), (items[earlier + gap], items[earlier])):
            is_pair = (old_index[one] < 0) & (old_index[other] >= 0)
            pairs.append(row_of[one[is_pair]] * old_items + old_index[other[is_pair]])
            weights.append(np.full(int(is_pair.sum()), 1.0 / gap))
    pair, number = np.unique(np.concatenate(pairs), return_inverse=True)
    total = np.bincount(number, np.concatenate(weights), minlength=len(pair)).astype(np.float64)
    row, index = pair // old_items, pair % old_items
    weight = total / np.bincount(row, total, minlength=1)[row]
    return Neighbours(torch.from_numpy(row), torch.from_numpy(index), torch.from_numpy(weight).float())


def new_item_rows(table: Tensor, match: ItemMatch) -> Tensor:
    """Return initial rows for the new items. This function alone decides them.

    A new item gets the mean row of the old items that occur near it in the new log, weighted by how often and how
    close they occur. An item without such neighbours gets the mean row of all matched items.

    Args:
        table: [old items, …] the trained rows of one tensor.
        match: The matched catalogues.

    Returns:
        [new items, …] rows in the order of the new catalogue.
    """
    near = match.neighbours
    rows = table.new_zeros(match.new, *table.shape[1:])
    for begin in range(0, len(near.row), CHUNK):
        part = slice(begin, begin + CHUNK)
        weight = near.weight[part].reshape(-1, *[1] * (table.ndim - 1))
        rows.index_add_(0, near.row[part], weight * table[near.index[part]])
    is_isolated = torch.ones(match.new, dtype=torch.bool)
    is_isolated[near.row] = False
    rows[is_isolated] = table[torch.from_numpy(match.old_index[match.old_index >= 0])].mean(0)
    return rows


def transfer_rows(table: Tensor, match: ItemMatch) -> Tensor:
    """Return a table [items, …] of the new catalogue, from a table [old items, …] of the old one.

    Rows after the items, such as the start token, are copied.
    """
    items, others = table[: match.old_items], table[match.old_items :]
    is_new = torch.from_numpy(match.old_index < 0)
    rows = items.new_empty(len(is_new), *items.shape[1:])
    rows[~is_new] = items[torch.from_numpy(match.old_index[match.old_index >= 0])]
    rows[is_new] = new_item_rows(items, match)
    return torch.cat([rows, others])


def transfer_categories(weights: Mapping[str, Tensor], old: ItemProperties, new: ItemProperties) -> dict[str, Tensor]:
    """Return weights whose feature maps have the categories of new item properties, matched by column and value.

    New categories start at 0, like unknown ones. Item vectors are added to the mapped features, so `transfer_rows`
    works as without features.

    Args:
        weights: The weights of a model.
        old: The item properties that it was trained with.
        new: The item properties of the new catalogue, with the same columns.
    """
    rows: dict[tuple[str, str], int] = {}
    offset = 1  # row 0: unknown
    for column in old.categories:
        rows |= {(column.name, value): offset + number for number, value in enumerate(column.values)}
        offset += len(column.values)
    index = [0, *(rows.get((column.name, value), -1) for column in new.categories for value in column.values)]
    source = torch.tensor(index)
    transferred = dict(weights)
    for name, tensor in weights.items():
        if any(f".{one}." in f".{name}" for one in FEATURE_MAPS) and name.endswith(CATEGORY_TENSORS):
            transferred[name] = torch.where(source[:, None] >= 0, tensor[source.clamp(min=0)], 0.0)
    return transferred


def find_item_tensors(build: Callable[[int], nn.Module], n_items: int) -> ItemTensors:
    """Return which tensors of a model have one row per item, by building it for two sizes of the catalogue.

    Args:
        build: Builds the model for a number of items. It is called on the meta device, which allocates no memory.
        n_items: A number of items that the model supports.
    """
    with torch.device("meta"):
        one, other = build(n_items).state_dict(), build(n_items + 1).state_dict()
    return {name: len(one[name]) - n_items for name in one if one[name].shape != other[name].shape}


def log_tensors(module: nn.Module) -> Iterator[str]:
    """Yield the names of tensors that are counted in the log or set by options. They are never transferred.

    A module lists the names of such tensors in its attribute `from_log`.
    """
    for prefix, part in module.named_modules():
        for name in getattr(part, "from_log", ()):
            yield f"{prefix}.{name}" if prefix else name


@torch.no_grad()
def transfer_weights(
    module: nn.Module, weights: Mapping[str, Tensor], match: ItemMatch, item_tensors: ItemTensors, skip: str = ""
) -> None:
    """Load the weights of a model of the old catalogue into a model of the new one.

    Args:
        module: The model of the new catalogue.
        weights: The weights of a model with the same options and the old catalogue.
        match: The matched catalogues.
        item_tensors: The tensors with one row per item, as `find_item_tensors` returns them.
        skip: Tensors whose names begin with this text are not loaded.

    Raises:
        ValueError: If a tensor is missing or has another shape.
    """
    unchanged = set(log_tensors(module))
    for name, tensor in module.state_dict().items():
        if name in unchanged or (skip and name.startswith(skip)):
            continue
        if name not in weights:
            raise ValueError(f"{name} is missing")
        source = weights[name]
        source = transfer_rows(source, match) if name in item_tensors else source
        if source.shape != tensor.shape:
            raise ValueError(f"{name} has the shape {list(source.shape)} instead of {list(tensor.shape)}")
        tensor.copy_(source)
