"""The record of a baseline, which describes it to every command. Each baseline declares one next to its class."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from offrec.data.dataset import Dataset
from offrec.plugins import Registry, check_callable, check_count, check_texts
from offrec.policy import Policy


@dataclass(frozen=True)
class BaselineRecord:
    """A policy without training, as commands and reports see it.

    Args:
        name: The name after `--baseline`: "recent".
        label: The name in tables: "Most recent items".
        build: Builds the policy from a dataset, the length of the longest history and a device.
        help: One line that says how the baseline ranks.
        short_label: The name in figures, where space is scarce; by default the label.
        skip_recent: When a simulated shop plays the policy, how many of the visitor's last picks rank below all other
            items.
        needs_lists: Whether it needs a log with served lists. Comparisons on other logs leave it out.
        needs_features: Whether it needs item features (`prepare --items`). Comparisons on other datasets leave it out.
    """

    name: str
    label: str
    build: Callable[[Dataset, int, torch.device], Policy]
    help: str
    short_label: str = ""
    skip_recent: int = 0
    needs_lists: bool = False
    needs_features: bool = False

    @property
    def needs_only_events(self) -> bool:
        """Whether it can be built from any log."""
        return not (self.needs_lists or self.needs_features)

    def missing(self, dataset: Dataset) -> str | None:
        """Return what the baseline needs and a dataset does not have; None if it has everything."""
        if self.needs_lists and dataset.decisions is None:
            return "served lists"
        has_features = dataset.item_properties is not None and dataset.item_properties.has_features
        return "item features (prepare --items)" if self.needs_features and not has_features else None

    def left_out(self, dataset: Dataset) -> str | None:
        """Return the sentence that says why the baseline is left out for a dataset; None if it can be built."""
        need = self.missing(dataset)
        name = dataset.path.resolve().name
        return need and f"Left out: {self.name}, which needs {need}; the dataset {name} contains none."


def _check(record: BaselineRecord) -> str | None:
    return (
        check_texts(record, ("label", "help")) or check_callable(record, "build") or check_count(record, "skip_recent")
    )


BASELINES: Registry[BaselineRecord] = Registry("baseline", BaselineRecord, _check)


def register_baseline(record: BaselineRecord) -> BaselineRecord:
    """Register a baseline with every command.

    Args:
        record: Its record.

    Returns:
        The same record.

    Raises:
        InputError: The record is not valid, or another baseline has this name.

    Example:
        >>> offrec.register_baseline(offrec.BaselineRecord("mine", "Mine", Mine, "My own ranking."))
    """
    return BASELINES.register(record)
