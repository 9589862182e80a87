"""Memory of the server with one process and with two workers, at the start and after reloads.

    python benchmarks/serving_memory.py [--items 100000] [--reloads 8] [--out FILE]

The proportional set size of each process: memory that processes share is divided among them.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from evidence import script_arguments, write_results

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "serving"))
from random_runs import write_run
from small_server import ServerProcess

SETTLE_SECONDS = 3.0  # after a reload, the server returns memory to the system


def memory_mb(process: int) -> list[int]:
    """Return the memory of a process, followed by that of its children."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    sizes = []
    for one in (process, *children):
        match = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{one}/smaps_rollup").read_text(), re.MULTILINE)
        sizes.append(int(match[1]) // 1024 if match else 0)
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--reloads", type=int, default=8)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", list(range(args.items)), network_width=64, network_history=50)
        for workers in (1, 2):
            with ServerProcess(run, "--workers", workers) as server:
                httpx.post(f"{server.address}/v1/recommend", json={"k": 5})
                start = memory_mb(server.child.pid)
                for _ in range(args.reloads):
                    assert httpx.post(f"{server.address}/v1/reload", json={}, timeout=300).status_code == 200
                time.sleep(SETTLE_SECONDS)
                rows.append({"workers": workers, "start_mb": start, "reloaded_mb": memory_mb(server.child.pid)})
    print(json.dumps(rows, indent=1))
    if args.out is not None:
        write_results(args.out, {"servers": rows}, {"script": script_arguments(args)})


if __name__ == "__main__":
    main()
