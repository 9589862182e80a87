"""Working off a study's queue, in one process: whatever is neither done nor claimed, until nothing is left."""

import gc
import json
import math
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import torch

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.errors import InputError, Interrupted, RunError, first_line
from offrec.policy import Policy
from offrec.runs import folder as run_folder
from offrec.runs import train as experiment
from offrec.studies import machine, results
from offrec.studies import study as plan
from offrec.studies.claims import Claim
from offrec.studies.progress import Following, Progress, spoken_of
from offrec.studies.study import Group, Run, Study


@dataclass(frozen=True)
class WorkerOptions:
    """Where and how, not what."""

    device: str = "auto"  # several, separated by commas, for several processes
    jobs: int = 1  # processes side by side
    limit: float = math.inf  # start nothing after so many seconds
    together: int | None = None  # seeds trained at once; None: all on a GPU, one on a CPU
    retry: bool = False  # try again what failed


@dataclass(frozen=True)
class RunCounts:
    """Counts of a study's runs by state."""

    done: int
    failed: int
    waiting: int

    @staticmethod
    def of(study: Study) -> "RunCounts":
        done = sum(map(study.done, study.runs))
        failed = sum(study.failed(run) for run in study.runs if not study.done(run))
        return RunCounts(done, failed, len(study.runs) - done - failed)


def work(study: Study, how: WorkerOptions, console: Console, parent_alive: Any = lambda: True) -> RunCounts:
    """Finish what can be finished here. Killed at any moment, the same call goes on."""
    device = experiment.pick_device(how.device)
    most = how.together or (len(study.runs) if device.type == "cuda" else 1)
    started = time.monotonic()
    worker = _Worker(study, device, how.device)
    with Progress(study, console) as progress:
        for claim in _claims(study, most):
            with claim:
                if time.monotonic() - started > how.limit or not parent_alive():
                    break
                try:
                    worker.finish(claim.runs, Following(progress, claim.runs))
                except (Interrupted, KeyboardInterrupt) as error:  # whose own words speak of options of a single run
                    raise stopped(study, claim.runs) from error
            _give_back(device)
            progress.show()
    return RunCounts.of(study)


