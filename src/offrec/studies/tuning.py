"""Tuning: a study whose trials optuna proposes from validation metrics.

The options of a trial depend only on the trials before it and on the seed of the search. A resumed search therefore has
the same trials as an uninterrupted one.
"""

import fcntl
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
from offrec.runs.option_errors import merge_flags
from offrec.runs.option_text import parse_settings
from offrec.runs.presets import PRESETS
from offrec.studies.arguments import RUN_OPTIONS, parse_seeds
from offrec.studies.design import create_or_extend, resolve_settings
from offrec.studies.folder import is_study_folder, locate_datasets, read_study, write_study
from offrec.studies.labels import add_labels
from offrec.studies.run import run_study
from offrec.studies.stored_results import read_result
from offrec.studies.study import Run, RunGroup, Study, describe_dataset
from offrec.studies.value import VALUE_AT_5
from offrec.studies.worker import WorkerOptions

OBJECTIVES = {"ndcg": "NDCG@10", "reward": "reward@10", "value": VALUE_AT_5}

# Options that are searched for every learner. The records of the learner and of the backbone add their own.
SEARCH_ALL: SearchSpace = {
    "training.learning_rate": Range(3e-4, 1e-2),
    "network.dropout": Range(0.0, 0.6, log=False),
}


@dataclass(frozen=True)
class Search:
    """Configuration of a search.

    Attributes:
        dataset: Dataset folder.
        out: Study folder.
        algorithm: The learner.
        backbone: The backbone; None: the preset's backbone.
        preset: Preset of all trials.
        settings: KEY=VALUE options that are fixed and not searched.
        trials: Number of trials.
        seeds: Seeds of each trial, as a number or a list.
        objective: "ndcg", "reward" or "value".
        seed: Seed of the search.
    """

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

    @property
    def network(self) -> str:
        return self.backbone or PRESETS[self.preset].backbone

    def fixed_settings(self) -> Settings:
        """Return the settings that all trials share."""
        flags = {
            "--algorithm": ("algorithm.name", self.algorithm),
            "--backbone": ("network.backbone", self.network),
            "--preset": ("preset", self.preset),
        }
        return merge_flags(flags, parse_settings(self.settings))

    def space(self) -> SearchSpace:
        """Return the searched options: those of all learners, of the backbone and of the learner, except fixed ones."""
        space = {**SEARCH_ALL, **BACKBONES[self.network].search, **LEARNERS[self.algorithm].search}
        left_out = {**self.fixed_settings(), **LEARNERS[self.algorithm].ignored}
        return {key: values for key, values in space.items() if key not in left_out}


def tune(search: Search, options: WorkerOptions, console: Console) -> Study:
    """Run all trials that are not done yet. Trial 0 is the preset.

    Args:
        search: The configuration of the search.
        options: How the trials are executed.
        console: Shows progress.

    Returns:
        The study with all trials.

    Raises:
        InputError: If the search is invalid, optuna is missing, or the folder contains another study.
    """
    study = _create_or_continue(search)
    with _exclusive(study):
        while len(study.groups) < search.trials:
            run_study(study, options, Console(quiet=True))
            console.line(_progress(search, study))
            study = _propose_trials(search, study, min(options.jobs, search.trials - len(study.groups)))
            write_study(study)
        run_study(study, options, console)
    return study


def best_trial(study: Study) -> RunGroup | None:
    """Return the finished trial with the best mean validation metric, or None if no trial is finished."""
    values = _objective_values(study)
    finished = [group for group in study.groups if values.get(group.name) is not None]
    return max(finished, key=lambda group: values[group.name] or -math.inf, default=None)


def train_command(search: Search, trial: RunGroup) -> str:
    """Return the command that trains a model with the options of a trial."""
    own_flags = ("algorithm.name", "network.backbone", "preset", *RUN_OPTIONS)
    fixed = {key: value for key, value in parse_settings(search.settings).items() if key not in own_flags}
    words = ["offrec", "train", str(search.dataset), "--algorithm", search.algorithm]
    words += ["--backbone", trial.options["network.backbone"], "--preset", trial.options["preset"], "--out", "RUN"]
    for key, value in {**fixed, **trial.varied}.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def _progress(search: Search, study: Study) -> str:
    best, values = best_trial(study), _objective_values(study)
    message = f"Trial {len(study.groups)} of {search.trials}"
    if best is None:
        return f"{message}; no trial has succeeded so far"
    return f"{message}; best so far: trial {best.trial}, {study.request['objective']} {values[best.name]:.4f}"


