"""A study worked off as asked: in this process, or by several."""

from collections.abc import Callable

from offrec.console import Console
from offrec.errors import InputError
from offrec.studies import processes as side_by_side
from offrec.studies import study as plan
from offrec.studies import worker as work
from offrec.studies.study import Study
from offrec.studies.worker import RunCounts, WorkerOptions


def run_study(
    study: Study, how: WorkerOptions, console: Console, parent_alive: Callable[[], bool] = lambda: True
) -> RunCounts:
    """As far as it goes here; what is left and what failed is said."""
    if how.jobs < 1 or (how.together is not None and how.together < 1):
        raise InputError("--jobs and --together must be at least 1.")
    if "," in how.device and how.jobs == 1:
        raise InputError(
            f"--device {how.device} names several devices; say --jobs {how.device.count(',') + 1} as well."
        )
    if how.retry:
        work.forget_failures(study)
    for name in dict.fromkeys(run.dataset for run in study.runs if not study.done(run)):
        plan.open_dataset(study, name)  # refused now, once, and not as the failure of each run
    alone = how.jobs == 1
    left = work.work(study, how, console, parent_alive) if alone else side_by_side.work(study, how, console)
    said = f"{left.done} of {len(study.runs)} runs done"
    said += f", {left.failed} failed ({study.path('failed')} says why)" if left.failed else ""
    said += f", {left.waiting} still to do: the same command goes on" if left.waiting else ""
    console.line(f"{said}.")
    return left
