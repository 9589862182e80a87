"""Read the results of one or several studies. Needs study.json and the results, not the runs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrec.algorithms import LEARNERS
from offrec.errors import InputError
from offrec.studies.compatibility import check_protocols
from offrec.studies.folder import read_study
from offrec.studies.stored_results import SAMPLED, read_array, read_failure, read_result
from offrec.studies.study import Run, RunGroup, Study, StudyDataset


@dataclass(frozen=True)
class RunResult:
    """The stored result of one run.

    Attributes:
        study: The study of the run.
        run: The run.
        facts: The content of its JSON file.
        is_sampled: Whether the rewards are those of sampled lists, which the files contain in addition.
    """

    study: Study
    run: Run
    facts: dict[str, Any]
    is_sampled: bool = False

    def metric(self, behaviour: str, name: str, split: str = "test") -> float | None:
        """Return a ranking metric of a behaviour ("all": every event), or None if it was not measured.

        The names "reward" (true reward per session in the shop) and "value" (its estimate from the log) ignore the
        behaviour and the split.
        """
        if name == "reward":
            return self.facts["shop"]["reward"]["mean"] if self.facts.get("shop") else None
        if name == "value":
            return self.facts["value"]["value"] if self.facts.get("value") else None
        value: float | None = self.facts.get(split, {}).get(behaviour, {}).get(name)
        return value

    @property
    def value_count(self) -> int:
        """Number of available metrics that only a study with --value computes."""
        return bool(self.facts.get("value")) + (self.metric("all", "value@5") is not None)

    def array(self, kind: str) -> NDArray[Any]:
        """Load "ranks" [events] or "rewards" [visitors]."""
        return read_array(self.study, self.run, self.facts, kind + (SAMPLED if self.is_sampled else ""))

    @property
    def events(self) -> NDArray[Any]:
        """[2, events]: session and behaviour of each scored test event."""
        return read_array(self.study, self.run, self.facts, "events")


@dataclass(frozen=True)
class PolicyResults:
    """The results of one policy on one log: one row of a table.

    Attributes:
        group: The policy.
        studies: The studies that contain it.
        results: One result per finished seed.
        expected: Number of results when all runs are done.
    """

    group: RunGroup
    studies: tuple[Study, ...]
    results: tuple[RunResult, ...]
    expected: int

    @property
    def study(self) -> Study:
        return self.studies[0]

    def values(self, behaviour: str, metric: str, split: str = "test") -> dict[int, float]:
        """Return a metric by seed."""
        values = {result.run.seed: result.metric(behaviour, metric, split) for result in self.results}
        return {seed: value for seed, value in values.items() if value is not None}

    def mean(self, behaviour: str, metric: str, split: str = "test") -> float | None:
        """Return the mean of a metric over seeds, or None if it was not measured."""
        values = list(self.values(behaviour, metric, split).values())
        return float(np.mean(values)) if values else None

    @cached_property
    def diagnostics(self) -> dict[str, float]:
        """Diagnostics at the selected epoch, as means over seeds."""
        rows = [
            result.facts["learning_curve"][result.facts["selected_epoch"] - 1].get("diagnostics", {})
            for result in self.results
            if result.facts.get("learning_curve")
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        known = {name: [row[name] for row in rows if row.get(name) is not None] for name in names}
        return {name: float(np.mean(values)) for name, values in known.items() if values}

    @cached_property
    def warnings(self) -> dict[int, dict[str, str]]:
        """Warnings at the selected epoch by condition, for each seed that has any."""
        by_seed = {
            result.run.seed: result.facts["learning_curve"][result.facts["selected_epoch"] - 1].get("warnings", {})
            for result in self.results
            if result.facts.get("learning_curve")
        }
        return {seed: warnings for seed, warnings in by_seed.items() if warnings}


@dataclass(frozen=True)
class FailedRun:
    """A run that failed, and why."""

    study: Study
    run: Run
    reason: str


@dataclass(frozen=True)
class StudyResults:
    """The results of one or several studies.

    Attributes:
        studies: The studies.
        policies: One entry per policy and log, in the order of tables.
        sampled: SL, played by sampling in the shop: further results of the same runs.
        failures: The failed runs.
        logs: The datasets of each log, by the name that tables use.
    """

    studies: tuple[Study, ...]
    policies: tuple[PolicyResults, ...]
    failures: tuple[FailedRun, ...]
    logs: dict[str, list[StudyDataset]] = field(default_factory=dict)
    sampled: tuple[PolicyResults, ...] = ()

    @property
    def waiting(self) -> int:
        """Number of runs that are neither done nor failed."""
        return sum(study.is_waiting(run) for study in self.studies for run in study.runs)

    @property
    def compared(self) -> list[PolicyResults]:
        """Policies of comparisons that have a result, without sweeps and trials."""
        groups = ((policy, policy.group) for policy in self.policies if policy.results)
        return [p for p, group in groups if not group.varied and group.compare_with is None and group.trial is None]

    @property
    def played(self) -> list[PolicyResults]:
        """The compared policies, with sampled SL after SL."""
        sampled = {(policy.study.folder, policy.group.name): policy for policy in self.sampled}
        rows = ((policy, sampled.get((policy.study.folder, policy.group.name))) for policy in self.compared)
        return [policy for pair in rows for policy in pair if policy is not None]

    def twin(self, policy: PolicyResults) -> PolicyResults | None:
        """Return the twin of a learner, which does not look ahead, or None if it was not run."""
        group = policy.group
        if group.kind != "learner" or group.is_twin or group.is_sampled:
            return None
        key = (group.log, group.policy, group.backbone, group.preset)
        twins = (p for p in self.compared if p.group.is_twin)
        return next((p for p in twins if (p.group.log, p.group.policy, p.group.backbone, p.group.preset) == key), None)

    @property
    def swept(self) -> list[PolicyResults]:
        """The policies of the sweeps."""
        groups = ((policy, policy.group) for policy in self.policies)
        return [p for p, group in groups if (group.varied or group.compare_with) and group.trial is None]

    @property
    def trials(self) -> list[PolicyResults]:
        """The tuning trials."""
        return [policy for policy in self.policies if policy.group.trial is not None]

    def behaviours(self, log: str) -> list[str]:
        """Return the behaviours of a log."""
        return self.logs[log][0].behaviours

    def results(self) -> Iterable[RunResult]:
        """Return the results of all runs."""
        return (result for policy in self.policies for result in policy.results)

    def find(self, log: str, name: str) -> PolicyResults | None:
        """Return a baseline or a policy of the shop by its name."""
        here = (p for p in self.compared if p.group.log == log and p.group.kind != "learner")
        return next((policy for policy in here if policy.group.policy == name), None)

    def best_baseline(self, log: str, behaviour: str, metric: str) -> PolicyResults | None:
        """Return the baseline with the highest mean of a metric, or None if no baseline has this metric."""
        baselines = [p for p in self.compared if p.group.log == log and p.group.kind == "baseline"]
        measured = [p for p in baselines if p.mean(behaviour, metric) is not None]
        return max(measured, key=lambda p: p.mean(behaviour, metric) or 0.0, default=None)


def read_studies(folders: Sequence[Path]) -> StudyResults:
    """Read studies and merge the results of policies that several of them contain.

    Raises:
        InputError: If a folder is not a study, the studies cannot be combined in one report, or no run is done.
    """
    studies = tuple(read_study(folder) for folder in folders)
    logs: dict[str, list[StudyDataset]] = {}
    fingerprints: dict[str, str] = {}
    for study in studies:
        for dataset in study.datasets:
            if fingerprints.setdefault(dataset.name, dataset.fingerprint) != dataset.fingerprint:
                raise InputError(
                    f"{dataset.name} has the fingerprint {dataset.fingerprint} in {study.folder} and "
                    f"{fingerprints[dataset.name]} in another study; create two reports."
                )
            if dataset.name not in [known.name for known in logs.setdefault(dataset.log, [])]:
                logs[dataset.log].append(dataset)
    check_protocols([dataset for datasets in logs.values() for dataset in datasets])
    policies: dict[object, PolicyResults] = {}
    failures: list[FailedRun] = []
    for study in studies:
        for policy in _read_policies(study):
            _merge(policies, policy)
        failed = [run for run in study.runs if study.has_failed(run) and not study.is_done(run)]
        reasons = [read_failure(study, run)["reason"] for run in failed]
        failures += [FailedRun(study, run, reason) for run, reason in zip(failed, reasons, strict=True)]
    if not any(policy.results for policy in policies.values()) and not failures:
        raise InputError(f"No run of {', '.join(map(str, folders))} is done yet; run the study first.")
    ordered = tuple(sorted(policies.values(), key=_table_order))
    sampled = tuple(played for policy in ordered if (played := _play_sampled(policy)) is not None)
    return StudyResults(studies, ordered, tuple(failures), logs, sampled)


def _play_sampled(policy: PolicyResults) -> PolicyResults | None:
    """Return the results of a policy's sampled lists, or None if it was not played by sampling."""
    results = tuple(
        RunResult(
            result.study,
            result.run,
            {"shop": result.facts[f"shop{SAMPLED}"], "arrays": result.facts["arrays"]},
            is_sampled=True,
        )
        for result in policy.results
        if f"shop{SAMPLED}" in result.facts
    )
    return replace(policy, group=replace(policy.group, is_sampled=True), results=results) if results else None


