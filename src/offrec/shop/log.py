"""Write the logs of a shop: the events that an ordinary shop would store, and all lists with their propensities.

    events.parquet  one row per pick: session, item, time, behaviour; `offrec prepare` reads it
    full.parquet    one row per list: session, step, time, offered, propensities (of each item, given those before it),
                    propensity (of the ordered list), item (null without a pick), behaviour ("none" without a pick),
                    reward; if a trained policy made the lists, also logging_propensity (of the ordered list under the
                    shop's logging policy)
    items.parquet   one row per item: item, title, category, taste (a noisy observation); `prepare --items` reads it

The metadata of all files contain the description of the shop as JSON, under `offrec.shop`.
"""

import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offrec.data.files import check_not_current, publish_folder, remove_leftovers
from offrec.data.shop_metadata import SHOP_KEY
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.shop.catalogue_table import item_table
from offrec.shop.exploration import Exploration, ExploringPlayer
from offrec.shop.players import Logging, Player, PolicyPlayer
from offrec.shop.recording import ListRecorder
from offrec.shop.rollout import Progress
from offrec.shop.store import Shop

if TYPE_CHECKING:
    import polars as pl  # imported where it is used, because roll-outs must also work without polars

EVENTS, FULL, ITEMS = "events.parquet", "full.parquet", "items.parquet"


@dataclass(frozen=True)
class ServedPolicy:
    """A trained policy that writes a log, and how it explores.

    Args:
        policy: The policy.
        exploration: How it explores.
        skip_recent: How many of the visitor's last picks it ranks below all other items.
        previous: The previous policy of a blend; None for the shop's logging policy.
        previous_skip_recent: `skip_recent` of the previous policy.
    """

    policy: Policy
    exploration: Exploration
    skip_recent: int = 0
    previous: Policy | None = None
    previous_skip_recent: int = 0

    def player(self, shop: Shop, recorder: ListRecorder) -> Player:
        """Return the player of this policy in a shop.

        Raises:
            InputError: If a policy belongs to another shop or does not allow this way of exploring.
        """
        previous = None
        if self.previous is not None:
            player = shop.player(self.previous, skip_recent=self.previous_skip_recent)
            assert isinstance(player, PolicyPlayer)
            previous = player
        shop.player(self.policy)  # checks that this shop wrote the policy's log
        return ExploringPlayer(shop.dynamics, self.policy, self.exploration, self.skip_recent, previous, recorder)

    def as_json(self) -> dict[str, Any]:
        """Return a description for the metadata of the log."""
        previous = None if self.previous is None else self.previous.name
        return {"policy": self.policy.name, **asdict(self.exploration), "previous": previous or "logging"}


def write_log(
    shop: Shop,
    sessions: int,
    out: str | Path,
    *,
    seed: int = 0,
    served: ServedPolicy | None = None,
    first_session: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Simulate the logging policy or a trained policy, and write both logs.

    Args:
        shop: The shop.
        sessions: The number of visitors.
        out: The folder to write.
        seed: The seed of the visitors.
        served: The policy that makes the lists; None for the shop's logging policy.
        first_session: The number of the first session. `offrec prepare` can read several logs together if their
            sessions have different numbers.
        force: Whether to replace an existing log.
        progress: Called after every step with (sessions that have ended, sessions).

    Returns:
        The description of the shop that the files contain.

    Raises:
        InputError: If an argument is out of range, the policy cannot be played this way, or `out` cannot be written.

    Example:
        >>> write_log(shop, 20_000, "log-1", seed=1, served=ServedPolicy(policy, Exploration("blend", share=0.2)))
    """
    import polars as pl

    out = Path(out)
    if sessions < 1:
        raise InputError(f"--sessions must be at least 1; got {sessions}.")
    if seed < 0:
        raise InputError(f"The seed of the visitors must be at least 0; got {seed}.")
    if first_session < 0:
        raise InputError(f"--first-session must be at least 0; got {first_session}.")
    _check_free(out, force)
    recorder = ListRecorder(None if served is None else shop.dynamics)
    player = Logging(shop.dynamics, recorder) if served is None else served.player(shop, recorder)
    with torch.no_grad():
        shop.run_sessions(player, sessions, seed, recorder.watch, progress=progress)
    full = recorder.table(seed, first_session)
    events = full.filter(pl.col("item").is_not_null()).select("session", "item", "time", "behaviour")
    meta = {**shop.as_json(), "sessions": sessions, "log_seed": seed, "version": version("offrec")}
    if served is not None:
        meta["served"] = served.as_json()
    items = item_table(shop.dynamics.items, shop.seed)
    _write(out, {EVENTS: events, FULL: full, ITEMS: items}, {SHOP_KEY: json.dumps(meta)})
    return meta


def _check_free(out: Path, force: bool) -> None:
    remove_leftovers(out)
    check_not_current(out)
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out} exists and is not a folder; choose another --out.")
    if not force:
        raise InputError(f"{out} exists already; choose another --out, or replace it with --force.")
    if any(path.name not in (EVENTS, FULL, ITEMS) for path in out.iterdir()):
        raise InputError(
            f"{out} contains other files than a shop's log, so --force does not replace it; choose another --out."
        )


def _write(out: Path, tables: "dict[str, pl.DataFrame]", metadata: dict[str, str]) -> None:
    with publish_folder(out, replace=True, advice="free disk space or choose another --out") as temporary:
        for name, table in tables.items():
            table.write_parquet(temporary / name, metadata=metadata)
