"""Measure the simulated shop: session-steps per second and memory.

    python benchmarks/shop.py [--sessions 1024] [--steps 5] [--threads 2] [--json]

A session-step is one recommended list and the visitor's response. Each case runs in its own process. `matrix`
is the size of a float32 matrix [sessions × items], for comparison.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ITEMS = {1_000: "demo", 10_000: "medium", 1_000_000: "large"}
REPEATS = 3  # the fastest run is reported
POLICIES = ("logging", "greedy", "oracle")


def resident(what: str) -> float:
    """Return the megabytes in use now (VmRSS), or at the peak since the last reset (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def one(items: int, policy: str, sessions: int, steps: int, threads: int) -> dict[str, float | str | int]:
    import torch

    torch.set_num_threads(threads)
    from offrec.shop import WORLDS, Shop

    shop = Shop(replace(WORLDS[ITEMS[items]], leave_base=-20.0))  # no visitor leaves, so all sessions continue
    shop.rollout(policy, 2, max_steps=2)  # warm up
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, seconds = resident("VmRSS"), []
    for seed in range(REPEATS):
        started = time.perf_counter()
        figures = shop.rollout(policy, sessions, max_steps=steps, seed=seed)
        seconds.append(time.perf_counter() - started)
    return {
        "items": items,
        "policy": policy,
        "sessions": sessions,
        "steps_per_second": round(float(figures.steps.sum()) / min(seconds)),
        "peak_mb": round(resident("VmHWM")),
        "more_memory_mb": round(resident("VmHWM") - before),
        "matrix_mb": round(sessions * items * 4 / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("ITEMS", "POLICY"))
    options = parser.parse_args()
    if options.one:
        case = one(int(options.one[0]), options.one[1], options.sessions, options.steps, options.threads)
        print(json.dumps(case))
        return
    if not options.json:
        print("| items | policy | session-steps per second | peak memory | increase | matrix |")
        print("|---|---|---|---|---|---|")
    same = ["--sessions", str(options.sessions), "--steps", str(options.steps), "--threads", str(options.threads)]
    for items in ITEMS:
        for policy in POLICIES:
            words = [sys.executable, __file__, "--one", str(items), policy, *same]
            figures = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            if options.json:
                print(json.dumps(figures), flush=True)
            else:
                sizes = [f"{figures[name]:,} MB" for name in ("peak_mb", "more_memory_mb", "matrix_mb")]
                cells = [f"{items:,}", policy, f"{figures['steps_per_second']:,}", *sizes]
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