def _table_order(policy: PolicyResults) -> tuple[int, int, bool]:
    """Order by shop policies, baselines, then learners as registered; sweeps keep the order of their plan."""
    learners = [*LEARNERS, policy.group.policy]  # a plug-in that is not installed comes last
    kind = ("shop", "baseline", "learner").index(policy.group.kind)
    in_sweep = policy.group.varied or policy.group.compare_with
    return kind, learners.index(policy.group.policy) if kind == 2 and not in_sweep else -1, policy.group.is_twin


def _read_policies(study: Study) -> Iterable[PolicyResults]:
    runs_of: dict[str, list[Run]] = {}
    for run in study.runs:
        runs_of.setdefault(run.group, []).append(run)
    for group in study.groups:
        runs = runs_of.get(group.name, [])
        done = [run for run in runs if study.is_done(run)]
        facts = [read_result(study, run) for run in done]
        results = tuple(RunResult(study, run, one) for run, one in zip(done, facts, strict=True))
        yield PolicyResults(group, (study,), results, len(runs))


def _merge(policies: dict[object, PolicyResults], policy: PolicyResults) -> None:
    """Add a policy. If several studies contain it, use one result per seed: the one with more values, or the first."""
    group = policy.group
    options = json.dumps([group.options, group.varied, group.compare_with, group.trial], sort_keys=True)
    key = (group.log, group.kind, group.policy, group.backbone, group.preset, options)
    before = policies.get(key)
    if before is not None:
        by_seed = {result.run.seed: result for result in before.results}
        for result in policy.results:
            if by_seed.setdefault(result.run.seed, result).value_count < result.value_count:
                by_seed[result.run.seed] = result
        studies = before.studies + policy.studies
        policy = PolicyResults(before.group, studies, tuple(by_seed.values()), max(before.expected, policy.expected))
    policies[key] = policy
