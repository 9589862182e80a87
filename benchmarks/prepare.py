"""Measure time and memory of preparing a log of YooChoose's size, compared with a plain pandas version.

    python benchmarks/prepare.py [--rows 33000000] [--json FILE]

The log is generated in YooChoose's format in a temporary folder. Each version runs in its own process and performs the
same steps: read, keep sessions of at least three clicks, sort, number the items, split at random, save. Needs pandas.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl
from numpy.typing import NDArray

from evidence import script_arguments, write_results

ITEMS = 52_000
EVENTS_PER_SESSION = 33_003_944 / 9_249_729  # of the real file
MILLISECONDS = 183 * 86_400_000  # April to September
ROWS_AT_ONCE = 3_000_000

OURS = """
import sys
from offrec.data.prepare import prepare
prepare(sys.argv[1], out=sys.argv[2], format="yoochoose", filter=("session=3",))
"""

PANDAS = """
import sys
import numpy as np
import pandas as pd
events = pd.read_csv(sys.argv[1], header=None, names=["session", "time", "item", "category"],
                     parse_dates=["time"], dtype={"category": str})
events = events[events.groupby("session")["item"].transform("size") >= 3]
events = events.sort_values(["session", "time"])
items, ids = pd.factorize(events["item"], sort=True)
sessions = events["session"].unique()
order = np.random.default_rng(0).permutation(len(sessions))
bounds = [len(sessions) * 8 // 10, len(sessions) * 9 // 10]
for name, part in zip(["train", "validation", "test"], np.split(sessions[order], bounds)):
    inside = events["session"].isin(part).to_numpy()
    split = events[inside]
    np.save(f"{sys.argv[2]}-{name}-items.npy", items[inside].astype(np.int32))
    times = split["time"].dt.tz_localize(None).to_numpy().astype("datetime64[ms]").astype(np.int64)
    np.save(f"{sys.argv[2]}-{name}-times.npy", times)
    np.save(f"{sys.argv[2]}-{name}-lengths.npy", split.groupby("session").size().to_numpy())
np.save(f"{sys.argv[2]}-ids.npy", ids.to_numpy())
"""


def generate(path: Path, rows: int) -> None:
    """Write clicks grouped by session, with realistic session lengths and items drawn by Zipf's law."""
    generator = np.random.Generator(np.random.PCG64(0))
    # Most ids of the real file are close together; some are far away.
    ids = np.unique(np.concatenate([generator.choice(400_000, ITEMS - 2_000, replace=False) + 214_500_000,
                                    generator.choice(100_000, 1_000, replace=False) + 643_000_000,
                                    generator.choice(100_000, 1_000, replace=False) + 1_178_000_000]))  # fmt: skip
    generator.shuffle(ids)
    chances = np.cumsum(1 / np.arange(1, len(ids) + 1) ** 0.9)
    session = 0
    with path.open("wb") as file:
        for begin in range(0, rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, rows - begin)
            session = _write(file, count, session, ids, chances / chances[-1], generator)


def _write(
    file: IO[bytes],
    rows: int,
    session: int,
    ids: NDArray[np.int64],
    chances: NDArray[np.float64],
    generator: np.random.Generator,
) -> int:
    lengths = np.minimum(1 + generator.geometric(1 / (EVENTS_PER_SESSION - 1), rows), 200)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), rows) + 1]
    numbers = np.repeat(session + 1 + np.arange(len(lengths)) * 5 // 4, lengths)[:rows]
    starts = np.repeat(generator.integers(0, MILLISECONDS, len(lengths)), lengths)[:rows]
    waits = np.cumsum(generator.integers(1_000, 120_000, rows))
    firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    times = 1_396_310_400_000 + starts + waits - np.repeat(waits[firsts], lengths)[:rows]
    frame = pl.DataFrame(
        {
            "session": numbers,
            "time": pl.Series(times).cast(pl.Datetime("ms")).dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"),
            "item": ids[np.searchsorted(chances, generator.random(rows))],
            "category": pl.Series(["0", "S", "1", "2", "2089046366"]).gather(generator.integers(0, 5, rows)),
        }
    )
    frame.write_csv(file, include_header=False)
    return int(numbers[-1])


def measure(program: str, log: Path, out: Path) -> tuple[float, float]:
    """Run a process and return its seconds and peak megabytes."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program, str(log), str(out)])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a version failed with exit code {process.returncode}")
    return seconds, usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=33_000_000)
    parser.add_argument("--folder", type=Path, help="where to put the temporary files (about 4 GB)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        log = Path(name) / "yoochoose-clicks.dat"
        generate(log, options.rows)
        os.sync()  # otherwise the log would still be written during the first measurement
        print(f"{options.rows:,} rows, {log.stat().st_size / 1e9:.2f} GB, {os.cpu_count()} cores")
        started = time.perf_counter()
        with log.open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass
        print(f"{'':10}{'seconds':>10}{'peak MB':>10}")
        print(f"{'bare read':10}{time.perf_counter() - started:10.1f}")
        ours = measure(OURS, log, Path(name) / "dataset")
        print(f"{'offrec':10}{ours[0]:10.1f}{ours[1]:10,.0f}")
        pandas = measure(PANDAS, log, Path(name) / "pandas")
        print(f"{'pandas':10}{pandas[0]:10.1f}{pandas[1]:10,.0f}")
        if options.json:
            named = {"offrec": ours, "pandas": pandas}
            rows = [{"how": how, "seconds": one[0], "peak_gb": one[1] / 1024} for how, one in named.items()]
            write_results(options.json, rows, {"script": script_arguments(options)})
        print(f"{'ratio':10}{pandas[0] / ours[0]:10.1f}{pandas[1] / ours[1]:10.1f}")


if __name__ == "__main__":
    main()
