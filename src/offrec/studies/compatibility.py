"""Check whether the results on several datasets can be shown in one table."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from offrec.errors import InputError
from offrec.studies.study import StudyDataset

SCORING_FIELDS = ("split", "split_parts", "score_first", "unseen", "score_last")  # equal in all logs of a table


def check_protocols(datasets: Iterable[StudyDataset]) -> None:
    """Raise an error if datasets are split or scored differently: their metrics are not comparable.

    Raises:
        InputError: If two datasets differ in one of `SCORING_FIELDS`.
    """
    first, *others = datasets
    for other in others:
        for name in SCORING_FIELDS:
            if first.protocol[name] != other.protocol[name]:
                raise InputError(
                    f"{first.name} has {name} = {_format(first.protocol[name])} and {other.name} has "
                    f"{_format(other.protocol[name])}; one table needs equal values; prepare both with the same "
                    "options, or create two studies."
                )


def check_splits(datasets: Sequence[StudyDataset]) -> None:
    """Raise an error if two splits of one log are given as two logs: they are not independent evidence.

    Raises:
        InputError: If two datasets differ only in their split seed and are not declared as repeated splits.
    """
    for first, other in combinations(datasets, 2):
        same_protocol = {**other.protocol, "split_seed": first.protocol["split_seed"]} == first.protocol
        same_log = same_protocol and other.protocol != first.protocol and other.counts == first.counts
        if first.log != other.log and same_log:
            raise InputError(
                f"{first.name} and {other.name} are the same log with --split-seed {first.protocol['split_seed']} and "
                f"{other.protocol['split_seed']}; add --repeated-splits and one seed per dataset, or leave one out."
            )


def _format(value: Any) -> str:
    return ":".join(f"{part:g}" for part in value) if isinstance(value, list) else str(value)
