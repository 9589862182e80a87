"""What a policy would earn, estimated from the log alone."""

from typing import Any

from offrec.data.dataset import Dataset
from offrec.policy import Policy


def value_of(policy: Policy, dataset: Dataset) -> dict[str, Any] | None:
    """{"value": a session, "low": …, "high": …, "verdict": in a few words}, from test sessions; None where nothing
    estimates it. Tables show a column for it where there is one.
    """
    return None
