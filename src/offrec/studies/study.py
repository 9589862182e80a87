"""What a study asks, as it stands in study.json."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from offrec.data.dataset import Dataset
from offrec.errors import InputError

STUDY_VERSION = 1
Kind = Literal["compare", "sweep", "tune"]
PolicyKind = Literal["learner", "baseline", "shop"]


@dataclass(frozen=True)
class StudyDataset:
    """A prepared dataset of a study. Datasets that are one log with its split drawn again share `log`."""

    name: str
    log: str
    path: str
    fingerprint: str
    data_hash: str
    protocol: dict[str, Any]
    counts: dict[str, int]
    behaviours: list[str]
    shop: str | None  # the world it comes from, if it comes from the simulated shop


@dataclass(frozen=True)
class Group:
    """One policy on one log: runs that differ by their seed alone."""

    name: str
    log: str
    kind: PolicyKind
    policy: str  # a learner, a baseline or one of the shop's own, by name
    backbone: str | None = None
    preset: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # all of them, under dotted keys, but seed and device
    varied: dict[str, Any] = field(default_factory=dict)  # in a sweep: the option that is varied, and its value
    level: str | None = None  # in a sweep: what the varied ones are set beside
    trial: int | None = None  # in tuning

    @property
    def label(self) -> str:
        return f"{self.policy}/{self.backbone}" if self.backbone else self.policy


@dataclass(frozen=True)
class Run:
    name: str
    group: str
    dataset: str
    seed: int


@dataclass(frozen=True)
class Study:
    folder: Path
    kind: Kind
    logs: tuple[StudyDataset, ...]
    groups: tuple[Group, ...]
    runs: tuple[Run, ...]
    test: bool = True  # are test sessions looked at? Tuning does not
    value: bool = False  # is what policies would earn estimated from test sessions? Of a sweep, by value@5
    visitors: int = 4000  # who come to the shop for each policy, where a log comes from one
    question: dict[str, Any] = field(default_factory=dict)  # what else the command asked: for the reader

    def group(self, run: Run) -> Group:
        return next(group for group in self.groups if group.name == run.group)

    def log(self, name: str) -> StudyDataset:
        return next(log for log in self.logs if log.name == name)

    def path(self, kind: Literal["runs", "results", "failed", "locks"], name: str = "") -> Path:
        return self.folder / kind / name

    def done(self, run: Run) -> bool:
        return self.path("results", f"{run.name}.json").exists()

    def failed(self, run: Run) -> bool:
        return self.path("failed", f"{run.name}.json").exists()


def describe_dataset(dataset: Dataset, log: str | None = None) -> StudyDataset:
    shop = dataset.meta.get("shop")
    return StudyDataset(
        name=dataset.path.resolve().name,
        log=log or dataset.path.resolve().name,
        path=str(dataset.path.resolve()),
        fingerprint=dataset.fingerprint,
        data_hash=dataset.meta["data_hash"],
        protocol=dataset.protocol.as_json(),
        counts=dict(dataset.meta["counts"]),
        behaviours=dataset.behaviours,
        shop=shop and str(shop["world"]),
    )


def write(study: Study) -> None:
    """Aside, then renamed. Datasets are named by their place relative to the study too: both may move together."""
    parts = asdict(study)
    del parts["folder"]
    for log in parts["logs"]:
        log["relative"] = os.path.relpath(log["path"], study.folder.resolve())
    try:
        for kind in ("runs", "results", "failed", "locks"):
            (study.folder / kind).mkdir(parents=True, exist_ok=True)
        write_json(study.folder / "study.json", {"study_version": STUDY_VERSION, **parts})
    except OSError as error:
        raise InputError(f"{study.folder} cannot be written ({error.strerror}); choose another --out.") from error


def write_json(path: Path, tree: Any) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    aside.write_text(json.dumps(tree, indent=1, ensure_ascii=False) + "\n")
    aside.replace(path)


def is_study(folder: Path) -> bool:
    return (folder / "study.json").is_file()


def read(folder: str | Path) -> Study:
    folder = Path(folder)
    try:
        parts = json.loads((folder / "study.json").read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{folder} is not a study: it has no study.json; make one with `offrec compare` or `offrec sweep`."
        ) from error
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"it cannot be read as JSON, {error}") from error
    if _whole(folder, "it", parts, ("study_version",))["study_version"] != STUDY_VERSION:
        raise InputError(
            f"{folder} has study format {parts['study_version']}, this offrec reads {STUDY_VERSION}; read it with the "
            "offrec that made it, or ask the study again."
        )
    del parts["study_version"]
    try:
        for kind, lists in (("logs", StudyDataset), ("groups", Group), ("runs", Run)):
            needed = [one.name for one in fields(lists) if one.default is MISSING and one.default_factory is MISSING]
            for entry in _whole(folder, "it", parts, ("kind", kind))[kind]:
                _whole(folder, f"an entry of its {kind}", entry, needed)
        logs = tuple(StudyDataset(**_found(folder, log)) for log in parts.pop("logs"))
        groups = tuple(Group(**group) for group in parts.pop("groups"))
        runs = tuple(Run(**run) for run in parts.pop("runs"))
        return Study(folder, logs=logs, groups=groups, runs=runs, **parts)
    except (TypeError, KeyError) as error:
        raise _damaged(folder, f"it holds something that is not a study's, {error}") from error


def _whole(folder: Path, what: str, found: Any, needed: Iterable[str]) -> dict[str, Any]:
    """A table of study.json with all that it must have."""
    if not isinstance(found, dict):
        raise _damaged(folder, f"{what} is no table of names and values")
    missing = [name for name in needed if name not in found]
    if missing:
        raise _damaged(folder, f"{what} has no {' and no '.join(missing)}")
    return found


def _damaged(folder: Path, how: str) -> InputError:
    return InputError(f"{folder}/study.json is damaged or no study's: {how}; ask the study again in another folder.")


def _found(folder: Path, log: dict[str, Any]) -> dict[str, Any]:
    """The dataset lies where it lay, seen from the study, or else where it lay on the disk."""
    beside = folder / log.pop("relative")
    return {**log, "path": str(beside.resolve())} if (beside / "dataset.json").is_file() else log


def at(study: Study, datasets: Iterable[Path]) -> Study:
    """The same study with its datasets in these folders: they are known by their fingerprints."""
    here = {opened.fingerprint: opened for opened in map(Dataset.open, datasets)}
    logs = [
        replace(log, path=str(here[log.fingerprint].path)) if log.fingerprint in here else log for log in study.logs
    ]
    return replace(study, logs=tuple(logs))


def open_dataset(study: Study, name: str) -> Dataset:
    log = study.log(name)
    if not Path(log.path, "dataset.json").is_file():
        raise InputError(
            f"The dataset {name} of {study.folder} is not in {log.path} any more; say where it is: --data FOLDER."
        )
    dataset = Dataset.open(log.path)
    if dataset.fingerprint != log.fingerprint:
        raise InputError(
            f"{log.path} has the fingerprint {dataset.fingerprint}, the study {study.folder} asks for "
            f"{log.fingerprint}; figures of both do not belong in one table, so ask a new study."
        )
    return dataset


def widened(before: Study, now: Study) -> Study:
    """What was asked before and what is asked now, in one folder: more seeds, learners or logs may be added."""
    if before.kind != now.kind:
        raise InputError(f"{before.folder} is a study made with `offrec {before.kind}`; choose another --out.")
    for name in ("visitors", "value"):
        if getattr(before, name) != getattr(now, name):
            raise InputError(
                f"{before.folder} was asked {_option(name, getattr(before, name))}; ask it the same way, or choose "
                "another --out."
            )
    prints = {log.name: log.fingerprint for log in before.logs}
    for log in now.logs:
        if prints.get(log.name, log.fingerprint) != log.fingerprint:
            raise InputError(
                f"{before.folder} was asked about another {log.name} (fingerprint {prints[log.name]}, this one is "
                f"{log.fingerprint}); choose another --out."
            )
    known = {group.name: group for group in before.groups}
    for group in now.groups:
        if group.name in known and known[group.name].options != group.options:
            key, old, new = _difference(known[group.name].options, group.options)
            raise InputError(
                f"{before.folder} has runs of {group.name} with {key} = {old}, not {new}; choose another --out."
            )
    return replace(
        now,
        logs=_union(before.logs, now.logs),
        groups=_union(before.groups, now.groups),
        runs=_union(before.runs, now.runs),
    )


def _option(name: str, given: object) -> str:
    """As it is typed, or left out."""
    if isinstance(given, bool):
        return f"{'with' if given else 'without'} --{name}"
    return f"with --{name} {given}"


def _difference(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, Any, Any]:
    key = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
    return key, old.get(key), new.get(key)


def _union(before: Sequence[Any], now: Sequence[Any]) -> tuple[Any, ...]:
    """By name; in the order of what is asked now, then what was asked only before."""
    fresh = {one.name for one in now}
    return (*now, *(one for one in before if one.name not in fresh))
