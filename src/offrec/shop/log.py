"""The shop's logs: what an ordinary shop would have kept, and what only a simulated one knows.

    events.parquet  session, item, time, behaviour: picks only; `offrec prepare` reads it
    full.parquet    a row a list: session, step, time, offered, propensities (of each place, given those before it),
                    propensity (of the ordered list), item (null where nothing was picked), behaviour (then none),
                    reward

Which shop wrote them stands in the metadata of both, under `offrec.shop`, as JSON.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from offrec.data.files import publish_folder
from offrec.data.shop_metadata import SHOP_KEY
from offrec.errors import InputError
from offrec.shop.logging_policy import Mixture, propensities
from offrec.shop.players import Logging
from offrec.shop.randomness import Purpose, generator
from offrec.shop.rollout import MAX_STEPS, Progress, run_sessions
from offrec.shop.store import Shop
from offrec.shop.visitors import BEHAVIOURS, Dynamics, Step, Visitors

if TYPE_CHECKING:
    import polars as pl  # imported where used: roll-outs must run on a GPU image that has none

EVENTS, FULL = "events.parquet", "full.parquet"
OPENING = 1_700_000_000  # seconds; a visitor arrives each minute
SECONDS = (5, 90)  # between a visitor's steps


class RecordingPolicy(Logging):
    """The logging policy, which also writes down how likely its lists were."""

    def __init__(self, dynamics: Dynamics) -> None:
        super().__init__(dynamics)
        self.columns: dict[str, list[Tensor]] = {}

    def on_lists(self, here: Mixture, lists: Tensor) -> None:
        self._write("offered", lists.int())
        self._write("propensities", propensities(here, lists))

    def watch(self, rows: Tensor, number: int, lists: Tensor, visitors: Visitors, found: Step) -> None:
        self._write("session", rows)
        self._write("step", torch.full_like(rows, number, dtype=torch.int32))
        self._write("item", found.item.int())
        self._write("behaviour", found.behaviour.byte())
        self._write("reward", found.reward)

    def _write(self, name: str, values: Tensor) -> None:
        self.columns.setdefault(name, []).append(values.cpu())

    def table(self, seed: int) -> "pl.DataFrame":
        """Sorted by session and step."""
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
    """Seconds: a session begins a minute after the one before it, its steps follow each other at random."""
    random = generator(seed, Purpose.CLOCK)
    gap = torch.randint(*SECONDS, (len(session),), generator=random).numpy()
    gap[step == 0] = 0
    clock = np.cumsum(gap)
    return OPENING + 60 * session + clock - clock[step == 0][np.cumsum(step == 0) - 1]


def write_log(
    shop: Shop, sessions: int, out: str | Path, *, seed: int = 0, force: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Both logs into the folder `out`, and what stands in their metadata back."""
    import polars as pl

    out = Path(out)
    if sessions < 1:
        raise InputError(f"A log of {sessions} sessions cannot be written; ask for at least 1.")
    if seed < 0:
        raise InputError(f"The visitors' seed is {seed}; it must be 0 or more.")
    _check_free(out, force)
    recorded = RecordingPolicy(shop.dynamics)
    with torch.no_grad():
        run_sessions(shop.dynamics, recorded, sessions, seed, MAX_STEPS, recorded.watch, progress)
    full = recorded.table(seed)
    events = full.filter(pl.col("item").is_not_null()).select("session", "item", "time", "behaviour")
    meta = {**shop.as_json(), "sessions": sessions, "log_seed": seed, "version": version("offrec")}
    _write(out, {EVENTS: events, FULL: full}, {SHOP_KEY: json.dumps(meta)})
    return meta


def _check_free(out: Path, force: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out} exists and is no folder; choose another --out.")
    if not force:
        raise InputError(f"{out} exists already; choose another --out, or replace it with --force.")
    if any(path.name not in (EVENTS, FULL) for path in out.iterdir()):
        raise InputError(f"{out} holds more than a shop's log, so --force does not replace it; choose another --out.")


def _write(out: Path, tables: "dict[str, pl.DataFrame]", metadata: dict[str, str]) -> None:
    with publish_folder(out, replace=True, advice="free disk space or choose another --out") as temporary:
        for name, table in tables.items():
            table.write_parquet(temporary / name, metadata=metadata)