def _give_back(device: torch.device) -> None:
    """What the runs held on a GPU that other processes may share: a cache looks full to them."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def forget_failures(study: Study) -> None:
    for run in study.runs:
        study.path("failed", f"{run.name}.json").unlink(missing_ok=True)


def stopped(study: Study, in_hand: Sequence[Run] = ()) -> Interrupted:
    """What is kept, and what becomes of what was in hand."""
    begun = {(study.path("runs", run.name) / "last.safetensors").exists() for run in in_hand}
    rest = "goes on where its training was last saved, or starts again"
    if len(begun) == 1:
        rest = "goes on where its training was last saved" if begun == {True} else "starts again"
    done = RunCounts.of(study).done
    return Interrupted(
        f"Stopped; {done} of {len(study.runs)} runs {'is' if done == 1 else 'are'} done and kept, "
        f"{spoken_of(in_hand)} {rest}: the same command goes on."
    )


def queued(study: Study) -> list[Run]:
    """In the order in which they are asked; but where a value takes longer than a training, learners come before
    baselines: a person waits for those.
    """
    if not study.value:
        return list(study.runs)
    return sorted(study.runs, key=lambda run: study.group(run).kind == "baseline")


def _claims(study: Study, most: int) -> Iterator[Claim]:
    """What is free, group after group, until nothing is."""
    runs_of: dict[str, list[Run]] = {}
    for run in queued(study):
        if study.group(run).kind != "baseline" or find_spec("scipy") is not None:  # else another machine's to do
            runs_of.setdefault(f"{run.group} {run.dataset}", []).append(run)
    found = True
    while found:
        found = False
        for runs in runs_of.values():
            waiting = [run for run in runs if not study.done(run) and not study.failed(run)]
            claim = Claim(study, waiting, most)
            if claim.runs:
                found = True
                yield claim


class Unusable(RunError):
    """A failure after which nothing more can be computed in this process."""


class _Worker:
    def __init__(self, study: Study, device: torch.device, asked: str) -> None:
        self.study, self.device, self.asked = study, device, asked
        self.opened: dict[str, Dataset] = {}

    def finish(self, runs: Sequence[Run], console: Console) -> None:
        """All of them: judged and kept, or their failure recorded."""
        group = self.study.group(runs[0])
        try:
            dataset = self._dataset(runs[0].dataset)
            if group.kind == "learner":
                self._learn(group, runs, dataset, console)
            else:
                self._judge_untrained(group, runs[0], dataset, console)
        except (Interrupted, Unusable):
            raise
        except Exception as error:  # whatever it is: the study goes on without these runs
            if len(runs) > 1:
                for run in runs:  # which of them it was is found by trying each alone
                    if not self.study.done(run) and not self.study.failed(run):
                        self.finish([run], console)
                return
            self._failed(runs[0], error)

    def _dataset(self, name: str) -> Dataset:
        if name not in self.opened:
            self.opened[name] = plan.open_dataset(self.study, name)
        return self.opened[name]

    def _judge_untrained(self, group: Group, run: Run, dataset: Dataset, console: Console) -> None:
        started, peak = time.monotonic(), machine.Peak(self.device)
        if group.kind == "shop":
            judged = results.measure_shop_policy(self.study, group.policy, dataset, self.device)
        else:
            from offrec.baselines import baseline  # needs scipy

            policy = baseline(group.policy, dataset, device=self.device)
            judged = results.measure_policy(self.study, policy, dataset, {}, console)
        judged.facts.update(self._took(started, peak))
        results.store_result(self.study, run.name, judged)

    def _learn(self, group: Group, runs: Sequence[Run], dataset: Dataset, console: Console) -> None:
        started, peak = time.monotonic(), machine.Peak(self.device)
        resumed = {run.name: (self.study.path("runs", run.name) / "last.safetensors").exists() for run in runs}
        trained = self._trained(group, runs, dataset, console)
        took = self._took(started, peak, len(runs))
        rewards = {key.removeprefix("reward."): v for key, v in group.options.items() if key.startswith("reward.")}
        for run in runs:
            if run.name in trained:
                judged = results.measure_policy(self.study, trained.pop(run.name), dataset, rewards, console)
                folder = self.study.path("runs", run.name)
                curve = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
                calibration = run_folder.read(folder)["logging_policy"]
                learned = {"curve": curve, "kept_epoch": kept_epoch(curve, str(group.options["select"]))}
                judged.facts.update(learned, logging_policy=calibration, resumed=resumed[run.name], **took)
                results.store_result(self.study, run.name, judged)

    def _trained(self, group: Group, runs: Sequence[Run], dataset: Dataset, console: Console) -> dict[str, Policy]:
        settings = {run.name: {**group.options, "seed": run.seed, "device": self.asked} for run in runs}
        home = self.study.path("runs")
        if len(runs) == 1:
            (run,) = runs
            policy = experiment.train(
                dataset, home / run.name, settings=settings[run.name], resume=True, console=console
            )
            return {run.name: policy}
        by_name = {run.name: run for run in runs}
        many = experiment.train_many(
            dataset,
            settings,
            home,
            resume=True,
            console=console,
            failed=lambda name, error: self._failed(by_name[name], error),
        )
        return dict(many)

    def _took(self, started: float, peak: machine.Peak, together: int = 1) -> dict[str, Any]:
        """Of runs trained together, each is said to have taken its share of the time."""
        return {
            "seconds": (time.monotonic() - started) / together,
            "together": together,
            "memory": peak.bytes(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine.machine(str(self.device)),
        }

    def _failed(self, run: Run, error: Exception) -> None:
        reason = first_line(error) if isinstance(error, InputError | RunError) else f"{type(error).__name__}: {error}"
        facts = {"run": run.name, "reason": reason.splitlines()[0], "machine": machine.machine(str(self.device))}
        trace = "".join(traceback.format_exception(error))
        when = datetime.now(UTC).isoformat(timespec="seconds")
        plan.write_json(self.study.path("failed", f"{run.name}.json"), {**facts, "finished": when, "traceback": trace})
        try:
            torch.zeros(1, device=self.device).cpu()
        except RuntimeError as broken:
            raise Unusable(
                f"{run.name} failed ({reason}) and left {self.device} unusable for this process; the same command goes "
                "on with the rest."
            ) from broken


def kept_epoch(curve: Sequence[dict[str, Any]], select: str) -> int:
    """The epoch whose checkpoint was kept: the last, or the first of the best."""
    if select == "last":
        return len(curve)
    figure = {"ndcg": "NDCG@10", "reward": "reward@10", "value": "value@5"}[select]
    values = [epoch["validation"][figure] for epoch in curve]
    return values.index(max(values)) + 1
