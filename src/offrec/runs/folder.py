"""The folder of a run: what was asked (run.json, run.toml), the item ids, and beside them what training leaves."""

import json
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from offrec.data.dataset import Dataset
from offrec.data.files import publish_folder
from offrec.errors import InputError
from offrec.runs import options as config
from offrec.runs.options import RunOptions

RUN_VERSION = 2
KEYS = ("run_version", "dataset", "fingerprint", "data_hash", "items", "item_ids", "options")


# Where and how, not what: a run may be resumed with others.
FREE = ("device", "catalogue", "diagnostics", "training.capture", "training.memory_check")


def check(dataset: Dataset, out: Path, options: RunOptions, *, resume: bool, force: bool) -> None:
    """Refuse what cannot be created or resumed there."""
    if resume and (out / "run.json").exists():
        check_resume(dataset, out, options)
    else:
        _check_free(dataset, out, force)


def create(
    dataset: Dataset,
    out: Path,
    options: RunOptions,
    *,
    force: bool,
    logging_policy: dict[str, float] | None = None,
) -> None:
    """Create the run folder. `logging_policy`: calibration figures of π̂_b, if the run has one."""
    _check_free(dataset, out, force)
    flat = options.flat()
    home = str(dataset.path.resolve())
    facts = {
        "run_version": RUN_VERSION,
        "offrec": _version(),
        "dataset": home,
        "fingerprint": dataset.fingerprint,
        "data_hash": dataset.meta["data_hash"],
        "items": dataset.n_items,
        "item_ids": dataset.meta["item_ids"],
        "options": flat,
        "shop": dataset.meta.get("shop"),
        "logging_policy": logging_policy or None,
    }
    with publish_folder(out, replace=force, advice="free disk space or choose another --out") as temporary:
        (temporary / "run.json").write_text(json.dumps(facts, indent=2) + "\n")
        (temporary / "run.toml").write_text(config.to_toml({"dataset": home, "out": str(out.resolve()), **flat}))
        for name in ("item_ids.npy", "item_ids_offsets.npy"):
            if (dataset.path / name).exists():
                shutil.copyfile(dataset.path / name, temporary / name)


def _check_free(dataset: Dataset, out: Path, force: bool) -> None:
    """--force replaces a run, or an empty folder; never anything else."""
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise InputError(f"{out} exists already; choose another --out, or --resume to go on, or --force to start anew.")
    if out.is_symlink() or not out.is_dir():
        raise InputError(f"{out} is no folder, so --force does not replace it; choose another --out.")
    mine = (out / "run.json").exists() or not any(out.iterdir())
    if not mine or dataset.path.resolve().is_relative_to(out.resolve()):
        raise InputError(
            f"{out} holds something else than a run, so --force does not replace it; choose another --out."
        )


def check_resume(dataset: Dataset, out: Path, options: RunOptions) -> None:
    facts = read(out)
    if facts["data_hash"] != dataset.meta["data_hash"]:
        raise InputError(
            f"{out} was trained on another dataset (fingerprint {facts['fingerprint']}, this one is "
            f"{dataset.fingerprint}); resume it with its own, {facts['dataset']}."
        )
    before, now = facts["options"], options.flat()
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key) and key not in FREE]
    if changed:
        raise InputError(
            f"{out} was started with {changed[0]} = {before.get(changed[0])}, not {now.get(changed[0])}; "
            "resume it with the options it was started with, or train a new run."
        )


def read(run: Path) -> dict[str, Any]:
    """run.json."""
    try:
        facts = json.loads((run / "run.json").read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{run} is not a run: it has no run.json; make one with `offrec train`.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{run}/run.json is damaged ({error}); train the run again.") from error
    if not isinstance(facts, dict) or any(key not in facts for key in KEYS):
        raise InputError(f"{run}/run.json is damaged: it does not say {', '.join(KEYS)}; train the run again.")
    if facts["run_version"] != RUN_VERSION:
        raise InputError(
            f"{run} has run format {facts['run_version']}, this offrec reads {RUN_VERSION}; train it again."
        )
    return facts


def _version() -> str:
    try:
        return version("offrec")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
