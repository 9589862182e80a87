"""Run the fits of an estimate concurrently, in processes that use one thread each.

On a CPU, a fit consists of many small operations that several threads do not speed up, but an estimate has several
fits: of Q, of the logging policy and of value@5. Processes add them to the caches of the dataset, and the estimate then
reads them there. What a process does not finish, the estimate fits itself; results are therefore always the same.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from offrec import logging_policy
from offrec.console import Console
from offrec.data.arrays import verified_files
from offrec.errors import InputError, Interrupted
from offrec.estimation import value_at_5, value_cache
from offrec.estimation.fit_tasks import FitTask, Job, LoggingTask, Task, ValueTask
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import EstimateOptions
from offrec.estimation.passes import LocalPasses, describe_number
from offrec.evaluation import EvaluationSplit
from offrec.training.stop_requests import stop_requests
from offrec.types import Floats

MAX_JOBS = 8  # by default; each process needs several hundred megabytes
POLL_SECONDS = 0.1
LONGEST_FIRST = (LoggingTask, FitTask, ValueTask)  # so that all processes end at about the same time
GRACE_SECONDS = 5.0  # for removing the files of an interrupted fit


def fit_concurrently(
    policies: Mapping[str, ListPolicy],
    passes: Mapping[str, LocalPasses],
    decisions: LoggedDecisions,
    rewards: Floats,
    split: EvaluationSplit,
    options: EstimateOptions,
    console: Console,
) -> None:
    """Add the fits of an estimate to the caches of the dataset, if several of them are missing.

    Args:
        policies: The policies. Those on a GPU and those that sample their lists are ignored.
        passes: Compute the lists of each policy.
        decisions: The evaluated decisions.
        rewards: Reward of every event of the dataset.
        split: The sessions that the estimate uses.
        options: Options of the estimate.
        console: Shows the progress.

    Raises:
        Interrupted: If the user stops the estimate.
    """
    dataset, jobs = decisions.dataset, options.jobs or min(torch.get_num_threads(), MAX_JOBS)
    fitted = {name: one for name, one in policies.items() if _count_fits(one, decisions, options)}
    if jobs == 1 or not fitted or not os.access(dataset.path, os.W_OK):
        return
    shared = _shared_tasks(fitted, decisions, rewards, split, options)
    with TemporaryDirectory(prefix="offrec-fits-") as folder:
        tasks = list(shared)
        for index, (name, list_policy) in enumerate(fitted.items()):
            lists = Path(folder) / str(index)
            tasks += _fit_tasks(list_policy, passes[name], decisions, rewards, options, lists)
        tasks.sort(key=lambda task: LONGEST_FIRST.index(type(task)))
        if len(tasks) > 1:
            _run(tasks, Job.of(dataset, split, options), min(jobs, len(tasks)), console)


def check_jobs(policies: Mapping[str, ListPolicy], decisions: LoggedDecisions, options: EstimateOptions) -> None:
    """Raise `InputError` if a number of processes above 1 was given that no fit would use."""
    if options.jobs is None or options.jobs == 1:
        return
    if any(_count_fits(one, decisions, options) for one in policies.values()):
        if os.access(decisions.dataset.path, os.W_OK):
            return
        raise InputError(
            f"--jobs {options.jobs} needs a dataset that can be written to, because processes exchange fits there; "
            f"{decisions.dataset.path} is read-only. Omit --jobs."
        )
    if not any(options.fits_q(one.has_weights, decisions.has_lists) for one in policies.values()):
        raise InputError("--jobs has no effect, because this estimate fits no Q; omit it.")
    if all(one.play != "topk" for one in policies.values()):
        raise InputError("--jobs has no effect on policies that sample their lists; omit it or use --play topk.")
    raise InputError("--jobs has no effect on a GPU; omit it or use --device cpu.")


def _count_fits(list_policy: ListPolicy, decisions: LoggedDecisions, options: EstimateOptions) -> int:
    """Return the number of fits of Q that other processes can run."""
    if list_policy.play != "topk" or list_policy.policy.device.type != "cpu":
        return 0
    return options.count_fits(list_policy.has_weights, decisions.has_lists)


def _shared_tasks(
    policies: Mapping[str, ListPolicy],
    decisions: LoggedDecisions,
    rewards: Floats,
    split: EvaluationSplit,
    options: EstimateOptions,
) -> list[Task]:
    """Return the missing fits that policies with the same history length share."""
    dataset, tasks = decisions.dataset, list[Task]()
    for policy in {one.policy.history: one.policy for one in policies.values()}.values():
        network = options.network_for(policy)
        if not decisions.has_lists and not logging_policy.is_cached(dataset, network, options.training, options.seed):
            tasks.append(LoggingTask(asdict(network)))
        settings = options.values.with_history(policy.history)
        if (
            options.value_at_5
            and value_at_5.can_score(dataset, split)
            and not value_at_5.is_cached(dataset, rewards, value_at_5.GAMMA, settings)
        ):
            tasks.append(ValueTask(policy.history))
    return tasks


def _fit_tasks(
    list_policy: ListPolicy,
    passes: LocalPasses,
    decisions: LoggedDecisions,
    rewards: Floats,
    options: EstimateOptions,
    folder: Path,
) -> list[FitTask]:
    """Return the missing fits of a policy, and write its lists to a folder."""
    lists, tasks = passes.top_lists(list_policy, decisions), []
    for number in range(_count_fits(list_policy, decisions, options)):
        description = describe_number(list_policy, decisions, rewards, options, number, lists)
        if not value_cache.is_cached(decisions.dataset, description):
            tasks.append(FitTask(str(folder), list_policy.policy.history, number))
    folder.mkdir()
    for name, part in zip(("train", "evaluated"), lists, strict=True):
        np.save(folder / f"{name}.npy", part.numpy(), allow_pickle=False)
    return tasks


def _run(tasks: list[Task], job: Job, count: int, console: Console) -> None:
    """Run all tasks in `count` processes. A process that fails leaves the other tasks to the others."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    done: list[Task] = []
    with _processes(count) as processes, stop_requests() as stop, console.counter(f"{count} processes") as progress:
        threads = [threading.Thread(target=_serve, args=(one, job, waiting, done)) for one in processes]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                if stop.is_set():
                    raise Interrupted("Stopped while fitting values; the fits that had finished are cached.")
                progress(len(done), len(tasks))
                time.sleep(POLL_SECONDS)
            progress(len(done), len(tasks))
        finally:
            for process in processes:
                process.terminate()  # a fit that was interrupted publishes nothing
            for thread in threads:
                thread.join()
    if len(done) < len(tasks):
        failed = f"{len(tasks) - len(done)} of {len(tasks)} fits"
        console.line(f"{failed} failed in other processes; fitting them in this process")


def _serve(process: subprocess.Popen[str], job: Job, waiting: "queue.SimpleQueue[Task]", done: list[Task]) -> None:
    """Send tasks to a process, one at a time, until none is waiting or the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    message: Job | Task = job
    try:
        while True:
            process.stdin.write(json.dumps(asdict(message)) + "\n")
            process.stdin.flush()
            if not isinstance(message, Job):
                if not process.stdout.readline():
                    return
                done.append(message)
            message = waiting.get_nowait()
    except (queue.Empty, OSError):  # OSError: the process has ended
        return


@contextmanager
def _processes(count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes that wait for a job, and end them afterwards."""
    command = [sys.executable, "-m", "offrec.estimation.fit_tasks", str(os.getpid())]
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | verified_files()
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(count):
            # A separate session: Ctrl-C reaches the parent only, which then ends each process.
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            processes.append(process)
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.communicate(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
