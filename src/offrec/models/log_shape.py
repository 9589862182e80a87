"""The properties of a log that determine the shape of a user model. They are stored with the run."""

from dataclasses import asdict, dataclass
from typing import Any

from offrec.data.dataset import Dataset


@dataclass(frozen=True)
class LogShape:
    """The shape of a log."""

    behaviours: int = 1
    """Number of behaviours."""
    list_length: int = 0
    """Length of the longest list; 0 if the log has no lists."""

    @staticmethod
    def of(dataset: Dataset) -> "LogShape":
        """Return the shape of a dataset's log."""
        return LogShape(len(dataset.behaviours), 0 if dataset.decisions is None else dataset.decisions.k)

    def as_json(self) -> dict[str, Any]:
        """Return the shape as a JSON object."""
        return asdict(self)
