"""Write the logs of a shop: the events that an ordinary shop would store, and all lists with their propensities.

    events.parquet  one row per pick: session, item, time, behaviour; `offrec prepare` reads it
    full.parquet    one row per list: session, step, time, offered, propensities (of each item, given those before it),
                    propensity (of the ordered list), item (null without a pick), behaviour ("none" without a pick),
                    reward

The metadata of both files contain the description of the shop as JSON, under `offrec.shop`.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from offrec.data.files import publish_folder, remove_leftovers
from offrec.data.shop_metadata import SHOP_KEY
from offrec.errors import InputError
from offrec.shop.logging_policy import Mixture, propensities
from offrec.shop.players import Logging
from offrec.shop.randomness import Purpose, generator
from offrec.shop.rollout import MAX_STEPS, Progress, run_sessions
from offrec.shop.store import Shop
from offrec.shop.visitors import BEHAVIOURS, Dynamics, Step, Visitors

if TYPE_CHECKING:
    import polars as pl  # imported where it is used, because roll-outs must also work without polars

EVENTS, FULL = "events.parquet", "full.parquet"
START_TIME = 1_700_000_000  # seconds; one visitor arrives per minute
STEP_SECONDS = (5, 90)  # bounds of the time between two steps of a visitor


class RecordingPolicy(Logging):
    """The logging policy, recording its lists, their propensities and the reactions."""

    def __init__(self, dynamics: Dynamics) -> None:
        super().__init__(dynamics)
        self.columns: dict[str, list[Tensor]] = {}

    def on_lists(self, probabilities: Mixture, lists: Tensor) -> None:
        """Record lists and propensities."""
        self._record("offered", lists.int())
        self._record("propensities", propensities(probabilities, lists))

    def watch(self, rows: Tensor, number: int, lists: Tensor, visitors: Visitors, result: Step) -> None:
        """Record the reactions. Pass it as `watch` to `run_sessions`."""
        self._record("session", rows)
        self._record("step", torch.full_like(rows, number, dtype=torch.int32))
        self._record("item", result.item.int())
        self._record("behaviour", result.behaviour.byte())
        self._record("reward", result.reward)

    def _record(self, name: str, values: Tensor) -> None:
        self.columns.setdefault(name, []).append(values.cpu())

    def table(self, seed: int) -> "pl.DataFrame":
        """Return the recorded table, sorted by session and step."""
        import polars as pl

        columns = {name: torch.cat(parts).numpy() for name, parts in self.columns.items()}
        order = np.lexsort((columns["step"], columns["session"]))
        columns = {name: values[order] for name, values in columns.items()}
        names = np.array([*BEHAVIOURS, "none"])
        return pl.DataFrame(
            {
                "session": columns["session"],
                "step": columns["step"],
                "time": _times(columns["session"], columns["step"], seed),
                "offered": columns["offered"],
                "propensities": columns["propensities"],
                "propensity": columns["propensities"].prod(1),
                "item": columns["item"],
                "behaviour": names[columns["behaviour"]],
                "reward": columns["reward"],
            }
        ).with_columns(pl.when(pl.col("behaviour") != "none").then(pl.col("item")))


def _times(session: np.ndarray[Any, np.dtype[np.int64]], step: np.ndarray[Any, Any], seed: int) -> Any:
    """Return times in seconds: sessions start one minute apart, and steps follow at random intervals."""
    random = generator(seed, Purpose.CLOCK)
    gap = torch.randint(*STEP_SECONDS, (len(session),), generator=random).numpy()
    gap[step == 0] = 0
    clock = np.cumsum(gap)
    return START_TIME + 60 * session + clock - clock[step == 0][np.cumsum(step == 0) - 1]


def write_log(
    shop: Shop, sessions: int, out: str | Path, *, seed: int = 0, force: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Simulate the logging policy and write both logs.

    Args:
        shop: The shop.
        sessions: The number of visitors.
        out: The folder to write.
        seed: The seed of the visitors.
        force: Whether to replace an existing log.
        progress: Called after every step with (sessions that have ended, sessions).

    Returns:
        The description of the shop that the files contain.
    """
    import polars as pl

    out = Path(out)
    if sessions < 1:
        raise InputError(f"--sessions must be at least 1; got {sessions}.")
    if seed < 0:
        raise InputError(f"The seed of the visitors must be at least 0; got {seed}.")
    _check_free(out, force)
    policy = RecordingPolicy(shop.dynamics)
    with torch.no_grad():
        run_sessions(shop.dynamics, policy, sessions, seed, MAX_STEPS, policy.watch, progress)
    full = policy.table(seed)
    events = full.filter(pl.col("item").is_not_null()).select("session", "item", "time", "behaviour")
    meta = {**shop.as_json(), "sessions": sessions, "log_seed": seed, "version": version("offrec")}
    _write(out, {EVENTS: events, FULL: full}, {SHOP_KEY: json.dumps(meta)})
    return meta


def _check_free(out: Path, force: bool) -> None:
    remove_leftovers(out)
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out} exists and is not a folder; choose another --out.")
    if not force:
        raise InputError(f"{out} exists already; choose another --out, or replace it with --force.")
    if any(path.name not in (EVENTS, FULL) for path in out.iterdir()):
        raise InputError(
            f"{out} contains other files than a shop's log, so --force does not replace it; choose another --out."
        )


def _write(out: Path, tables: "dict[str, pl.DataFrame]", metadata: dict[str, str]) -> None:
    with publish_folder(out, replace=True, advice="free disk space or choose another --out") as temporary:
        for name, table in tables.items():
            table.write_parquet(temporary / name, metadata=metadata)
