"""The cache of logging policies: one folder per fit, complete or absent, and one fitting process at a time."""

import atexit
import fcntl
import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offrec.backbones import BACKBONES
from offrec.console import Console
from offrec.data.arrays import DESCRIPTION as ARRAY
from offrec.data.arrays import describe_arrays, open_arrays
from offrec.data.dataset import Dataset
from offrec.data.dataset_checks import ROUNDING
from offrec.data.json_files import CHECKSUM, format_json, read_json, seal
from offrec.data.schema import Anything, Number, Table
from offrec.errors import InputError, first_line
from offrec.models.item_features import ItemFeatures, dataset_features
from offrec.models.network import Network, NetworkOptions
from offrec.training import checkpoint
from offrec.training.loop import TrainingOptions

VERSION = 4  # of the cached files; part of the key
EXECUTION_OPTIONS = ("capture", "memory_check")  # training options that do not change the result
SUBJECT = "the logging policy"
VALUES_OR_FIT = Table({}, {"arrays": Table(others=ARRAY)}, Anything())  # about.json of any cached fit
DESCRIPTION = Table({"calibration": Table(others=Number(finite=False)), "arrays": Table(others=ARRAY)}, {}, Anything())

Part = Literal["network", "log_b"]


@dataclass(frozen=True)
class FitStart:
    """The weights from which a fit starts, instead of random ones, and the training that suits them."""

    weights: checkpoint.Tensors  # of a network with the catalogue of the log
    training: TrainingOptions

    def hash(self) -> str:
        """Return a hash of the weights."""
        state = hashlib.sha256()
        for name, tensor in sorted(self.weights.items()):
            state.update(name.encode() + tensor.contiguous().cpu().numpy().tobytes())
        return state.hexdigest()


@dataclass(frozen=True)
class FitSpec:
    """A logging policy to fit: its dataset, network, training and seed."""

    dataset: Dataset
    network: NetworkOptions
    training: TrainingOptions
    seed: int
    folds: int
    start: FitStart | None = None  # only for the network that is fitted to all training sessions

    @cached_property
    def features(self) -> ItemFeatures | None:
        """The features of the items that the network reads."""
        return dataset_features(self.dataset, self.network.features)

    def describe(self, part: Part) -> dict[str, Any]:
        """Return everything that the result depends on. The network does not depend on the folds."""
        meta = self.dataset.meta
        training = asdict(self.training)
        description = {
            "version": VERSION,
            "part": part,
            "data_hash": meta["data_hash"],
            "splits": {name: list(meta["splits"][name]) for name in ("train", "validation")},
            "network": _used_options(self.network, self.features is not None),
            "training": {name: value for name, value in training.items() if name not in EXECUTION_OPTIONS},
            "seed": self.seed,
        }
        properties = self.dataset.item_properties
        if self.features is not None and properties is not None and properties.scaling is not None:
            description["scaling"] = hashlib.sha256(properties.scaling.tobytes()).hexdigest()
        if self.start is not None:
            description["start"] = self.start.hash()
        return description | {"folds": self.folds} if part == "log_b" else description

    def folder(self, root: Path, part: Part) -> Path:
        """Return the folder of a part; its name is a hash of the description."""
        text = json.dumps(self.describe(part), sort_keys=True)
        return root / hashlib.sha256(text.encode()).hexdigest()[:12]


def _used_options(options: NetworkOptions, has_features: bool) -> dict[str, Any]:
    """Return the options that a network with this backbone uses."""
    ignored = {"layers", "heads", "window"} - BACKBONES[options.backbone].reads
    ignored |= {"repeat_state"} if options.repeat == "off" else set()
    ignored |= {"new_item_bonus"} if has_features else {"features", "free_dropout", "new_item_bonus"}
    return {name: value for name, value in asdict(options).items() if name not in ignored}


def is_complete(folder: Path) -> bool:
    """Return whether the folder contains a fit. Every published folder contains about.json."""
    return (folder / "about.json").is_file()


def read_description(folder: Path) -> dict[str, Any]:
    """Return the contents of about.json."""
    with _readable(folder):
        return read_json(folder / "about.json", DESCRIPTION, advice="fit it again")


