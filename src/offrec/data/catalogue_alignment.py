"""Items numbered as another dataset or a run has them, so that its policies can be judged on this log."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from offrec.data.log import Log
from offrec.data.sessions import Events
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError


def align_items(log: Log, known: Vocabulary, home: Path) -> Log:
    """The log with the catalogue's numbers; the items of events that it does not know get the number after its last."""
    originals = log.item_ids.tolist() if isinstance(log.item_ids, np.ndarray) else log.item_ids
    found = [known.index(original) for original in originals]
    places = np.array([len(known) if place is None else place for place in found] + [-1], np.int32)  # −1 stays −1
    lists = log.lists
    if lists is not None:
        lists = replace(lists, items=places[lists.items])
        if (lists.items == len(known)).any():
            strangers = [original for original, place in zip(originals, found, strict=True) if place is None]
            raise InputError(
                f"A list offers an item that the catalogue of {home} does not know, such as {strangers[0]!r}; "
                "give the run that served it, or leave out --catalogue."
            )
    return replace(log, items=places[log.items], item_ids=known.ids, lists=lists)


def drop_unknown_items(events: Events, size: int) -> Events:
    """Without the events of items outside of the catalogue."""
    events = events.gathered()
    return events.where(events.items < size)
