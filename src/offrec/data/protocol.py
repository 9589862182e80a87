"""The protocol: every choice that turns a raw log into a metric.

Publications differ in these choices: "the SQN protocol" alone has at least four versions.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

Split = Literal["random", "time", "hash"]
Unseen = Literal["keep", "drop"]


@dataclass(frozen=True)
class Protocol:
    """How a log was prepared and which test events are scored.

    Args:
        format: The raw format.
        sessions: The definition of a session: "column" (a session id), "user" (all events of a user) or "gap" (the
            events of a user between two periods of inactivity).
        gap_minutes: The period of inactivity that ends a session; only with "gap".
        behaviours_dropped: The behaviours that were removed first.
        filters: The filters, in the order in which they were applied, each once. "item=3" keeps items with at least 3
            events; "session.click=3" keeps sessions with at least 3 clicks.
        sample: The number of sessions that were sampled after the filters; None: all.
        sample_first: The number of sessions that were sampled before the filters; None: all.
        split: Whether sessions were split at random, by their start time, or by a keyed hash of their ids.
        split_seed: The seed of the split and of the sample; the key of the hash.
        split_parts: The proportions of training, validation and test.
        score_first: Whether the first event of a session, which has no history, is scored.
        unseen: Whether test events with items that never occur in training are scored.
        score_last: Score only the last n events of a session; None: all.
        exclude_seen: Whether items of the history are excluded from the ranking, so that a repeated item is a miss.
        skip_recent: How many of the last items of the history are ranked below all other items.
    """

    format: str = "events"
    sessions: str = "column"
    gap_minutes: float = 30.0
    behaviours_dropped: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    sample: int | None = None
    split: Split = "random"
    split_seed: int = 0
    split_parts: tuple[float, float, float] = (8.0, 1.0, 1.0)
    score_first: bool = True
    unseen: Unseen = "keep"
    score_last: int | None = None
    sample_first: int | None = None
    exclude_seen: bool = False
    skip_recent: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, as in dataset.json.

        `sample_first`, `exclude_seen` and `skip_recent` are left out if they change nothing. Fingerprints from before
        these options therefore stay valid.
        """
        optional = {name for name in ("sample_first", "exclude_seen", "skip_recent") if not getattr(self, name)}
        values = {key: value for key, value in asdict(self).items() if key not in optional}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @staticmethod
    def from_json(stored: dict[str, Any]) -> "Protocol":
        """Return the protocol that is stored in a dataset.json."""
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in stored.items()}
        return Protocol(**values)


def fingerprint(data_hash: str, protocol: Protocol) -> str:
    """Return a short hash of the data and the protocol; metrics with equal fingerprints are comparable.

    It covers `data_hash` (the contents of the arrays) and the names and values of all fields of the protocol. Renaming
    a field therefore changes the fingerprint of every dataset.
    """
    text = json.dumps({"data": data_hash, "protocol": protocol.as_json()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
