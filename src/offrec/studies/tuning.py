"""Tuning: trials proposed by optuna, judged on validation alone, kept in the folder of a study like any other runs.

What a trial is given depends on the trials before it and on the seed, on nothing else: stopped and continued, the
trials are those of an undisturbed search.
"""

import fcntl
import json
import math
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.plugins import Range, SearchSpace, Settings
from offrec.runs.option_text import parse_settings
from offrec.runs.presets import PRESETS
from offrec.studies import design
from offrec.studies.folder import is_study_folder, locate_datasets, read_study, write_study
from offrec.studies.run import run_study
from offrec.studies.study import Run, RunGroup, Study, describe_dataset
from offrec.studies.value import VALUE_AT_5
from offrec.studies.worker import WorkerOptions

OBJECTIVES = {"ndcg": "NDCG@10", "reward": "reward@10", "value": VALUE_AT_5}


# Searched for every learner, next to what its record and its backbone's add. Options given with --set are not searched.
SEARCH_ALL: SearchSpace = {
    "training.learning_rate": Range(3e-4, 1e-2),
    "network.dropout": Range(0.0, 0.6, log=False),
}


@dataclass(frozen=True)
class Search:
    """What is tuned, and how."""

    dataset: Path
    out: Path
    algorithm: str
    backbone: str | None = None
    preset: str = "strong"
    settings: Sequence[str] = ()
    trials: int = 30
    seeds: str = "1"
    objective: str = "ndcg"
    seed: int = 0

    def base(self) -> Settings:
        return {"preset": self.preset, "network.backbone": self.network, **parse_settings(self.settings)}

    @property
    def network(self) -> str:
        return self.backbone or PRESETS[self.preset].backbone

    def space(self) -> SearchSpace:
        searched = {**SEARCH_ALL, **BACKBONES[self.network].search, **LEARNERS[self.algorithm].search}
        return {key: values for key, values in searched.items() if key not in self.base()}


def tune(search: Search, how: WorkerOptions, console: Console) -> Study:
    """All trials, however often it takes. Trial 0 is the preset as it is."""
    study = _begin(search)
    with _alone(study):
        while len(study.groups) < search.trials:
            run_study(study, how, Console(quiet=True))
            console.line(_so_far(search, study))
            study = _asked(search, study, min(how.jobs, search.trials - len(study.groups)))
            write_study(study)
        run_study(study, how, console)
    return study


def best_trial(study: Study) -> RunGroup | None:
    """The trial with the best mean on validation, of those that are done."""
    values = _values(study)
    known = [group for group in study.groups if values.get(group.name) is not None]
    return max(known, key=lambda group: values[group.name] or -math.inf, default=None)


def train_command(search: Search, found: RunGroup) -> str:
    """What trains the model of this trial: with all that was held, and with what the search chose."""
    named = ("algorithm.name", "network.backbone", "preset", *design.RUN_OPTIONS)  # flags, or of a run and no trial
    held = {key: value for key, value in parse_settings(search.settings).items() if key not in named}
    words = ["offrec", "train", str(search.dataset), "--algorithm", search.algorithm]
    words += ["--backbone", found.options["network.backbone"], "--preset", found.options["preset"], "--out", "RUN"]
    for key, value in {**held, **found.varied}.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def _so_far(search: Search, study: Study) -> str:
    found, values = best_trial(study), _values(study)
    said = f"trial {len(study.groups)} of {search.trials}"
    if found is None:
        return f"{said}; none has succeeded so far"
    return f"{said}; best so far: trial {found.trial}, {study.request['objective']} {values[found.name]:.4f}"


