"""Studies that take a moment, and processes that work on them."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

from made_datasets import write_dataset
from offrec.console import Console
from offrec.studies import design, results
from offrec.studies.__main__ import main
from offrec.studies.run import run_study
from offrec.studies.study import Study
from offrec.studies.worker import RunCounts, WorkerOptions

QUIET = Console(quiet=True)
FAST = ["network.width=8", "network.history=5", "training.epochs=2", "training.batch_size=64"]


def small_dataset(folder: Path, name: str = "small", **protocol: Any) -> Path:
    """60 sessions that go round among 12 items, with a cart at every fourth event."""
    folder.mkdir(parents=True, exist_ok=True)
    sessions = [[(first * 5 + step) % 12 for step in range(3 + first % 4)] for first in range(60)]
    behaviours = [["cart" if step == 3 else "view" for step in range(len(session))] for session in sessions]
    made = write_dataset(folder, sessions, behaviours, (40, 10, 10), **protocol)
    return made.path.rename(folder / name)


def small_study(dataset: Path, out: Path, **choices: Any) -> Study:
    usual = {"algorithms": "sl,sr", "baselines": "recent", "seeds": "2", "settings": FAST}
    return design.create_or_extend(design.plan_comparison([dataset], out, **{**usual, **choices}))


def finished(study: Study, **how: Any) -> RunCounts:
    return run_study(study, WorkerOptions(device="cpu", **how), QUIET)


def process(study: Study) -> Any:
    """A process of its own that works on the study, forked from one that has torch loaded already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["offrec.studies.__main__", "small_studies", "torch._dynamo", "scipy.sparse"])
    return context.Process(target=_work, args=(str(study.folder),))


def begun_by(study: Study) -> list[str]:
    """The processes that have begun to work on it."""
    path = study.folder / "begun.txt"
    return path.read_text().split() if path.exists() else []


def _work(folder: str) -> None:
    """As `python -m offrec.studies FOLDER` does it; who finishes a run says so."""
    with Path(folder, "begun.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")
    store_result = results.store_result

    def told(study: Study, name: str, judged: results.Measurements) -> None:
        with (study.folder / "finished.txt").open("a") as file:
            file.write(f"{name} {os.getpid()}\n")
        store_result(study, name, judged)

    results.store_result = told
    assert main([folder, "--device", "cpu", "--json"]) == 0
