"""The folders of logging policies: which is whose, whole or not there, and one process at a time."""

import atexit
import fcntl
import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offrec.backbones import BACKBONES
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.errors import InputError, first_line
from offrec.models.network import Network, NetworkOptions
from offrec.training import checkpoint
from offrec.training.loop import TrainingOptions

VERSION = 3  # of what is kept; another is another key
FREE = ("capture", "memory_check")  # training options that say how and not what

Part = Literal["network", "log_b"]


@dataclass(frozen=True)
class FitSpec:
    """What is to be fitted, and to what."""

    dataset: Dataset
    network: NetworkOptions
    training: TrainingOptions
    seed: int
    folds: int

    def describe(self, part: Part) -> dict[str, Any]:
        """All that shapes it. Folds do not shape the network; the device shapes neither."""
        meta = self.dataset.meta
        about = {
            "version": VERSION,
            "part": part,
            "data_hash": meta["data_hash"],
            "splits": {name: list(meta["splits"][name]) for name in ("train", "validation")},
            "network": _read(self.network),
            "training": {name: value for name, value in asdict(self.training).items() if name not in FREE},
            "seed": self.seed,
        }
        return about | {"folds": self.folds} if part == "log_b" else about

    def folder(self, root: Path, part: Part) -> Path:
        spelled = json.dumps(self.describe(part), sort_keys=True)
        return root / hashlib.sha256(spelled.encode()).hexdigest()[:12]


def _read(options: NetworkOptions) -> dict[str, Any]:
    """The options that a network of this kind reads."""
    ignored = {"layers", "heads", "window"} - BACKBONES[options.backbone].reads
    ignored |= {"repeat_state"} if options.repeat == "off" else set()
    return {name: value for name, value in asdict(options).items() if name not in ignored}


def is_complete(folder: Path) -> bool:
    return (folder / "about.json").is_file()


def read_description(folder: Path) -> dict[str, Any]:
    with _refused(folder):
        found: dict[str, Any] = json.loads((folder / "about.json").read_text())
        return found


def read_network(spec: FitSpec, folder: Path) -> Network:
    """Held fixed."""
    with torch.random.fork_rng():  # its first weights are drawn, and overwritten
        made = Network(spec.dataset.n_items, spec.network)
    with _refused(folder):
        made.load_state_dict(checkpoint.load(folder / "network.safetensors")[0])
    return made.requires_grad_(False).eval()


def read_log_b(spec: FitSpec, folder: Path) -> Tensor:
    with _refused(folder):
        found = np.load(folder / "log_b.npy", allow_pickle=False)
        train = spec.dataset.split("train")
        inside = slice(int(train.offsets[0]), int(train.offsets[-1]))
        if found.shape != spec.dataset.sessions.items.shape or not np.isfinite(found[inside]).all():
            raise ValueError("log_b.npy does not hold a number for each training event")
    return torch.from_numpy(found)


@contextmanager
def _refused(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError, InputError) as error:
        reason = first_line(error)
        raise InputError(
            f"The logging policy in {folder} cannot be read ({reason}); remove that folder, and it is fitted again."
        ) from error


def write_network(spec: FitSpec, fitted: Network, calibration: dict[str, float], aside: Path) -> None:
    checkpoint.save(aside / "network.safetensors", fitted.state_dict(), {"data_hash": spec.dataset.meta["data_hash"]})
    _describe(spec, "network", calibration, aside)


def write_log_b(spec: FitSpec, log_b: NDArray[np.float32], calibration: dict[str, float], aside: Path) -> None:
    np.save(aside / "log_b.npy", log_b, allow_pickle=False)
    _describe(spec, "log_b", calibration, aside)


def _describe(spec: FitSpec, part: Part, calibration: dict[str, float], aside: Path) -> None:
    facts = spec.describe(part) | {"calibration": calibration}
    (aside / "about.json").write_text(json.dumps(facts, indent=2) + "\n")


def writable_root(root: Path, console: Console, what: str = "the logging policy") -> Path:
    """`root`, or where that cannot be written a folder that lasts as long as the process."""
    try:
        root.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        console.line(f"{root} cannot be written ({error.strerror}), so {what} will be kept for this process only")
        return _temporary()
    return root


@cache
def _temporary() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="offrec-logging-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@contextmanager
def fit_lock(folder: Path, console: Console, what: str = "the logging policy") -> Iterator[None]:
    """One process at a time. The system frees the lock of a process that dies; the file stays, being only a name."""
    with folder.with_suffix(".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.line(f"another process is fitting {what} {folder}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
