"""Sample small session logs from a large one: some to tune on and others to report on.

    python benchmarks/peers/samples.py LOG.parquet… --out FOLDER

The log has the columns `session, position, item`. A permutation of its sessions of at least 3 events, with seed
20261116, is divided into disjoint parts: 14,000 and 5,000 sessions for tuning, then 14,000 and 5,000 sessions for
reporting. Each part becomes a dataset folder, FOLDER/LOG-tune-14000 and so on. Items and sessions with fewer than 3
events in the part are dropped.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import offrec

SEED = 20261116
PARTS = (("tune", 14_000), ("tune", 5_000), ("report", 14_000), ("report", 5_000))
FILTER = ("item=3", "session=3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for path in options.logs:
        log = pl.read_parquet(path)
        sessions = log.group_by("session").len().filter(pl.col("len") >= 3)["session"].sort().to_numpy()
        order, first = np.random.default_rng(SEED).permutation(sessions), 0
        for purpose, size in PARTS:
            part, first = order[first : first + size], first + size
            out = options.out / f"{path.stem}-{purpose}-{size}"
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "log.parquet"
                log.filter(pl.col("session").is_in(pl.Series(part).implode())).write_parquet(file)
                counts = offrec.prepare(file, out=out, filter=FILTER).meta["counts"]
            print(out.name, counts)


if __name__ == "__main__":
    main()
