"""`offrec verify`: verify everything that a folder contains."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from offrec.commands.printing import print_json
from offrec.errors import InputError, RunError

CACHES = ("logging", "values")


@dataclass(frozen=True)
class Verify:
    """Verify folders that offrec wrote: checksums, types, shapes and ranges of every file.

    A folder can be a dataset, a run, a study, rounds, a decision log or the lists of a server; a file can be an
    exported model. Exit code 1 means that something is wrong.

    Examples: offrec verify data runs/sl
              offrec verify study
              offrec verify model.onnx
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """Folders of datasets, runs, studies, rounds, decision logs and lists, and exported models."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Print what was verified and what is wrong."""
        if not self.paths:
            raise InputError("No path was given; name at least one folder or exported model.")
        found = {str(path): verify(path) for path in self.paths}
        if self.json:
            print_json({path: {"kind": result.kind, "problems": result.problems} for path, result in found.items()})
        else:
            from offrec.errors import plain_text

            for path, result in found.items():
                problems = [plain_text(f"  {problem}") for problem in result.problems]
                print("\n".join([plain_text(f"{path}: {result.kind}, {result.summary}"), *problems]))
        wrong = sum(len(result.problems) for result in found.values())
        if wrong:
            raise RunError(f"Problems found: {wrong}; restore the files from a copy, or create them again.")


@dataclass(frozen=True)
class Verification:
    """What a path contains, and what is wrong with it."""

    kind: str
    problems: list[str]

    @property
    def summary(self) -> str:
        return "intact" if not self.problems else f"{len(self.problems)} wrong"


def verify(path: Path) -> Verification:
    """Verify a folder of a dataset, run, study, rounds, decision log or lists, or an exported model.

    Raises:
        InputError: If the path is none of them.
    """
    kinds: dict[str, tuple[bool, Callable[[Path], Iterator[str]]]] = {
        "dataset": ((path / "dataset.json").exists(), _dataset),
        "run": ((path / "run.json").exists(), _run),
        "study": ((path / "study.json").exists(), _study),
        "rounds": ((path / "rounds.json").exists(), _rounds),
        "decision log": (path.is_dir() and any(path.glob("decisions-*.jsonl*")), _decision_log),
        "lists": (path.is_dir() and any(path.glob("*.list")), _lists),
        "exported model": (path.suffix == ".onnx" and path.with_suffix(".json").exists(), _export),
    }
    for kind, (matches, check) in kinds.items():
        if matches:
            return Verification(kind, list(dict.fromkeys(check(path))))
    raise InputError(
        f"{path} was not written by offrec; expected the folder of a dataset, run, study, rounds, decision log or "
        "lists, or a .onnx file."
    )


def _problem(check: Callable[..., Any], *arguments: Any) -> Iterator[str]:
    try:
        check(*arguments)
    except (InputError, FileNotFoundError) as error:
        yield str(error)


def _dataset(path: Path) -> Iterator[str]:
    from offrec.data.arrays import open_arrays
    from offrec.data.dataset import ADVICE, Dataset
    from offrec.data.dataset_checks import META
    from offrec.data.json_files import read_json

    try:
        meta = read_json(path / "dataset.json", META, advice=ADVICE)
    except (InputError, FileNotFoundError) as error:
        yield str(error)
        return
    for name, description in meta["arrays"].items():  # all damaged arrays, not only the first
        yield from _problem(lambda one: open_arrays(path, one, advice=ADVICE), {name: description})
    yield from _problem(lambda: Dataset.open(path).vocabulary)
    for folder in (folder for kind in CACHES if (path / kind).is_dir() for folder in sorted((path / kind).iterdir())):
        if (folder / "about.json").exists():
            yield from _cache(folder)


def _cache(folder: Path) -> Iterator[str]:
    from offrec.data.arrays import open_arrays
    from offrec.data.json_files import read_json
    from offrec.logging_policy.cache import VALUES_OR_FIT
    from offrec.training import checkpoint, sharded_checkpoint

    advice = f"remove {folder}; it will be fitted again"

    def check() -> None:
        about = read_json(folder / "about.json", VALUES_OR_FIT, advice=advice)
        open_arrays(folder, about.get("arrays", {}), advice=advice)
        if sharded_checkpoint.exists(folder / "network.safetensors"):
            checkpoint.load(folder / "network.safetensors")

    yield from _problem(check)


def _run(path: Path) -> Iterator[str]:
    from offrec.data.json_files import read_json
    from offrec.runs.loading import load
    from offrec.training.progress import verify_last_checkpoint
    from offrec.training.sharded_checkpoint import exists
    from offrec.training.trackers import IDS, IDS_SCHEMA

    if exists(path / "best.safetensors"):
        yield from _problem(load, path, "cpu")
    else:
        from offrec.runs.folder import read_item_ids, read_run

        yield from _problem(lambda: read_item_ids(path, read_run(path)))
    if exists(path / "last.safetensors"):
        yield from _problem(verify_last_checkpoint, path)
    if (path / IDS).exists():
        yield from _problem(lambda: read_json(path / IDS, IDS_SCHEMA, advice=f"remove {path / IDS}"))


def _study(path: Path) -> Iterator[str]:
    from offrec.studies.folder import read_study
    from offrec.studies.stored_results import read_array, read_failure, read_result

    try:
        study = read_study(path)
    except InputError as error:
        yield str(error)
        return
    for run in study.runs:
        if study.is_done(run):
            try:
                facts = read_result(study, run)
            except InputError as error:
                yield str(error)
                continue
            for kind in facts["arrays"]:
                yield from _problem(read_array, study, run, facts, kind)
        elif study.has_failed(run):
            yield from _problem(read_failure, study, run)
        if (study.path("runs", run.name) / "run.json").exists():
            yield from _run(study.path("runs", run.name))


def _decision_log(path: Path) -> Iterator[str]:
    from offrec.data import decision_log_files

    for source in decision_log_files.find([path]):
        counts = decision_log_files.RecordCounts()
        problems = list(_problem(lambda one, counted: list(decision_log_files.read(one, counted)), source, counts))
        yield from problems
        if not problems and source.path.suffix != decision_log_files.OPEN_SUFFIX:
            yield from counts.notes(source.name)


def _rounds(path: Path) -> Iterator[str]:
    from offrec.rounds.results import read_results

    yield from _problem(read_results, path)
    for part, check in (("data", _dataset), ("run", _run)):
        for folder in sorted(path.glob(f"*/round-*/{part}")):
            yield from check(folder)


def _lists(path: Path) -> Iterator[str]:
    from offrec.serving.errors import RequestError
    from offrec.serving.item_lists import ItemLists

    lists = ItemLists(path)
    for file in sorted(path.glob("*.list")):
        try:
            lists.ids(file.stem)
        except RequestError as error:
            yield f"{file}: {error.sentence}"


def _export(path: Path) -> Iterator[str]:
    from offrec.serving.export import verify_export

    yield from verify_export(path)
