"""Execute the runs of a study's queue in one process."""

import gc
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import torch

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.json_files import MAX_BYTES, parse_json
from offrec.data.regular_files import read_limited
from offrec.errors import InputError, Interrupted, RunError, first_line
from offrec.policy import Policy
from offrec.runs.folder import read_run
from offrec.runs.loading import pick_device
from offrec.runs.options import resolve_options
from offrec.runs.plan import count_concurrent_runs
from offrec.runs.train import train, train_many
from offrec.studies import results
from offrec.studies.claims import Claim
from offrec.studies.folder import open_dataset
from offrec.studies.machine import PeakMemory, describe_machine
from offrec.studies.progress import RunConsole, StudyProgress, describe_runs
from offrec.studies.stored_results import write_failure, write_result
from offrec.studies.study import Run, RunGroup, Study


@dataclass(frozen=True)
class WorkerOptions:
    """Options for executing a study.

    Attributes:
        device: Device of the runs; several, separated by commas, for several processes.
        jobs: Number of concurrent processes.
        time_limit: Seconds after which no further run is started.
        concurrent_seeds: Most seeds trained concurrently per process; None: all on a GPU, one on a CPU. Fewer are
            trained if memory is expected to be insufficient.
        retry_failed: Whether failed runs are executed again.
        cluster: Where runs are executed instead of processes on this machine; see `offrec.studies.cluster`.
        processes_on_device: Processes that share the memory of the device.
    """

    device: str = "auto"
    jobs: int = 1
    time_limit: float = math.inf
    concurrent_seeds: int | None = None
    retry_failed: bool = False
    cluster: Any = None
    processes_on_device: int = 1


@dataclass(frozen=True)
class RunCounts:
    """Numbers of done, failed and waiting runs of a study."""

    done: int
    failed: int
    waiting: int

    @staticmethod
    def of(study: Study) -> "RunCounts":
        """Count the runs of a study by the files in its folder."""
        done = sum(map(study.is_done, study.runs))
        failed = sum(study.has_failed(run) for run in study.runs if not study.is_done(run))
        return RunCounts(done, failed, len(study.runs) - done - failed)


def run_queue(study: Study, options: WorkerOptions, console: Console) -> RunCounts:
    """Execute every waiting run that is not claimed. Call it again after an interruption to continue the study."""
    device = pick_device(options.device)
    limit = options.concurrent_seeds or (len(study.runs) if device.type == "cuda" else 1)
    started = time.monotonic()
    worker = _Worker(study, device, options.device)

    def seeds(runs: Sequence[Run]) -> int:
        return worker.count_concurrent_seeds(runs, limit, options.processes_on_device)

    with StudyProgress(study, console) as progress:
        for claim in claim_runs(study, seeds):
            with claim:
                if time.monotonic() - started > options.time_limit:
                    break
                try:
                    worker.execute(claim.runs, RunConsole(progress, claim.runs))
                except (Interrupted, KeyboardInterrupt) as error:  # the message refers to options of a single run
                    raise interruption(study, claim.runs) from error
            _release_memory(device)
            progress.update()
    return RunCounts.of(study)