def _create_or_continue(search: Search) -> Study:
    search.space()  # raises an error for an unknown learner or backbone
    if search.trials < 1:
        raise InputError(f"--trials must be at least 1; got {search.trials}.")
    _import_optuna()
    dataset = Dataset.open(search.dataset)
    if search.objective in ("reward", "value"):
        resolve_settings(dataset, search.algorithm, {**search.fixed_settings(), "select": search.objective})
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
        return create_or_extend(_add_trials(search, study, [{}]))
    study = locate_datasets(read_study(search.out), [search.dataset])
    if study.kind != "tune" or study.request != request or study.datasets[0].fingerprint != dataset.fingerprint:
        raise InputError(
            f"{search.out} contains another study; choose another --out, or repeat its command with more --trials."
        )
    return study


def _add_trials(search: Search, study: Study, proposals: Sequence[Settings]) -> Study:
    dataset = Dataset.open(search.dataset)
    groups, runs = list(study.groups), list(study.runs)
    for proposal in proposals:
        number = len(groups)
        options = resolve_settings(dataset, search.algorithm, {**search.fixed_settings(), **proposal})
        group = RunGroup(
            name=f"trial-{number:03d}",
            log=study.datasets[0].log,
            kind="learner",
            policy=search.algorithm,
            backbone=search.network,
            preset=search.preset,
            options=options,
            varied={key: options[key] for key in search.space()},
            trial=number,
        )
        groups.append(add_labels(group))
        for seed in parse_seeds(search.seeds):
            runs.append(Run(f"{group.name}.{seed}", group.name, study.datasets[0].name, seed))
    return replace(study, groups=tuple(groups), runs=tuple(runs))


def _propose_trials(search: Search, study: Study, count: int) -> Study:
    """Add trials that optuna proposes from the trials so far."""
    optuna = _import_optuna()
    space = {key: _distribution(optuna, values) for key, values in search.space().items()}
    objective = _objective_values(study)
    proposals: list[Settings] = []
    for number in range(len(study.groups), len(study.groups) + count):
        sampler = optuna.samplers.TPESampler(seed=1_000_003 * search.seed + number)
        history = optuna.create_study(direction="maximize", sampler=sampler)
        for group in study.groups:
            history.add_trial(_optuna_trial(optuna, space, group, objective.get(group.name)))
        proposals.append(history.ask(space).params)
    return _add_trials(search, study, proposals)


def _optuna_trial(optuna: Any, space: dict[str, Any], group: RunGroup, value: float | None) -> Any:
    state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
    return optuna.trial.create_trial(params=group.varied, distributions=space, value=value, state=state)


def _objective_values(study: Study) -> dict[str, float | None]:
    """Return the mean over seeds of each trial, or None if a seed failed or is waiting."""
    metric = study.request["objective"]
    by_trial: dict[str, list[float | None]] = {}
    for run in study.runs:
        value = None
        if study.is_done(run):
            value = read_result(study, run).get("validation", {}).get("all", {}).get(metric)
        by_trial.setdefault(run.group, []).append(value)
    return {
        name: None if any(value is None for value in values) else sum(v for v in values if v is not None) / len(values)
        for name, values in by_trial.items()
    }


def _distribution(optuna: Any, values: Range | tuple[Any, ...]) -> Any:
    if isinstance(values, tuple):
        return optuna.distributions.CategoricalDistribution(values)
    if values.whole:
        return optuna.distributions.IntDistribution(int(values.low), int(values.high), log=values.log)
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("optuna is not installed; offrec tune needs it; run pip install 'offrec[tune]'.") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def _exclusive(study: Study) -> Iterator[None]:
    """Ensure that only one process proposes trials; any number of processes can execute them."""
    with (study.folder / "tune.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"Another process is tuning {study.folder}; wait for it, or choose another --out."
            ) from error
        yield
