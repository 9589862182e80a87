"""Execute a study's queue on a cluster. The queue in the study's folder stays the only record of what is done.

This process claims runs and sends them to the cluster; no other machine claims any. If the process or the machine of a
run dies, the claim is released and the run is taken up again, from its last checkpoint.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from offrec.console import Console
from offrec.data.shared_folders import LockProbe, check_answers, check_shared_locks, try_lock
from offrec.runs.loading import pick_device
from offrec.studies.claims import Claim
from offrec.studies.folder import locate_datasets, read_study
from offrec.studies.progress import StudyProgress
from offrec.studies.stored_results import write_failure
from offrec.studies.study import Study
from offrec.studies.worker import RunCounts, WorkerOptions, claim_runs, execute_runs, interruption

MOST_DEATHS = 3  # of the processes of a run, before it counts as failed


class Cluster(Protocol):
    """Where jobs run, such as `offrec.scale.ray_engine.RayEngine`."""

    gpus: float

    def run_jobs(
        self, function: Callable[..., None], jobs: Iterable[tuple[Any, tuple[Any, ...]]]
    ) -> Iterator[tuple[Any, str | None]]: ...

    def on_each_node(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]: ...


def run_on_cluster(study: Study, options: WorkerOptions, console: Console, cluster: Cluster) -> RunCounts:
    """Execute every waiting run on a cluster.

    Args:
        study: The study, in a folder that all machines share.
        options: The limits. The device of a job is a GPU if the cluster gives it one.
        console: Shows progress.
        cluster: Runs the jobs.

    Returns:
        How many runs are done, failed and waiting.

    Raises:
        InputError: If the machines do not share the folder or its locks.
    """
    _check_folder(study.folder, cluster)
    device = options.device if options.device != "auto" else "cuda" if cluster.gpus else "cpu"
    seeds = options.concurrent_seeds or (len(study.runs) if device.startswith("cuda") else 1)
    started, deaths = time.monotonic(), dict[str, int]()
    data = [dataset.path for dataset in study.datasets]

    def jobs() -> Iterator[tuple[Claim, tuple[Any, ...]]]:
        for claim in claim_runs(study, lambda runs: seeds):
            if time.monotonic() - started > options.time_limit:
                claim.release()
                return
            yield claim, (str(study.folder.resolve()), [run.name for run in claim.runs], device, data)

    with StudyProgress(study, console) as progress:
        try:
            while True:
                executed = False
                for claim, reason in cluster.run_jobs(execute_on_worker, jobs()):
                    executed = True
                    with claim:
                        if reason is not None:
                            _count_deaths(study, claim, reason, deaths, console)
                    progress.update()
                if not executed:
                    break
        except KeyboardInterrupt as error:
            raise interruption(study) from error
    return RunCounts.of(study)


def execute_on_worker(folder: str, names: list[str], device: str, data: list[str]) -> None:
    """Execute runs of a study in a process of the cluster."""
    study = locate_datasets(read_study(Path(folder)), [Path(one) for one in data])
    runs = [run for run in study.runs if run.name in names and study.is_waiting(run)]
    if runs:
        execute_runs(study, runs, pick_device(device), device, Console(quiet=True))


def _count_deaths(study: Study, claim: Claim, reason: str, deaths: dict[str, int], console: Console) -> None:
    for run in claim.runs:
        if not study.is_waiting(run):
            continue
        deaths[run.name] = deaths.get(run.name, 0) + 1
        console.line(f"{run.name}: its process or machine died; it is taken up again")
        if deaths[run.name] >= MOST_DEATHS:
            write_failure(study, run, {"reason": f"Its process died {MOST_DEATHS} times ({reason})", "machine": {}})


def _check_folder(folder: Path, cluster: Cluster) -> None:
    with LockProbe(folder) as probe:
        answers = cluster.on_each_node(try_lock, str(probe.path.resolve()), probe.token)
    if len({machine.split()[0] for machine in answers}) > 1:
        check_shared_locks(folder)
    check_answers(folder, answers)