def _begin(search: Search) -> Study:
    search.space()  # refuses an unknown learner or backbone
    if search.trials < 1:
        raise InputError(f"--trials is {search.trials}; it must be at least 1.")
    _optuna()
    dataset = Dataset.open(search.dataset)
    if search.objective in ("reward", "value"):
        design.resolve_settings(dataset, search.algorithm, {**search.base(), "select": search.objective})
    request = {
        "algorithm": search.algorithm,
        "backbone": search.network,
        "preset": search.preset,
        "objective": OBJECTIVES[search.objective],
        "seed": search.seed,
        "seeds": search.seeds,
        "settings": list(search.settings),
    }
    if not is_study_folder(search.out):
        study = Study(search.out, "tune", (describe_dataset(dataset),), (), (), evaluate_test=False, request=request)
        return design.create_or_extend(_with(search, study, [{}]))
    study = locate_datasets(read_study(search.out), [search.dataset])
    if study.kind != "tune" or study.request != request or study.datasets[0].fingerprint != dataset.fingerprint:
        raise InputError(
            f"{search.out} is a study that asked something else than this; choose another --out, or ask the same with "
            "more --trials."
        )
    return study


def _with(search: Search, study: Study, settings: Sequence[Settings]) -> Study:
    """The study with more trials."""
    dataset = Dataset.open(search.dataset)
    log, groups, runs = study.datasets[0].log, list(study.groups), list(study.runs)
    for own in settings:
        number = len(groups)
        options = design.resolve_settings(dataset, search.algorithm, {**search.base(), **own})
        name = f"trial-{number:03d}"
        varied = {key: options[key] for key in search.space()}
        backbone, preset = search.network, search.preset
        groups.append(
            RunGroup(name, log, "learner", search.algorithm, backbone, preset, options, varied=varied, trial=number)
        )
        runs += [Run(f"{name}.{seed}", name, study.datasets[0].name, seed) for seed in design.parse_seeds(search.seeds)]
    return replace(study, groups=tuple(groups), runs=tuple(runs))


def _asked(search: Search, study: Study, more: int) -> Study:
    """Further trials, proposed from all that are there."""
    optuna = _optuna()
    space = {key: _distribution(optuna, kind) for key, kind in search.space().items()}
    values = _values(study)
    proposals: list[Settings] = []
    for number in range(len(study.groups), len(study.groups) + more):
        sampler = optuna.samplers.TPESampler(seed=1_000_003 * search.seed + number)
        memory = optuna.create_study(direction="maximize", sampler=sampler)
        for group in study.groups:
            memory.add_trial(_trial(optuna, space, group, values.get(group.name)))
        proposals.append(memory.ask(space).params)
    return _with(search, study, proposals)


def _trial(optuna: Any, space: dict[str, Any], group: RunGroup, value: float | None) -> Any:
    state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
    return optuna.trial.create_trial(params=group.varied, distributions=space, value=value, state=state)


def _values(study: Study) -> dict[str, float | None]:
    """Of each trial the mean over its seeds; None where one failed or is still to do."""
    figure = study.request["objective"]
    found: dict[str, list[float | None]] = {}
    for run in study.runs:
        value = None
        if study.is_done(run):
            facts = json.loads(study.path("results", f"{run.name}.json").read_text())
            value = facts["validation"]["all"].get(figure)
        found.setdefault(run.group, []).append(value)
    return {
        name: None if any(value is None for value in values) else sum(v for v in values if v is not None) / len(values)
        for name, values in found.items()
    }


def _distribution(optuna: Any, kind: Range | tuple[Any, ...]) -> Any:
    if isinstance(kind, tuple):
        return optuna.distributions.CategoricalDistribution(kind)
    if kind.whole:
        return optuna.distributions.IntDistribution(int(kind.low), int(kind.high), log=kind.log)
    return optuna.distributions.FloatDistribution(kind.low, kind.high, log=kind.log)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("Tuning needs optuna, which is not installed; pip install 'offrec[tune]'.") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def _alone(study: Study) -> Iterator[None]:
    """Trials are proposed by one process at a time; who works on them is another matter."""
    with (study.folder / "tune.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"Another process is tuning {study.folder}; wait for it, or choose another --out."
            ) from error
        yield
