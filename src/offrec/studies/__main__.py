"""Work off the queue of a study. Needs torch, numpy and safetensors only; baselines wait for a machine with scipy.

python -m offrec.studies STUDY [--device cuda] [--jobs 2] [--limit 3000] [--data DATASET ...]
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
from offrec.studies import study as plan
from offrec.studies.run import run_study
from offrec.studies.worker import WorkerOptions


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m offrec.studies", description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="a folder made by offrec compare, sweep or tune")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda …; several, separated by commas, with --jobs")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--limit", type=float, default=math.inf, help="start no run after so many seconds")
    parser.add_argument("--together", type=int, help="seeds trained at once (default: all on a GPU, 1 on a CPU)")
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="where the datasets lie now")
    parser.add_argument("--retry", action="store_true", help="try again what failed")
    parser.add_argument("--json", action="store_true", help="print how the study stands as JSON")
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    how = WorkerOptions(asked.device, asked.jobs, asked.limit, asked.together, asked.retry)
    try:
        study = plan.at(plan.read(asked.study), asked.data)
        alive = (lambda: os.getppid() == asked.parent) if asked.parent else (lambda: True)
        left = run_study(study, how, Console(quiet=asked.json and not sys.stderr.isatty()), alive)
    except InputError as error:
        return _say(error, 2)
    except RunError as error:
        return _say(error, 1)
    except (Interrupted, KeyboardInterrupt) as error:
        return _say(str(error) or "Stopped; the same command goes on.", 130)
    if asked.json:
        print(json.dumps(asdict(left)))
    return 0


def _say(error: object, code: int) -> int:
    print(f"offrec: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
