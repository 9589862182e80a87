"""Measure the peak memory of preparing a log that is larger than the memory allowed, and compare it with no limit.

    python benchmarks/out_of_core.py [--rows 66000000] [--limit 512] [--json FILE]

The log is generated as CSV in a temporary folder; its rows are ordered by time, so that sessions overlap. Each version
runs in its own process. Peak memory is the peak resident set size, which includes memory-mapped files.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from evidence import script_arguments, write_results

FILES, EVENTS_PER_SESSION, ITEMS = 22, 8, 500_000
BEHAVIOURS = ["view", "view", "view", "click", "buy"]
PREPARE = """
import json, resource, sys, time
from offrec.data.prepare import prepare
started = time.monotonic()
limit = int(sys.argv[3]) << 20
data = prepare(sys.argv[1], out=sys.argv[2], split="hash", filter=("item=5", "session=3"), memory_limit=limit or None)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "peak_mb": used.ru_maxrss / 1024, "seconds": time.monotonic() - started,
    "cpu_seconds": used.ru_utime + used.ru_stime, "fingerprint": data.fingerprint, "counts": data.meta["counts"],
}))
"""


def generate(folder: Path, rows: int) -> int:
    """Write the log and return its size in bytes."""
    generator = np.random.Generator(np.random.PCG64(0))
    folder.mkdir()
    for number in range(FILES):
        count = rows // FILES
        day = 1_700_000_000 + 86_400 * number
        frame = pl.DataFrame(
            {
                "session": generator.integers(0, rows // EVENTS_PER_SESSION, count),
                "item": (generator.pareto(1.0, count) * 50).astype(np.int64) % ITEMS,
                "time": np.sort(generator.integers(day, day + 86_400, count)),
                "behaviour": pl.Series(BEHAVIOURS).gather(generator.integers(0, len(BEHAVIOURS), count)),
            }
        )
        frame.with_columns(session=pl.format("session-{}", "session")).write_csv(folder / f"{number:03d}.csv")
    return sum(path.stat().st_size for path in folder.iterdir())


def measure(log: Path, out: Path, limit: int) -> dict[str, Any]:
    """Prepare the log in a process of its own; `limit`: megabytes, or 0."""
    command = [sys.executable, "-c", PREPARE, f"{log}/*.csv", str(out), str(limit)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(result.stdout)
    return {"limit_mb": limit or None, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=66_000_000)
    parser.add_argument("--limit", type=int, default=512, help="megabytes")
    parser.add_argument("--unlimited", action="store_true", help="also prepare without a limit")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        size = generate(Path(folder, "log"), given.rows)
        print(f"{given.rows:,} rows, {size / 2**20:,.0f} MB of text ({time.monotonic() - started:.0f} s)", flush=True)
        rows = []
        for limit in [given.limit] + [0] * given.unlimited:
            figures = measure(Path(folder, "log"), Path(folder, f"data-{limit}"), limit)
            rows.append({"rows": given.rows, "log_mb": size / 2**20, **figures})
            print(json.dumps(rows[-1]), flush=True)
    if given.json:
        write_results(given.json, rows, {"script": script_arguments(given, "json")})


if __name__ == "__main__":
    main()
