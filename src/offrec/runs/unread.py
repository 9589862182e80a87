"""Options that a learner shares with others and does not read: refused where they are set, and not listed for it."""

from collections.abc import Mapping
from typing import Any

from offrec.errors import InputError

_NO_SAMPLE = "its actor imitates logged items and takes no sample of its own"
_ONE_BACKBONE = "its critic is a second head on the policy's own backbone"
UNREAD: dict[str, dict[str, str]] = {
    "pc": {"algorithm.gumbel_temperature": _NO_SAMPLE, "algorithm.straight_through": _NO_SAMPLE},
    "sl+dqn": {
        f"critic.{name}": f"{_ONE_BACKBONE}; set network.{name}"
        for name in ("backbone", "width", "layers", "dropout", "repeat")
    },
}


def unread(algorithm: str) -> Mapping[str, str]:
    """Dotted key → why."""
    return UNREAD.get(algorithm, {})


def refuse(algorithm: str, given: Mapping[str, Any]) -> None:
    for key, why in unread(algorithm).items():
        if given.get(key) not in (None, "none"):
            raise InputError(f"{key} has no meaning for {algorithm}: {why}.")
