"""Load test of the server: many clients next to idle and slow ones, reloads, and kill -9 at the end.

    python benchmarks/serving_load.py [--connections 64 256] [--idle 600] [--seconds 60] [--out FILE]

A GRU with random weights, width 64; sampled lists of 10, a third of them followed by an event. Half of the idle
connections are silent, half send a byte of a header per second; all connect again when the server closes them. All
policies are reloaded every few seconds. At the end all processes of the server are killed while requests are being
answered. Then the decision log is read with its checksums; `missing` counts answered requests that it lacks.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from evidence import script_arguments, write_results

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "serving"))
from load_clients import LoadPlan, check_log, run_load
from random_runs import write_run
from small_server import ServerProcess


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--idle", type=int, default=600)
    parser.add_argument("--reload-seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--durable", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    plan = LoadPlan(args.items, tuple(args.connections), args.seconds, args.idle, args.reload_seconds)
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", list(range(args.items)), network_width=64, network_history=50)
        log = Path(folder) / "log"
        options = ["--log", log, "--workers", args.workers, *(["--durable"] if args.durable else [])]
        with ServerProcess(run, *options) as server:
            rows, counts = run_load(server, plan)
        results = {
            "cores": os.cpu_count(),
            "workers": args.workers,
            "rows": [{name: round(value, 1) for name, value in row.items()} for row in rows],
            "errors": dict(counts.errors),
            "reloads": counts.reloads,
            "idle_connections": args.idle,
            "idle_connections_opened": counts.idle_connections,
            "peak_memory_mb": round(counts.memory_mb, 1),
            "answered_lists": len(counts.lists),
            "answered_events": len(counts.events),
            "log": check_log(log, counts),
        }
    print(json.dumps(results, indent=1))
    if args.out is not None:
        write_results(args.out, results, {"script": script_arguments(args)})


if __name__ == "__main__":
    main()
