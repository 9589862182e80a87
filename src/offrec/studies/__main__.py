"""Execute the runs of a study.

    python -m offrec.studies STUDY [--device cuda] [--jobs 2] [--time-limit 3000] [--data DATASET ...]

Needs torch, numpy and safetensors only. Baselines also need scipy; without it they are left to another machine.
"""

import argparse
import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path

from offrec.console import Console
from offrec.errors import InputError, Interrupted, RunError
from offrec.studies.folder import locate_datasets, read_study
from offrec.studies.run import run_study
from offrec.studies.worker import WorkerOptions


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    parsed = _parser().parse_args(arguments)
    options = WorkerOptions(parsed.device, parsed.jobs, parsed.time_limit, parsed.concurrent_seeds, parsed.retry_failed)
    try:
        study = locate_datasets(read_study(parsed.study), parsed.data)
        parent_alive = (lambda: os.getppid() == parsed.parent) if parsed.parent else (lambda: True)
        counts = run_study(study, options, Console(quiet=parsed.json and not sys.stderr.isatty()), parent_alive)
    except InputError as error:
        return _print_error(error, 2)
    except RunError as error:
        return _print_error(error, 1)
    except (Interrupted, KeyboardInterrupt) as error:
        return _print_error(str(error) or "Stopped; repeat the command to continue.", 130)
    if parsed.json:
        print(json.dumps(asdict(counts)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m offrec.studies", description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="study folder written by offrec compare, sweep or tune")
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda …; several devices, separated by commas, with --jobs"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of concurrent processes")
    parser.add_argument("--time-limit", type=float, default=math.inf, help="start no run after this many seconds")
    parser.add_argument(
        "--concurrent-seeds",
        type=int,
        help="seeds trained concurrently per process (default: all on a GPU, 1 on a CPU)",
    )
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="dataset folders, if they were moved")
    parser.add_argument("--retry-failed", action="store_true", help="run failed runs again")
    parser.add_argument(
        "--json", action="store_true", help="print the numbers of done, failed and waiting runs as JSON"
    )
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    return parser


def _print_error(error: object, code: int) -> int:
    print(f"offrec: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
