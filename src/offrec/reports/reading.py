"""What came of one or several studies, read back from their folders: needs the results alone, not the runs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrec.algorithms import LEARNERS
from offrec.errors import InputError
from offrec.studies.compatibility import check_protocols
from offrec.studies.folder import read_study
from offrec.studies.study import Run, RunGroup, Study, StudyDataset


@dataclass(frozen=True)
class RunResult:
    """One run that is done."""

    study: Study
    run: Run
    facts: dict[str, Any]

    def figure(self, behaviour: str, name: str, split: str = "test") -> float | None:
        """A ranking figure of a behaviour, or "reward" (what the shop paid a session) or "value" (as estimated)."""
        if name == "reward":
            return self.facts["shop"]["reward"]["mean"] if self.facts.get("shop") else None
        if name == "value":
            return self.facts["value"]["value"] if self.facts.get("value") else None
        found: float | None = self.facts.get(split, {}).get(behaviour, {}).get(name)
        return found

    @property
    def valued(self) -> int:
        """How many figures it has that only a study with --value has."""
        return bool(self.facts.get("value")) + (self.figure("all", "value@5") is not None)

    def array(self, kind: str) -> NDArray[Any]:
        return _array(self.study, f"{self.run.name}.{kind}")

    @property
    def events(self) -> NDArray[Any]:
        """[2, events] session and behaviour of each scored test event."""
        return _array(self.study, f"{self.run.dataset}.events")


def _array(study: Study, name: str) -> NDArray[Any]:
    path = study.path("results", f"{name}.npy")
    try:
        found: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); remove the .json beside it, and the run is judged again."
        ) from error
    return found


@dataclass(frozen=True)
class PolicyResults:
    """One policy on one log: a row of a table. Its results are its repeats."""

    group: RunGroup
    studies: tuple[Study, ...]  # that ask for it
    results: tuple[RunResult, ...]
    asked: int  # how many there should be

    @property
    def study(self) -> Study:
        return self.studies[0]

    def values(self, behaviour: str, figure: str, split: str = "test") -> dict[int, float]:
        """seed → figure"""
        found = {result.run.seed: result.figure(behaviour, figure, split) for result in self.results}
        return {seed: value for seed, value in found.items() if value is not None}

    @cached_property
    def last(self) -> dict[str, float]:
        """Means over seeds of the diagnostics at the kept epoch."""
        rows = [
            result.facts["learning_curve"][result.facts["selected_epoch"] - 1].get("diagnostics", {})
            for result in self.results
            if result.facts.get("learning_curve")
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}


@dataclass(frozen=True)
class FailedRun:
    study: Study
    run: Run
    reason: str


@dataclass(frozen=True)
class StudyResults:
    studies: tuple[Study, ...]
    entries: tuple[PolicyResults, ...]
    failures: tuple[FailedRun, ...]
    logs: dict[str, list[StudyDataset]] = field(default_factory=dict)  # by the name a table calls it

    @property
    def waiting(self) -> int:
        return sum(not s.is_done(run) and not s.has_failed(run) for s in self.studies for run in s.runs)

    @property
    def compared(self) -> list[PolicyResults]:
        """What stands in tables: no values of a sweep, no trials."""
        plain = (
            e for e in self.entries if not e.group.varied and e.group.compare_with is None and e.group.trial is None
        )
        return [entry for entry in plain if entry.results]

    @property
    def swept(self) -> list[PolicyResults]:
        return [e for e in self.entries if (e.group.varied or e.group.compare_with) and e.group.trial is None]

    @property
    def trials(self) -> list[PolicyResults]:
        return [entry for entry in self.entries if entry.group.trial is not None]

    def behaviours(self, log: str) -> list[str]:
        return self.logs[log][0].behaviours

    def results(self) -> Iterable[RunResult]:
        return (result for entry in self.entries for result in entry.results)


def read_studies(folders: Sequence[Path]) -> StudyResults:
    studies = tuple(read_study(folder) for folder in folders)
    logs: dict[str, list[StudyDataset]] = {}
    prints: dict[str, str] = {}
    for study in studies:
        for log in study.datasets:
            if prints.setdefault(log.name, log.fingerprint) != log.fingerprint:
                raise InputError(
                    f"{log.name} has the fingerprint {log.fingerprint} in {study.folder} and {prints[log.name]} in "
                    "another study, so they do not belong in one table; make two reports."
                )
            if log.name not in [known.name for known in logs.setdefault(log.log, [])]:
                logs[log.log].append(log)
    check_protocols([log for several in logs.values() for log in several])
    entries: dict[object, PolicyResults] = {}
    failures: list[FailedRun] = []
    for study in studies:
        for entry in _entries(study):
            _add(entries, entry)
        failed = [run for run in study.runs if study.has_failed(run) and not study.is_done(run)]
        failures += [FailedRun(study, run, _json(study.path("failed", f"{run.name}.json"))["reason"]) for run in failed]
    if not any(entry.results for entry in entries.values()) and not failures:
        raise InputError(f"No run of {', '.join(map(str, folders))} is done yet; run the study first.")
    return StudyResults(studies, tuple(sorted(entries.values(), key=_place)), tuple(failures), logs)


def _place(entry: PolicyResults) -> tuple[int, int]:
    """The shop's own, baselines, learners in the paper's order; what is equal stays as it was asked."""
    learners = [*LEARNERS, entry.group.policy]  # a plug-in that is not installed comes last
    kind = ("shop", "baseline", "learner").index(entry.group.kind)
    varied = entry.group.varied or entry.group.compare_with
    return kind, learners.index(entry.group.policy) if kind == 2 and not varied else -1


def _entries(study: Study) -> Iterable[PolicyResults]:
    runs_of: dict[str, list[Run]] = {}
    for run in study.runs:
        runs_of.setdefault(run.group, []).append(run)
    for group in study.groups:
        runs = runs_of.get(group.name, [])
        done = tuple(
            RunResult(study, run, _json(study.path("results", f"{run.name}.json")))
            for run in runs
            if study.is_done(run)
        )
        yield PolicyResults(group, (study,), done, len(runs))


def _add(entries: dict[object, PolicyResults], entry: PolicyResults) -> None:
    """The same policy in two studies is one row, each seed once: as it was judged by more, or else first."""
    group = entry.group
    options = json.dumps([group.options, group.varied, group.compare_with, group.trial], sort_keys=True)
    key = (group.log, group.kind, group.policy, group.backbone, group.preset, options)
    before = entries.get(key)
    if before is not None:
        kept = {result.run.seed: result for result in before.results}
        for result in entry.results:
            if kept.setdefault(result.run.seed, result).valued < result.valued:
                kept[result.run.seed] = result
        studies = before.studies + entry.studies
        entry = PolicyResults(before.group, studies, tuple(kept.values()), max(before.asked, entry.asked))
    entries[key] = entry


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it, and the run is judged again.") from error
    return found
