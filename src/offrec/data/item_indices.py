"""Item indices: number the items of a log consecutively, or as in another catalogue."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offrec.data.log import Log
from offrec.data.sessions import Events, Number, count
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.types import Ints, Longs


@dataclass(frozen=True)
class IndexedEvents:
    """Events whose items and behaviours are numbered consecutively."""

    events: Events
    item_ids: Longs | list[str]
    behaviour_names: tuple[str, ...]


def align_items(log: Log, vocabulary: Vocabulary, folder: Path, *, keep_new: bool = False) -> Log:
    """Give the items of a log the indices of another catalogue, so that its policies can be evaluated on this log.

    Args:
        log: The log.
        vocabulary: The other catalogue.
        folder: The folder of the other catalogue, for messages.
        keep_new: Whether unknown items get the indices after those of the catalogue.

    Returns:
        The log. Without `keep_new`, unknown items of events get the index len(vocabulary); `drop_unknown_items` removes
        those events.

    Raises:
        InputError: If a served list contains an unknown item, unless `keep_new` is set.
    """
    item_ids = log.item_ids.tolist() if isinstance(log.item_ids, np.ndarray) else log.item_ids
    known = [vocabulary.index(item_id) for item_id in item_ids]
    unknown = [item_id for item_id, index in zip(item_ids, known, strict=True) if index is None]
    if keep_new:
        return _align_and_append(log, vocabulary, known, unknown)
    # The last entry maps −1, which means "no item", to itself.
    indices = np.array([len(vocabulary) if index is None else index for index in known] + [-1], np.int32)
    lists = log.lists
    if lists is not None:
        lists = replace(lists, items=indices[lists.items])
        if (lists.items == len(vocabulary)).any():
            raise InputError(
                f"The catalogue of {folder} does not contain {unknown[0]!r}, which a served list offers; "
                "name the run that served the lists, add --keep-new-items, or remove --catalogue."
            )
    return replace(log, items=indices[log.items], item_ids=vocabulary.ids, lists=lists)


def _align_and_append(log: Log, vocabulary: Vocabulary, known: list[int | None], unknown: list[str] | list[int]) -> Log:
    new = iter(range(len(vocabulary), len(vocabulary) + len(unknown)))
    indices = np.array([next(new) if index is None else index for index in known] + [-1], np.int32)
    ids: Longs | list[str] = vocabulary.ids
    if isinstance(ids, np.ndarray) and isinstance(log.item_ids, np.ndarray):
        ids = np.append(ids, np.array(unknown, np.int64))
    else:  # one text makes all ids texts
        ids = [*map(str, ids), *map(str, unknown)]
    lists = None if log.lists is None else replace(log.lists, items=indices[log.lists.items])
    return replace(log, items=indices[log.items], item_ids=ids, lists=lists)


def append_items(log: Log, item_ids: Longs | list[str]) -> Log:
    """Return the log with further items, which have no events."""
    known = log.item_ids
    if isinstance(known, np.ndarray) and isinstance(item_ids, np.ndarray):
        both: Longs | list[str] = np.concatenate([known, item_ids])
    else:
        both = [*known, *item_ids]
    return replace(log, item_ids=both, unseen_items=len(item_ids))


def drop_unknown_items(events: Events, n_items: int) -> Events:
    """Remove the events whose items are not in the catalogue."""
    events = events.gather()
    return events.where(events.items < n_items)


def compact(
    events: Events,
    item_ids: Longs | list[str],
    behaviour_names: tuple[str, ...],
    offered: Ints | None = None,
    *,
    keep_from: int | None = None,
) -> tuple[IndexedEvents, Ints | None]:
    """Number items and behaviours consecutively.

    Args:
        events: Gathered events.
        item_ids: The ids of all items of the log.
        behaviour_names: The names of all behaviours of the log.
        offered: The served lists, padded with −1. Their items stay in the catalogue.
        keep_from: Items from this index on stay in the catalogue even without an event; None: none of them.

    Returns:
        The events with new numbers, and the lists with new numbers, padded with the number of items.
    """
    listed = np.zeros(0, np.int32) if offered is None else offered[offered >= 0]
    extra: Ints = np.arange(len(item_ids) if keep_from is None else keep_from, len(item_ids), dtype=np.int32)
    (items, listed, _), used = _renumber([events.items, listed, extra], len(item_ids))
    (behaviours,), used_names = _renumber([events.behaviours], len(behaviour_names))
    ids = item_ids[used] if isinstance(item_ids, np.ndarray) else [item_ids[index] for index in used]
    events = replace(events, items=items, behaviours=behaviours)
    if offered is not None:
        renumbered = np.full_like(offered, len(ids))
        renumbered[offered >= 0] = listed
        offered = renumbered
    return IndexedEvents(events, ids, tuple(behaviour_names[index] for index in used_names)), offered


def _renumber(arrays: list[NDArray[Number]], size: int) -> tuple[list[NDArray[Number]], Longs]:
    """Number values consecutively; return the new arrays and the old numbers that occur."""
    is_used = np.logical_or.reduce([count(array, size) > 0 for array in arrays])
    if is_used.all():
        return arrays, np.arange(size)
    new = (np.cumsum(is_used) - 1).astype(arrays[0].dtype)
    return [new[array] for array in arrays], np.flatnonzero(is_used)
