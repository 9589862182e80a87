"""Execute the runs of a study.

    python -m offrec.studies STUDY [--device cuda] [--jobs 2] [--time-limit 3000] [--data DATASET ...]

Needs torch, numpy and safetensors only. Baselines also need scipy; without it they are left to another machine.
"""

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

from offrec.console import Console
from offrec.data.parent_process import end_with_parent
from offrec.errors import exit_code
from offrec.studies.folder import locate_datasets, read_study
from offrec.studies.run import run_study
from offrec.studies.worker import WorkerOptions


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    parsed = _parser().parse_args(arguments)
    return exit_code(lambda: _run(parsed))


def _run(parsed: argparse.Namespace) -> None:
    options = WorkerOptions(
        parsed.device,
        parsed.jobs,
        parsed.time_limit,
        parsed.concurrent_seeds,
        parsed.retry_failed,
        processes_on_device=parsed.processes_on_device,
    )
    study = locate_datasets(read_study(parsed.study), parsed.data)
    if parsed.parent:
        end_with_parent(parsed.parent)
    counts = run_study(study, options, Console(quiet=parsed.json and not sys.stderr.isatty()))
    if parsed.json:
        print(json.dumps(asdict(counts)))


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
        help="most seeds trained concurrently per process (default: all that fit on a GPU, 1 on a CPU)",
    )
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="dataset folders, if they were moved")
    parser.add_argument("--retry-failed", action="store_true", help="run failed runs again")
    parser.add_argument(
        "--json", action="store_true", help="print the numbers of done, failed and waiting runs as JSON"
    )
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--processes-on-device", type=int, default=1, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
