"""Small studies that run in about a second, and processes that execute them."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

from offrec.console import Console
from offrec.studies import design, worker
from offrec.studies.__main__ import main
from offrec.studies.run import run_study
from offrec.studies.study import Run, Study
from offrec.studies.worker import RunCounts, WorkerOptions
from small_datasets import write_dataset

QUIET = Console(quiet=True)
FAST = ["network.width=8", "network.history=5", "training.epochs=2", "training.batch_size=64"]


def small_dataset(folder: Path, name: str = "small", **protocol: Any) -> Path:
    """60 sessions over 12 items, with a cart as the fourth event."""
    folder.mkdir(parents=True, exist_ok=True)
    sessions = [[(first * 5 + step) % 12 for step in range(3 + first % 4)] for first in range(60)]
    behaviours = [["cart" if step == 3 else "view" for step in range(len(session))] for session in sessions]
    made = write_dataset(folder, sessions, behaviours, (40, 10, 10), **protocol)
    return made.path.rename(folder / name)


def small_study(dataset: Path, out: Path, **choices: Any) -> Study:
    usual = {"algorithms": "sl,sr", "baselines": "recent", "seeds": "2", "settings": FAST}
    return design.create_or_extend(design.plan_comparison([dataset], out, **{**usual, **choices}))


def finished(study: Study, **options: Any) -> RunCounts:
    return run_study(study, WorkerOptions(device="cpu", **options), QUIET)


def process(study: Study) -> Any:
    """Return a process that executes the study, forked from one that has already imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["offrec.studies.__main__", "small_studies", "torch._dynamo", "scipy.sparse"])
    return context.Process(target=_work, args=(str(study.folder),))


def started_processes(study: Study) -> list[str]:
    """Return the ids of the processes that were started."""
    path = study.folder / "started.txt"
    return path.read_text().split() if path.exists() else []


def _work(folder: str) -> None:
    """Run `python -m offrec.studies FOLDER` and record which process stores which result."""
    with Path(folder, "started.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")
    store_result = worker.write_result

    def recording(study: Study, run: Run, *result: Any) -> None:
        with (study.folder / "finished.txt").open("a") as file:
            file.write(f"{run.name} {os.getpid()}\n")
        store_result(study, run, *result)

    worker.write_result = recording
    assert main([folder, "--device", "cpu", "--json"]) == 0
