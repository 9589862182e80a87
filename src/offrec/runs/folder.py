"""The folder of a run: run.json and run.toml with its options, the item ids, and the files of the training loop."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.data.arrays import DESCRIPTION, Arrays, describe_arrays, open_arrays
from offrec.data.dataset import Dataset
from offrec.data.dataset_checks import MAX_ITEMS
from offrec.data.files import check_not_current, publish_folder, remove_leftovers
from offrec.data.item_properties import PROPERTIES, PROPERTY_ARRAYS, ItemProperties, decode_properties
from offrec.data.json_files import checksum, format_json, load_json, verify_json
from offrec.data.schema import Anything, ListOf, Maybe, Number, OneOf, Scalar, Table, Text, Whole
from offrec.data.shop_metadata import SHOP
from offrec.data.vocabulary import ID_ARRAYS, Vocabulary, decode_vocabulary
from offrec.errors import InputError
from offrec.models.item_features import feature_scaling
from offrec.models.log_shape import LogShape
from offrec.plugins import Registry
from offrec.runs.option_text import to_toml
from offrec.runs.options import RunOptions
from offrec.runs.replacement import MARK, replacement_folder, training_folder
from offrec.runs.version import offrec_version

Bools = NDArray[np.bool_]
RUN_VERSION = 8
MAX_LIST = 100_000  # items per list
SEEN = "item_seen"  # uint8 [A]: 1 for items that occur in the training sessions
SCALING = "item_scaling"  # float64 [2, N + D]: mean and spread that standardise numbers and embeddings
ADVICE = "train the run again"
ITEM_COUNTS = ("matched", "new", "vanished")
START = Table(  # of a warm run; `replaced` has the schedule of the run that began the chain
    {
        "run": Text(),
        "fingerprint": Text(),
        "items": Table({name: Whole(0, MAX_ITEMS) for name in ITEM_COUNTS}),
        "replaced": Table(others=Scalar()),
    }
)
SCHEMA = Table(
    {
        "run_version": Whole(),
        "dataset": Text(),
        "fingerprint": Text(),
        "data_hash": Text(),
        "items": Whole(1, MAX_ITEMS),
        "item_id_type": OneOf(("int", "string")),
        "arrays": Table(
            {"item_ids": DESCRIPTION}, dict.fromkeys(("item_ids_offsets", SEEN, SCALING, *PROPERTY_ARRAYS), DESCRIPTION)
        ),
        "options": Table(others=Scalar()),
        "behaviours": ListOf(Text(), 1, 256),
        "log": Table({"behaviours": Whole(1, 256), "list_length": Whole(0, MAX_LIST)}),
    },
    {
        "plugins": Table(others=Text()),
        "shop": Maybe(SHOP),
        "logging_policy": Maybe(Table(others=Number(finite=False))),
        "logging_run": Maybe(Text()),
        "start": Maybe(START),
        "item_properties": Maybe(PROPERTIES),
    },
    Anything(),
)
# Options that determine where and how a run is computed. A run may be resumed with other values.
FREE = ("device", "catalogue", "diagnostics", "training.capture", "training.memory_check")
REGISTERED: dict[str, Registry[Any]] = {
    "algorithm.name": LEARNERS,
    "network.backbone": BACKBONES,
    "critic.backbone": BACKBONES,
}


def check_run_folder(
    dataset: Dataset, out: Path, options: RunOptions, *, resume: bool, force: bool, start: str | None = None
) -> Path:
    """Raise InputError if the run can neither be created nor resumed in the folder.

    Args:
        dataset: The dataset of the run.
        out: The folder.
        options: The options of the run.
        resume: Whether to resume a run in the folder.
        force: Whether to replace a run in the folder.
        start: The id of the run that it starts from, if any.

    Returns:
        The folder to train in: `out`, or a folder next to it whose run replaces the run in `out` at the end.
    """
    remove_leftovers(out)
    folder = training_folder(out, resume=resume, force=force)
    if resume and (folder / "run.json").exists():
        _check_same_run(dataset, folder, options, start)
    else:
        _check_replaceable(dataset, out, force)
    return folder


def create_run_folder(
    dataset: Dataset,
    out: Path,
    options: RunOptions,
    *,
    folder: Path,
    logging_policy: dict[str, float] | None = None,
    logging_run: str | None = None,
    start: dict[str, Any] | None = None,
    start_path: Path | None = None,
) -> None:
    """Create the run folder.

    Args:
        dataset: The dataset of the run.
        out: The folder of the run when it is trained.
        options: The options of the run.
        folder: The folder to train in, as `check_run_folder` returns it.
        logging_policy: The calibration of π̂_b, if the run uses π̂_b.
        logging_run: The id of the run that serves as π̂_b, if any.
        start: Facts about the run that it starts from, if any.
        start_path: The folder of that run, for run.toml.
    """
    if folder == out:
        shutil.rmtree(replacement_folder(out), ignore_errors=True)  # it would replace a run that no longer exists
    settings, path = options.settings(), str(dataset.path.resolve())
    arrays, properties = _item_arrays(dataset), dataset.item_properties
    packages = {key: registry.package(str(settings.get(key))) for key, registry in REGISTERED.items()}
    facts = {
        "run_version": RUN_VERSION,
        "offrec": offrec_version(),
        "dataset": path,
        "fingerprint": dataset.fingerprint,
        "data_hash": dataset.meta["data_hash"],
        "items": dataset.n_items,
        "item_id_type": dataset.meta["item_id_type"],
        "arrays": describe_arrays(arrays),
        "options": settings,
        "behaviours": dataset.behaviours,
        "log": LogShape.of(dataset).as_json(),
        "plugins": {key: package for key, package in packages.items() if package},
        "shop": dataset.meta.get("shop"),
        "logging_policy": logging_policy or None,
        "logging_run": logging_run,
        "start": start,
        "item_properties": None if properties is None else properties.as_json(),
    }
    with publish_folder(folder, replace=folder != out, advice="free disk space or choose another --out") as temporary:
        (temporary / "run.json").write_text(format_json(facts), encoding="utf-8")
        paths = {"dataset": path, "out": str(out.resolve())}
        paths |= {} if start_path is None else {"from": str(start_path.resolve())}
        toml = to_toml({**paths, **settings})
        (temporary / "run.toml").write_text(toml, encoding="utf-8", errors="replace")  # a path need not be UTF-8
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        if folder != out:
            (temporary / MARK).touch()


def read_run(run: Path) -> dict[str, Any]:
    """Read run.json.

    Args:
        run: The run's folder.

    Returns:
        Its content.

    Raises:
        InputError: The folder is not a run, is damaged, was written by another version, or needs a plug-in that is not
            installed.
    """
    try:
        content = load_json(run / "run.json", advice=ADVICE)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not run.exists():
            raise InputError(
                f"{run} does not exist; expected the folder of a run, as `offrec train` makes it."
            ) from error
        raise InputError(f"{run} is not a run: it has no run.json; create one with `offrec train`.") from error
    version = content.get("run_version", RUN_VERSION) if isinstance(content, dict) else RUN_VERSION
    if version != RUN_VERSION:
        raise InputError(
            f"{run} has run format {version}; this version of offrec reads format {RUN_VERSION}; train the run again."
        )
    facts = verify_json(run / "run.json", content, SCHEMA, advice=ADVICE)
    for key, registry in REGISTERED.items():
        name = facts["options"].get(key)
        if name is not None and name not in registry:
            package = facts.get("plugins", {}).get(key, "a plug-in")
            raise InputError(
                f"{run} needs the {registry.kind} {name!r} of {package}, which is not installed; install the package."
            )
    return facts


def run_id(facts: dict[str, Any]) -> str:
    """Return the checksum of run.json. Checkpoints contain it, so that the files of two runs cannot be mixed."""
    return checksum(facts)


def _item_arrays(dataset: Dataset) -> Arrays:
    """Return the arrays with ids and properties of the items, so that a run can be used without its dataset."""
    if dataset.item_properties is None:
        return dataset.item_id_arrays
    seen = (dataset.train_counts > 0).astype(np.uint8)
    scaling = feature_scaling(dataset.item_properties)
    return {**dataset.item_id_arrays, **dataset.item_properties.arrays(), SEEN: seen, SCALING: scaling}


def read_item_properties(run: Path, facts: dict[str, Any]) -> tuple[ItemProperties, Bools] | None:
    """Read the properties of a run's items, and which of them occur in its training sessions.

    Args:
        run: The run's folder.
        facts: The content of run.json.

    Returns:
        The properties and [A] whether each item occurs; None if the dataset had no item properties.

    Raises:
        InputError: If the arrays are damaged.
    """
    if facts.get("item_properties") is None:
        return None
    arrays = open_arrays(run, facts["arrays"], advice=ADVICE)
    try:
        properties = decode_properties(facts["item_properties"], arrays, facts["items"])
        if SEEN not in arrays or arrays[SEEN].shape != (facts["items"],):
            raise ValueError(f"{SEEN}.npy must have one number per item")
        properties = replace(properties, scaling=_read_scaling(properties, arrays))
    except ValueError as error:
        raise InputError(f"{run} is damaged: {error}; {ADVICE}.") from error
    return properties, np.asarray(arrays[SEEN]) > 0


def _read_scaling(properties: ItemProperties, arrays: Arrays) -> NDArray[np.float64]:
    shape = (2, properties.numbers.shape[1] + properties.vectors.shape[1])
    if SCALING not in arrays or arrays[SCALING].shape != shape or arrays[SCALING].dtype != np.float64:
        raise ValueError(f"{SCALING}.npy must contain float64 {list(shape)}")
    scaling: NDArray[np.float64] = np.asarray(arrays[SCALING])
    if not np.isfinite(scaling).all() or (scaling[1] < 0).any():
        raise ValueError(f"{SCALING}.npy must contain finite means and spreads of at least 0")
    return scaling


def read_item_ids(run: Path, facts: dict[str, Any]) -> Vocabulary:
    """Read the item ids of a run; `facts` is the content of run.json."""
    described = {name: one for name, one in facts["arrays"].items() if name in ID_ARRAYS}
    vocabulary = decode_vocabulary(open_arrays(run, described, advice=ADVICE), facts["item_id_type"], run)
    if len(vocabulary) != facts["items"]:
        raise InputError(f"{run} has {len(vocabulary):,} item ids for {facts['items']:,} items; {ADVICE}.")
    return vocabulary


def _check_replaceable(dataset: Dataset, out: Path, force: bool) -> None:
    """Check that `out` is new or that `force` may replace it: only a run or an empty folder."""
    check_not_current(out)
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise InputError(f"{out} exists; choose another --out, --resume to continue it, or --force to replace it.")
    if out.is_symlink() or not out.is_dir():
        raise InputError(f"{out} is not a folder, so --force does not replace it; choose another --out.")
    is_run = (out / "run.json").exists() or not any(out.iterdir())
    if not is_run or dataset.path.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{out} is not a run folder, so --force does not replace it; choose another --out.")


def _check_same_run(dataset: Dataset, out: Path, options: RunOptions, start: str | None) -> None:
    facts = read_run(out)
    before_start = (facts.get("start") or {}).get("run")
    if before_start != start:
        raise InputError(
            f"{out} was started {'from random weights' if before_start is None else 'from another run'}; resume it "
            f"{'without --from' if before_start is None else 'with the same --from'}."
        )
    if facts["data_hash"] != dataset.meta["data_hash"]:
        raise InputError(
            f"{out} was trained on a different dataset (fingerprint {facts['fingerprint']}, this one is "
            f"{dataset.fingerprint}); resume it with {facts['dataset']}."
        )
    before, now = facts["options"], options.settings()
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key) and key not in FREE]
    if changed:
        raise InputError(
            f"{out} was started with {changed[0]} = {before.get(changed[0])}, not {now.get(changed[0])}; "
            "resume it with the same options, or train a new run."
        )