def read_network(spec: FitSpec, folder: Path) -> Network:
    """Load the network, without gradients and in evaluation mode."""
    with torch.random.fork_rng():  # the initial weights are random and then overwritten
        network = Network(spec.dataset.n_items, spec.network, features=spec.features)
    with _readable(folder):
        _check_key(spec, "network", folder)
        load_network(network, folder, spec.folder(folder.parent, "network").name)
    return network.requires_grad_(False).eval()


def save_network(network: nn.Module, folder: Path, key: str) -> None:
    """Write the weights of a fit with the key of the fit, so that the files of two fits cannot be mixed."""
    checkpoint.save(folder / "network.safetensors", network.state_dict(), {"key": key})


def load_network(network: nn.Module, folder: Path, key: str) -> None:
    """Load the weights of the fit with this key.

    Raises:
        InputError: If the file is damaged, or has other tensors than the network.
        ValueError: If the weights belong to another fit.
    """
    expected = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in network.state_dict().items()}
    tensors, facts = checkpoint.load(folder / "network.safetensors", expected)
    if facts.get("key") != key:
        raise ValueError("network.safetensors belongs to another fit")
    network.load_state_dict(tensors)


def read_log_b(spec: FitSpec, folder: Path) -> Tensor:
    """Load log π̂_b(a|s) of every event, [E]."""
    with _readable(folder):
        description = _check_key(spec, "log_b", folder)
        if "log_b" not in description["arrays"]:
            raise ValueError("about.json describes no array log_b")
        arrays = open_arrays(folder, description["arrays"], advice="fit it again")
        log_b = np.array(arrays["log_b"])  # a copy: the folder may be replaced
        train = spec.dataset.split("train")
        rows = slice(int(train.offsets[0]), int(train.offsets[-1]))
        is_valid = log_b.dtype == np.float32 and log_b.shape == spec.dataset.sessions.items.shape
        if not is_valid or not np.isfinite(log_b[rows]).all() or (log_b[rows] > ROUNDING).any():
            raise ValueError("log_b.npy lacks log-probabilities of some training events")
    return torch.from_numpy(log_b)


def _check_key(spec: FitSpec, part: Part, folder: Path) -> dict[str, Any]:
    """Return the description of a folder, and check that it is the description of this fit."""
    description = read_description(folder)
    expected = seal(spec.describe(part))
    if any(description.get(key) != value for key, value in expected.items() if key != CHECKSUM):
        raise ValueError("about.json describes another fit")
    return description


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Convert every reading error into one message that says what to do."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, InputError) as error:
        raise InputError(
            f"{folder} cannot be read ({first_line(error)}); remove that folder and the logging policy will be fitted "
            "again."
        ) from error


def write_network(spec: FitSpec, network: Network, calibration: dict[str, float], folder: Path) -> None:
    """Write a fitted network into a folder that is about to be published."""
    save_network(network, folder, spec.folder(folder.parent, "network").name)
    write_description(spec, "network", calibration, {}, folder)


def write_log_b(spec: FitSpec, log_b: NDArray[np.float32], calibration: dict[str, float], folder: Path) -> None:
    """Write the log-probabilities into a folder that is about to be published."""
    np.save(folder / "log_b.npy", log_b, allow_pickle=False)
    write_description(spec, "log_b", calibration, describe_arrays({"log_b": log_b}), folder)


def write_description(
    spec: FitSpec, part: Part, calibration: dict[str, float], arrays: dict[str, Any], folder: Path
) -> None:
    """Write about.json into a folder that is about to be published."""
    description = spec.describe(part) | {"calibration": calibration, "arrays": arrays}
    (folder / "about.json").write_text(format_json(description), encoding="utf-8")


def writable_root(root: Path, console: Console, subject: str = SUBJECT) -> Path:
    """Return `root`, or a temporary folder of this process if `root` cannot be written."""
    try:
        root.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        console.line(f"{root} cannot be written ({error.strerror}); {subject} will be cached for this process only")
        return _temporary_root()
    return root


@cache
def _temporary_root() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="offrec-logging-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@contextmanager
def fit_lock(folder: Path, console: Console, subject: str = SUBJECT) -> Iterator[None]:
    """Let one process at a time fit this folder.

    The operating system releases the lock of a process that dies. The lock file stays; it has no content.
    """
    with folder.with_suffix(".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.line(f"Waiting for another process that is fitting {subject} in {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
