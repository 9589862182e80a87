"""The protocol: every choice between a raw log and a figure, by name (SPEC: "SQN protocol" is at least four)."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

Split = Literal["random", "time"]
Unseen = Literal["keep", "drop"]


@dataclass(frozen=True)
class Protocol:
    format: str = "events"
    sessions: str = "column"  # "column", "user" (one session a user) or "gap" (users cut by inactivity)
    gap_minutes: float = 30.0  # only where sessions = "gap"
    behaviours_dropped: tuple[str, ...] = ()
    filters: tuple[
        str, ...
    ] = ()  # "item=3" keeps items with at least 3 events; "session.click=3" counts clicks; once, in this order
    sample: int | None = None  # keep so many sessions, drawn with split_seed, after the filters
    split: Split = "random"
    split_seed: int = 0
    split_parts: tuple[float, float, float] = (8.0, 1.0, 1.0)
    score_first: bool = True  # is the first event of a session (empty history) scored?
    unseen: Unseen = "keep"  # are test items that never occur in training scored?
    score_last: int | None = None  # score only the last n events of a session

    def as_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @staticmethod
    def from_json(stored: dict[str, Any]) -> "Protocol":
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in stored.items()}
        return Protocol(**values)


def fingerprint(data_hash: str, protocol: Protocol) -> str:
    """A short name for data and protocol together: figures with equal fingerprints may be compared."""
    spelled = json.dumps({"data": data_hash, "protocol": protocol.as_json()}, sort_keys=True)
    return hashlib.sha256(spelled.encode()).hexdigest()[:12]
