"""Execute a study in this process, in several, or on a cluster."""

from offrec.console import Console
from offrec.errors import InputError
from offrec.studies import worker
from offrec.studies.cluster import run_on_cluster
from offrec.studies.folder import open_dataset
from offrec.studies.processes import run_processes
from offrec.studies.study import Study
from offrec.studies.worker import RunCounts, WorkerOptions


def run_study(study: Study, options: WorkerOptions, console: Console) -> RunCounts:
    """Execute the waiting runs of a study. Completed runs are not repeated.

    Args:
        study: The study, as written to its folder.
        options: Device, number of processes and limits.
        console: Shows progress.

    Returns:
        How many runs are done, failed and waiting.

    Raises:
        InputError: If the options contradict each other, or a dataset is missing or has changed.
        Interrupted: If the user stopped the study. Repeating the call continues it.
    """
    if options.jobs < 1 or (options.concurrent_seeds is not None and options.concurrent_seeds < 1):
        raise InputError("--jobs and --concurrent-seeds must be at least 1; choose larger values.")
    if "," in options.device and options.jobs == 1:
        raise InputError(
            f"--device {options.device} names several devices; add --jobs {options.device.count(',') + 1}."
        )
    if options.cluster is not None and (options.jobs > 1 or "," in options.device):
        raise InputError("--engine ray runs as many jobs as the cluster has processors; remove --jobs and --device.")
    if options.retry_failed:
        worker.forget_failures(study)
    for name in dict.fromkeys(run.dataset for run in study.runs if not study.is_done(run)):
        open_dataset(study, name)  # so that a missing dataset fails once, not once per run
    if options.cluster is not None:
        counts = run_on_cluster(study, options, console, options.cluster)
    else:
        counts = (worker.run_queue if options.jobs == 1 else run_processes)(study, options, console)
    message = f"{counts.done} of {len(study.runs)} runs done"
    message += f", {counts.failed} failed (reasons in {study.path('failed')})" if counts.failed else ""
    message += f", {counts.waiting} waiting; repeat the command to continue" if counts.waiting else ""
    console.line(f"{message}.")
    return counts
