"""Read and write study.json, and extend the study of a folder."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from offrec.data.dataset import Dataset
from offrec.data.dataset_checks import COUNTS, PROTOCOL
from offrec.data.files import publish_folder
from offrec.data.json_files import format_json, load_json, verify_json, write_json
from offrec.data.schema import (
    FILE_NAME,
    Anything,
    Flag,
    ListOf,
    OneOf,
    Scalar,
    Table,
    Text,
    Whole,
    schema_of,
)
from offrec.errors import InputError
from offrec.studies.study import Run, RunGroup, Study, StudyDataset, StudyKind

STUDY_VERSION = 3
ADVICE = "run the study again in another folder"
NAME = Text(FILE_NAME)
DATASET = schema_of(StudyDataset, name=NAME, log=NAME, protocol=PROTOCOL, counts=COUNTS)
SCHEMA = Table(
    {
        "study_version": Whole(),
        "kind": OneOf(get_args(StudyKind)),
        "datasets": ListOf(Table({**DATASET.required, "relative_path": Text()}, DATASET.optional)),
        "groups": ListOf(schema_of(RunGroup, name=NAME, options=Table(others=Scalar()), varied=Table(others=Scalar()))),
        "runs": ListOf(schema_of(Run, name=NAME, seed=Whole())),
    },
    {
        "evaluate_test": Flag(),
        "estimate_value": Flag(),
        "visitors": Whole(1, 10**9),
        "informed_visitors": Whole(0, 10**9),
        "request": Table({}, {"left_out": ListOf(Text())}, Anything()),
    },
)


def write_study(study: Study) -> None:
    """Create the study's folders and write study.json.

    The path of each dataset is also stored relative to the study, so that both can be moved together.
    """
    content = asdict(study)
    del content["folder"]
    for dataset in content["datasets"]:
        dataset["relative_path"] = os.path.relpath(dataset["path"], study.folder.resolve())
    content = {"study_version": STUDY_VERSION, **content}
    if is_study_folder(study.folder):
        write_json(study.folder / "study.json", content, indent=1)
        return
    with publish_folder(study.folder, advice="choose another --out") as temporary:
        for kind in ("runs", "results", "failed", "locks"):
            (temporary / kind).mkdir()
        (temporary / "study.json").write_text(format_json(content, indent=1), encoding="utf-8")


def is_study_folder(folder: Path) -> bool:
    """Return whether the folder contains a study.json."""
    return (folder / "study.json").is_file()


def read_study(folder: str | Path) -> Study:
    """Read the study of a folder.

    Raises:
        InputError: If the folder contains no study.json, or one that this version cannot read.
    """
    folder = Path(folder)
    try:
        content = load_json(folder / "study.json", advice=ADVICE)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{folder} is not a study folder: it contains no study.json; create one with `offrec compare` or "
            "`offrec sweep`."
        ) from error
    version = content.get("study_version", STUDY_VERSION) if isinstance(content, dict) else STUDY_VERSION
    if version != STUDY_VERSION:
        written_by = " (offrec 0.1)" if version == 1 else ""
        raise InputError(
            f"{folder} has study format {version}{written_by}; this version of offrec reads format {STUDY_VERSION}; "
            "run the study again in another folder."
        )
    content = verify_json(folder / "study.json", content, SCHEMA, advice=ADVICE)
    del content["study_version"]
    datasets = tuple(StudyDataset(**_locate(folder, dataset)) for dataset in content.pop("datasets"))
    groups = tuple(RunGroup(**group) for group in content.pop("groups"))
    runs = tuple(Run(**run) for run in content.pop("runs"))
    study = Study(folder, datasets=datasets, groups=groups, runs=runs, **content)
    _check_references(study)
    _check_trials(study)
    return study


def _check_references(study: Study) -> None:
    """Check that names are unique, and that every run has a group and a dataset."""
    for entries in (study.datasets, study.groups, study.runs):
        names = [entry.name for entry in entries]
        if len(set(names)) < len(names):
            raise InputError(f"{study.folder}/study.json is damaged: a name occurs twice; {ADVICE}.")
    groups, datasets = {group.name for group in study.groups}, {dataset.name for dataset in study.datasets}
    logs = {dataset.log for dataset in study.datasets}
    for run in study.runs:
        if run.group not in groups or run.dataset not in datasets:
            raise InputError(f"{study.folder}/study.json is damaged: {run.name} has no group or dataset; {ADVICE}.")
    for group in study.groups:
        if group.log not in logs:
            raise InputError(f"{study.folder}/study.json is damaged: {group.name} has no dataset; {ADVICE}.")


def _check_trials(study: Study) -> None:
    """Check that a search has an objective, and that its policies and no others are trials."""
    is_search = study.kind == "tune"
    if is_search and not isinstance(study.request.get("objective"), str):
        raise InputError(f"{study.folder}/study.json is damaged: request.objective must be text; {ADVICE}.")
    for group in study.groups:
        if is_search is (group.trial is None):
            number = "has no number of a trial" if is_search else "is a trial, but the study is not a search"
            raise InputError(f"{study.folder}/study.json is damaged: {group.name} {number}; {ADVICE}.")


def _locate(folder: Path, dataset: dict[str, Any]) -> dict[str, Any]:
    """Use the path relative to the study if it contains the dataset, else the absolute path."""
    relative = folder / dataset.pop("relative_path")
    return {**dataset, "path": str(relative.resolve())} if (relative / "dataset.json").is_file() else dataset


def locate_datasets(study: Study, folders: Iterable[Path]) -> Study:
    """Return the study with its datasets in these folders; they are recognised by their fingerprints."""
    opened = {dataset.fingerprint: dataset for dataset in map(Dataset.open, folders)}
    datasets = [
        replace(known, path=str(opened[known.fingerprint].path)) if known.fingerprint in opened else known
        for known in study.datasets
    ]
    return replace(study, datasets=tuple(datasets))


def open_dataset(study: Study, name: str) -> Dataset:
    """Open a dataset of a study.

    Raises:
        InputError: If the dataset was moved, or changed since the study was planned.
    """
    known = study.dataset(name)
    if not Path(known.path, "dataset.json").is_file():
        raise InputError(f"The dataset {name} of {study.folder} is not in {known.path}; give its path: --data FOLDER.")
    dataset = Dataset.open(known.path)
    if dataset.fingerprint != known.fingerprint:
        raise InputError(
            f"{known.path} has the fingerprint {dataset.fingerprint}; the study {study.folder} was planned for "
            f"{known.fingerprint}; start a new study for the changed dataset."
        )
    return dataset


def extend_study(before: Study, now: Study) -> Study:
    """Combine the study of a folder with a new request: more seeds, policies or logs may be added.

    Raises:
        InputError: If the two differ in a setting that must not change.
    """
    if before.kind != now.kind:
        raise InputError(f"{before.folder} contains a study created by `offrec {before.kind}`; choose another --out.")
    fixed = (("visitors", "visitors"), ("informed_visitors", "informed-visitors"), ("estimate_value", "value"))
    for name, option in fixed:
        if getattr(before, name) != getattr(now, name):
            raise InputError(
                f"{before.folder} was created {_as_typed(option, getattr(before, name))}; repeat that, or choose "
                "another --out."
            )
    fingerprints = {dataset.name: dataset.fingerprint for dataset in before.datasets}
    for dataset in now.datasets:
        if fingerprints.get(dataset.name, dataset.fingerprint) != dataset.fingerprint:
            raise InputError(
                f"{before.folder} was created for another dataset {dataset.name} (fingerprint "
                f"{fingerprints[dataset.name]}, not {dataset.fingerprint}); choose another --out."
            )
    known = {group.name: group for group in before.groups}
    for group in now.groups:
        if group.name in known and known[group.name].options != group.options:
            key, old, new = _first_difference(known[group.name].options, group.options)
            raise InputError(
                f"{before.folder} contains runs of {group.name} with {key} = {old}, not {new}; choose another --out."
            )
        if group.name in known and known[group.name].skip_recent != group.skip_recent:
            raise InputError(
                f"{before.folder} contains runs of {group.name} with --skip-recent {known[group.name].skip_recent}, "
                f"not {group.skip_recent}; choose another --out."
            )
    return replace(
        now,
        datasets=_union(before.datasets, now.datasets),
        groups=_union(before.groups, now.groups),
        runs=_union(before.runs, now.runs),
    )


def _as_typed(option: str, value: object) -> str:
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} --{option}"
    return f"with --{option} {value}"


def _first_difference(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, Any, Any]:
    key = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
    return key, old.get(key), new.get(key)


def _union(before: Sequence[Any], now: Sequence[Any]) -> tuple[Any, ...]:
    """Merge by name: first the entries of the new request, then those that only the old study has."""
    names = {one.name for one in now}
    return (*now, *(one for one in before if one.name not in names))
