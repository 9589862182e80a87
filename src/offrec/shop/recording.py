"""Record the lists of a roll-out, their propensities and the reactions of the visitors."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from offrec.shop.logging_policy import mixture, propensities
from offrec.shop.randomness import Purpose, generator
from offrec.shop.visitors import BEHAVIOURS, Dynamics, Step, Visitors

if TYPE_CHECKING:
    import polars as pl  # imported where it is used, because roll-outs must also work without polars

START_TIME = 1_700_000_000  # seconds; one visitor arrives per minute
LOGGING_PROPENSITY = "logging_propensity"
ROWS = 1024  # visitors per batch of probabilities
STEP_SECONDS = (5, 90)  # bounds of the time between two steps of a visitor


class ListRecorder:
    """Records a roll-out. Players call `record_lists`, and `run_sessions` calls `watch`.

    Args:
        dynamics: If given, also record the probability of each list under the shop's logging policy.

    Attributes:
        columns: The recorded tensors by column, one per step and batch of visitors.

    Example:
        >>> recorder = ListRecorder()
        >>> run_sessions(dynamics, Logging(dynamics, recorder), 100, 0, MAX_STEPS, recorder.watch)
        >>> recorder.table(seed=0)
    """

    def __init__(self, dynamics: Dynamics | None = None) -> None:
        self.dynamics = dynamics
        self.columns: dict[str, list[Tensor]] = {}

    def record_lists(self, lists: Tensor, propensities: Tensor) -> None:
        """Record lists [n, k] and the probability of each item given those before it [n, k]."""
        self._record("offered", lists.int())
        self._record("propensities", propensities)

    def watch(self, rows: Tensor, number: int, lists: Tensor, visitors: Visitors, result: Step) -> None:
        """Record the reactions. Pass it as `watch` to `run_sessions`."""
        self._record("session", rows)
        self._record("step", torch.full_like(rows, number, dtype=torch.int32))
        self._record("item", result.item.int())
        self._record("behaviour", result.behaviour.byte())
        self._record("reward", result.reward)
        if self.dynamics is not None:
            for first in range(0, len(rows), ROWS):  # a part at a time, because a mixture has a row per visitor
                part = slice(first, first + ROWS)
                probability = propensities(mixture(self.dynamics, visitors[part]), lists[part]).prod(1)
                self._record(LOGGING_PROPENSITY, probability)

    def _record(self, name: str, values: Tensor) -> None:
        self.columns.setdefault(name, []).append(values.cpu())

    def table(self, seed: int, first_session: int = 0) -> "pl.DataFrame":
        """Return the recorded table, sorted by session and step.

        Args:
            seed: The seed of the times.
            first_session: The number of the first session, for logs that continue others.
        """
        import polars as pl

        columns = {name: torch.cat(parts).numpy() for name, parts in self.columns.items()}
        order = np.lexsort((columns["step"], columns["session"]))
        columns = {name: values[order] for name, values in columns.items()}
        session = columns["session"] + first_session
        names = np.array([*BEHAVIOURS, "none"])
        logging = {name: columns[name] for name in (LOGGING_PROPENSITY,) if name in columns}
        return pl.DataFrame(
            {
                "session": session,
                "step": columns["step"],
                "time": times(session, columns["step"], seed),
                "offered": columns["offered"],
                "propensities": columns["propensities"],
                "propensity": columns["propensities"].prod(1),
                **logging,
                "item": columns["item"],
                "behaviour": names[columns["behaviour"]],
                "reward": columns["reward"],
            }
        ).with_columns(pl.when(pl.col("behaviour") != "none").then(pl.col("item")))


def times(session: np.ndarray[Any, np.dtype[np.int64]], step: np.ndarray[Any, Any], seed: int) -> Any:
    """Return times in seconds: sessions start one minute apart, and steps follow at random intervals."""
    random = generator(seed, Purpose.CLOCK)
    gap = torch.randint(*STEP_SECONDS, (len(session),), generator=random).numpy()
    gap[step == 0] = 0
    clock = np.cumsum(gap)
    return START_TIME + 60 * session + clock - clock[step == 0][np.cumsum(step == 0) - 1]
