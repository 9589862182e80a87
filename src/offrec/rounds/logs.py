"""The logs and datasets of rounds, as files that `offrec shop` and `offrec prepare` write.

A subclass can store them in another way, for machines without polars.
"""

from collections.abc import Sequence
from pathlib import Path

from offrec.shop import Shop, write_log
from offrec.shop.log import FULL, ServedPolicy
from offrec.shop.rollout import Mean, Progress, mean_with_interval


class RoundLogs:
    """Writes and reads the logs of rounds, and prepares datasets from them."""

    def write(
        self,
        shop: Shop,
        sessions: int,
        out: Path,
        *,
        seed: int,
        served: ServedPolicy | None,
        first_session: int,
        progress: Progress,
    ) -> None:
        """Simulate the visitors of a round and write their log; the arguments are those of `write_log`."""
        write_log(shop, sessions, out, seed=seed, served=served, first_session=first_session, progress=progress)

    def read(self, log: Path) -> tuple[Mean, int]:
        """Return the reward per session of a log, and its number of lists."""
        import polars as pl  # imported where it is used, because other kinds of logs must also work without polars

        table = pl.read_parquet(log / FULL, columns=["session", "reward"])
        sums = table.group_by("session", maintain_order=True).agg(pl.col("reward").cast(pl.Float64).sum())
        return mean_with_interval(sums["reward"].to_numpy()), len(table)

    def prepare(self, logs: Sequence[Path], out: Path, catalogue: Path | None) -> None:
        """Write the dataset of some logs.

        Args:
            logs: The folders of the logs.
            out: The folder of the dataset.
            catalogue: A dataset whose items belong to the catalogue, too; None for the items of the logs alone.
        """
        from offrec.data.prepare import PrepareOptions, prepare

        known = None if catalogue is None else str(catalogue)
        options = PrepareOptions(format="decisions", catalogue=known, keep_new_items=known is not None)
        prepare([log / FULL for log in logs], out=out, options=options)
