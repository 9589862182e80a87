"""Propensities that the log contains, in place of π̂_b."""

import numpy as np
import torch
from torch import Tensor

from offrec.data.dataset import Dataset
from offrec.errors import InputError


def logged_propensities(dataset: Dataset) -> Tensor:
    """Return the log propensity of each training event, [E] over the events of the whole log, NaN elsewhere.

    The propensity of an event is the probability with which its item was shown. Dividing π by it is right whether or
    not visitors pick everything: the probability of a pick, given the item, cancels. π̂_b contains that probability.

    Raises:
        InputError: The log has no lists, has lists of several items, or lacks the list of a training event. The
            propensity of a list of several items is that of the whole list, not of the item that was picked.
    """
    option = "algorithm.logging=logged needs the propensity of every training event"
    advice = "use algorithm.logging=fitted."
    lists = dataset.split_decisions("train")
    if lists is None:
        raise InputError(f"{option}, but {dataset.path} contains no served lists; {advice}")
    part = slice(int(lists.offsets[0]), int(lists.offsets[-1]))
    lengths = (np.asarray(lists.items[part]) < dataset.n_items).sum(1)
    if lengths.max(initial=1) > 1:
        raise InputError(
            f"{option}, but the lists of {dataset.path} have up to {lengths.max()} items and one propensity for the "
            f"whole list; {advice}"
        )
    event, log_propensity = np.asarray(lists.event[part]), np.asarray(lists.log_propensity[part])
    values = np.full(dataset.sessions.events, np.nan, dtype=np.float32)
    values[event[event >= 0]] = log_propensity[event >= 0]
    offsets = dataset.split("train").offsets
    missing = int(np.isnan(values[offsets[0] : offsets[-1]]).sum())
    if missing:
        raise InputError(f"{option}, but {missing:,} events of {dataset.path} belong to no list; {advice}")
    return torch.from_numpy(values)
