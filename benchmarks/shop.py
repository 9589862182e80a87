"""Session-steps per second of the shop, and the memory of the process while it plays them.

    python benchmarks/shop.py [--sessions 1024] [--steps 5] [--threads 2] [--json]

A session-step is one list made, chosen from and answered. Each case runs in a process of its own. `matrix` is what a
[sessions × items] matrix of single-precision numbers alone would take.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ITEMS = {1_000: "demo", 10_000: "medium", 1_000_000: "large"}
REPEATS = 3  # the fastest counts
POLICIES = ("logging", "greedy", "oracle")


def held(what: str) -> float:
    """Megabytes this process holds (VmRSS), or has held at most since the last reset (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def one(items: int, policy: str, sessions: int, steps: int, threads: int) -> dict[str, float | str | int]:
    import torch

    torch.set_num_threads(threads)
    from offrec.shop import WORLDS, Shop

    shop = Shop(replace(WORLDS[ITEMS[items]], leave_base=-20.0))  # nobody leaves: every step has all sessions
    shop.rollout(policy, 2, max_steps=2)  # warm
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the items
    before, seconds = held("VmRSS"), []
    for seed in range(REPEATS):
        started = time.perf_counter()
        found = shop.rollout(policy, sessions, max_steps=steps, seed=seed)
        seconds.append(time.perf_counter() - started)
    return {
        "items": items,
        "policy": policy,
        "sessions": sessions,
        "steps_per_second": round(float(found.steps.sum()) / min(seconds)),
        "peak_mb": round(held("VmHWM")),
        "more_memory_mb": round(held("VmHWM") - before),
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
        print("| items | policy | session-steps per second | peak memory | more than before | matrix |")
        print("|---|---|---|---|---|---|")
    same = ["--sessions", str(options.sessions), "--steps", str(options.steps), "--threads", str(options.threads)]
    for items in ITEMS:
        for policy in POLICIES:
            words = [sys.executable, __file__, "--one", str(items), policy, *same]
            found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            if options.json:
                print(json.dumps(found), flush=True)
            else:
                sizes = [f"{found[name]:,} MB" for name in ("peak_mb", "more_memory_mb", "matrix_mb")]
                cells = [f"{items:,}", policy, f"{found['steps_per_second']:,}", *sizes]
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
