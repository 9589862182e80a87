"""Types shared by the records: settings under dotted keys, and the ranges that `offrec tune` searches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Settings = dict[str, Any]  # "training.epochs" → 3
PRESET_NAMES = ("strong", "paper")


@dataclass(frozen=True)
class Range:
    """A range of numbers to search.

    Args:
        low: The smallest value.
        high: The largest value.
        log: Sample on a logarithmic scale.
        whole: Sample whole numbers only.
    """

    low: float
    high: float
    log: bool = True
    whole: bool = False


SearchSpace = Mapping[str, Range | tuple[Any, ...]]  # dotted key → a range, or the values to choose from
