"""Measure the first estimate of a policy on a log of picks, before and after a change, in turns.

    python benchmarks/estimate_time.py DATASET --before COMMIT [--rounds 3] --out results/estimates-time.json
    python benchmarks/estimate_time.py DATASET --before COMMIT --parts --out results/estimates-time.json

Each estimate runs as a command on a copy of the dataset without caches. CPU seconds are those of the command and of all
processes that it starts. `other_seconds` are the CPU seconds of all other programs during the estimate: on an idle
machine they are close to 0, and only then does the wall time mean anything. `--parts` measures the CPU time of the
largest parts instead, with one thread: an update of Q, and the fit of the logging policy. Either call keeps the rows of
the other kind that the file contains.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

from evidence import ROOT, baseline, estimate, read_results, world, write_results

POLICY = "mean-reward"
UPDATES = 900  # of Q, six epochs
PARTS = """
import json, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from offrec.baselines import baseline
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.estimation.collect import load_logging_model
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.fitted_q import collect_top_lists, fit_q
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import EstimateOptions
dataset, quiet, cpu = Dataset.open(Path(sys.argv[1])), Console(quiet=True), torch.device("cpu")
policy = baseline(sys.argv[2], dataset, device=cpu)
shown, rewards, options = ListPolicy(policy, "topk", 5), event_rewards(dataset, {}), EstimateOptions()
lists = collect_top_lists(shown, LoggedDecisions.load(dataset, "train"))
fit_q(shown, dataset, rewards, 1.0, ValueOptions(updates=1), quiet, top_lists=lists)  # imports what is used first
started = time.process_time()
fit_q(shown, dataset, rewards, 1.0, ValueOptions(updates=int(sys.argv[3])), quiet, top_lists=lists)
update = (time.process_time() - started) / int(sys.argv[3])
started = time.process_time()
logging = load_logging_model(dataset, options.network_for(policy), options.training, cpu, quiet)
seconds, likelihood = time.process_time() - started, logging.calibration["log_likelihood"]
print(json.dumps({"update_ms": update * 1e3, "logging_seconds": seconds, "logging_log_likelihood": likelihood}))
"""
CACHES = ("logging", "values")  # folders of the dataset
IDLE = (3, 4)  # columns of /proc/stat that count idle time: idle and iowait


def source_of(commit: str, folder: Path) -> Path:
    """Write the source of a commit to a folder, and return the folder to import from."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def busy_seconds() -> float:
    """Return the CPU seconds that all programs of this machine have used."""
    columns = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = sum(int(one) for index, one in enumerate(columns) if index not in IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Return the CPU seconds of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(dataset: Path, source: Path, *arguments: str) -> tuple[Any, dict[str, float]]:
    """Run Python on a copy of a dataset without caches. Return the JSON that it prints, and its time.

    Among the arguments, DATASET stands for the copy.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "log"
        shutil.copytree(dataset, copy, ignore=shutil.ignore_patterns(*CACHES))
        command = [sys.executable, *(str(copy) if one == "DATASET" else one for one in arguments)]
        started, busy, own = time.perf_counter(), busy_seconds(), own_seconds()
        environment = os.environ | {"PYTHONPATH": str(source)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        wall, cpu = time.perf_counter() - started, own_seconds() - own
        others = max(0.0, busy_seconds() - busy - cpu)
    times = {"cpu_seconds": cpu, "wall_seconds": wall, "other_seconds": others}
    return json.loads(done.stdout), {name: round(value, 1) for name, value in times.items()}


def measure(dataset: Path, source: Path, jobs: int) -> dict[str, Any]:
    """Return the time of the first estimate by the code of `source`, and its result."""
    options = ["--baselines", POLICY, "--dataset", "DATASET", "--play", "topk", "-k", "5", "--json"]
    options += ["--jobs", str(jobs)]
    printed, times = run(dataset, source, "-m", "offrec", "estimate", *options)
    policy = printed["policies"][0]
    result = {name: policy["estimates"]["direct"][name] for name in ("estimate", "low", "high", "verdict")}
    return times | result | {"value@5": policy["value@5"]}


def measure_parts(dataset: Path, source: Path) -> dict[str, Any]:
    """Return the CPU time of the largest parts of an estimate, with one thread."""
    printed, times = run(dataset, source, "-c", PARTS, "DATASET", POLICY, str(UPDATES))
    return {"part_of": "estimate", **printed, "other_seconds": times["other_seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="a prepared log of picks of a shop")
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    import offrec

    dataset = offrec.Dataset.open(arguments.dataset)
    shop = dataset.meta["shop"]
    facts = {"world": shop["world"], "seed": shop["seed"], "sessions": len(dataset.sessions)}
    earlier: list[dict[str, Any]] = read_results(arguments.out) if arguments.out.exists() else []
    rows = [row for row in earlier if ("part_of" in row) != arguments.parts]
    with tempfile.TemporaryDirectory() as folder:
        sources = {arguments.before: source_of(arguments.before, Path(folder)), "this commit": ROOT / "src"}
        for number in range(arguments.rounds):
            for name, source in sources.items():
                row: dict[str, Any] = {"round": number + 1, "code": name, **facts}
                if arguments.parts:
                    row |= measure_parts(arguments.dataset, source)
                else:
                    row |= {"jobs": arguments.jobs, **measure(arguments.dataset, source, arguments.jobs)}
                print(row, flush=True)
                rows.append(row)
    made_with = {"fitted Q": estimate(), POLICY: baseline(POLICY), shop["world"]: world(shop["world"])}
    kind = "--parts" if arguments.parts else f"--jobs {arguments.jobs}"
    options = f"--before {arguments.before} --rounds {arguments.rounds} {kind}"
    command = f"python benchmarks/estimate_time.py DATASET {options} --out FILE"
    write_results(arguments.out, rows, made_with, command=command, device="cpu")


if __name__ == "__main__":
    main()