def _release_memory(device: torch.device) -> None:
    """Release cached GPU memory, because other processes may share the device."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def forget_failures(study: Study) -> None:
    """Delete the records of failed runs, so that these runs are executed again."""
    for run in study.runs:
        study.path("failed", f"{run.name}.json").unlink(missing_ok=True)


def interruption(study: Study, current: Sequence[Run] = ()) -> Interrupted:
    """Return the error that tells the user what is stored and how to continue the current runs."""
    has_checkpoint = {(study.path("runs", run.name) / "last.safetensors").exists() for run in current}
    if has_checkpoint == {True}:
        continuation = "will continue from the last checkpoint"
    elif has_checkpoint == {False}:
        continuation = "will start again"
    else:
        continuation = "will continue from the last checkpoint or start again"
    return Interrupted(
        f"Stopped; {RunCounts.of(study).done} of {len(study.runs)} runs done; {describe_runs(current)} "
        f"{continuation}; repeat the command to continue."
    )


def queue(study: Study) -> list[Run]:
    """Return the runs in order of execution.

    Where values are estimated, learners come before baselines: an estimate can take longer than training, and the
    learners' results are needed first.
    """
    if not study.estimate_value:
        return list(study.runs)
    return sorted(study.runs, key=lambda run: study.group(run).kind == "baseline")


def claim_runs(study: Study, seeds: Callable[[Sequence[Run]], int]) -> Iterator[Claim]:
    """Claim up to `seeds(runs)` runs of one group at a time, until no run is free."""
    runs_of: dict[str, list[Run]] = {}
    for run in queue(study):
        if study.group(run).kind != "baseline" or find_spec("scipy") is not None:  # else left to another machine
            runs_of.setdefault(f"{run.group} {run.dataset}", []).append(run)
    claimed = True
    while claimed:
        claimed = False
        for runs in runs_of.values():
            waiting = [run for run in runs if study.is_waiting(run)]
            claim = Claim(study, waiting, seeds(waiting))
            if claim.runs:
                claimed = True
                yield claim


def execute_runs(study: Study, runs: Sequence[Run], device: torch.device, device_name: str, console: Console) -> None:
    """Execute claimed runs of one group and store their results, or record their failures.

    Args:
        study: The study.
        runs: The runs.
        device: The device.
        device_name: The name of the device in the options of the runs, such as "auto".
        console: Shows progress.
    """
    _Worker(study, device, device_name).execute(runs, console)


class DeviceLost(RunError):
    """Raised when this process can no longer use its device."""


class _Worker:
    def __init__(self, study: Study, device: torch.device, device_name: str) -> None:
        self.study, self.device, self.device_name = study, device, device_name
        self.opened: dict[str, Dataset] = {}

    def count_concurrent_seeds(self, runs: Sequence[Run], limit: int, processes: int) -> int:
        """Return how many of the runs, which belong to one group, memory can hold at the same time."""
        limit = min(limit, len(runs))
        if limit <= 1 or self.study.group(runs[0]).kind != "learner":
            return 1
        try:
            dataset = self._dataset(runs[0].dataset)
            settings = {**self.study.group(runs[0]).options, "device": self.device_name}
            options = resolve_options(settings, dataset.protocol.format)
            return count_concurrent_runs(dataset, options, limit, processes)
        except InputError:  # every run of the group fails; executing it records the reason
            return limit
        finally:
            _release_memory(self.device)

    def execute(self, runs: Sequence[Run], console: Console) -> None:
        """Execute runs of one group and store their results, or record their failures."""
        group = self.study.group(runs[0])
        try:
            dataset = self._dataset(runs[0].dataset)
            if group.kind == "learner":
                self._execute_learner(group, runs, dataset, console)
            else:
                self._execute_untrained(group, runs[0], dataset, console)
        except (Interrupted, DeviceLost):
            raise
        except Exception as error:  # one failed run must not stop the study
            if len(runs) > 1:
                for run in runs:  # execute each run alone, to find the failing one
                    if self.study.is_waiting(run):
                        self.execute([run], console)
                return
            self._record_failure(runs[0], error)

    def _dataset(self, name: str) -> Dataset:
        if name not in self.opened:
            self.opened[name] = open_dataset(self.study, name)
        return self.opened[name]

    def _execute_untrained(self, group: RunGroup, run: Run, dataset: Dataset, console: Console) -> None:
        started, peak = time.monotonic(), PeakMemory(self.device)
        if group.kind == "shop":
            measurements = results.measure_shop_policy(self.study, group.policy, dataset, self.device)
        else:
            from offrec.baselines import baseline  # needs scipy

            policy = baseline(group.policy, dataset, device=self.device)
            measurements = results.measure_policy(self.study, group, policy, dataset, {}, console)
        measurements.facts.update(self._costs(started, peak))
        write_result(self.study, run, measurements.facts, measurements.arrays)

    def _execute_learner(self, group: RunGroup, runs: Sequence[Run], dataset: Dataset, console: Console) -> None:
        started, peak = time.monotonic(), PeakMemory(self.device)
        resumed = {run.name: (self.study.path("runs", run.name) / "last.safetensors").exists() for run in runs}
        policies = self._train(group, runs, dataset, console)
        costs = self._costs(started, peak, len(runs))
        rewards = {key.removeprefix("reward."): v for key, v in group.options.items() if key.startswith("reward.")}
        for run in runs:
            if run.name in policies:
                policy = policies.pop(run.name)
                measurements = results.measure_policy(self.study, group, policy, dataset, rewards, console)
                measurements.facts.update(self._training_facts(run), resumed=resumed[run.name], **costs)
                write_result(self.study, run, measurements.facts, measurements.arrays)

    def _training_facts(self, run: Run) -> dict[str, Any]:
        folder = self.study.path("runs", run.name)
        curve = [parse_json(line) for line in read_limited(folder / "metrics.jsonl", MAX_BYTES).splitlines()]
        return {
            "learning_curve": curve,
            "selected_epoch": curve[-1]["best_epoch"],
            "stopped_early": curve[-1]["stopped_early"],
            "logging_policy": read_run(folder)["logging_policy"],
        }

    def _train(self, group: RunGroup, runs: Sequence[Run], dataset: Dataset, console: Console) -> dict[str, Policy]:
        settings = {run.name: {**group.options, "seed": run.seed, "device": self.device_name} for run in runs}
        out = self.study.path("runs")
        if len(runs) == 1:
            (run,) = runs
            policy = train(dataset, out / run.name, settings=settings[run.name], resume=True, console=console)
            return {run.name: policy}
        by_name = {run.name: run for run in runs}
        policies = train_many(
            dataset,
            settings,
            out,
            resume=True,
            console=console,
            failed=lambda name, error: self._record_failure(by_name[name], error),
        )
        return dict(policies)

    def _costs(self, started: float, peak: PeakMemory, concurrent_seeds: int = 1) -> dict[str, Any]:
        """Return the run's time, memory use and machine. Each concurrent run is charged an equal share of the time."""
        return {
            "seconds": (time.monotonic() - started) / concurrent_seeds,
            "concurrent_seeds": concurrent_seeds,
            "peak_memory": peak.bytes(),
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(str(self.device)),
        }

    def _record_failure(self, run: Run, error: Exception) -> None:
        reason = first_line(error) if isinstance(error, InputError | RunError) else f"{type(error).__name__}: {error}"
        failure = {
            "reason": reason.splitlines()[0],
            "machine": describe_machine(str(self.device)),
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "traceback": "".join(traceback.format_exception(error)),
        }
        write_failure(self.study, run, failure)
        try:
            torch.zeros(1, device=self.device).cpu()
        except RuntimeError as lost:
            raise DeviceLost(
                f"{run.name} failed ({reason}), and this process cannot use {self.device} any more; repeat the command "
                "to continue with the other runs."
            ) from lost
