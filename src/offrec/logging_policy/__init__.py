"""π̂_b, the estimate of the policy that made the log: fitted by SL, once, and kept beside the dataset.

    DATASET/logging/<key>/      network.safetensors, fitted on every training session; or
                                log_b.npy float32 [E], log π̂_b(a|s) of each training event by a network that was fitted
                                without the event's session (NaN outside of training);
                                about.json: what the key stands for, and the calibration on events it has not seen

Who needs one that is there reads it. Who fits one holds a lock meanwhile, works aside and renames: there is a whole one
or none, and no two processes fit the same.

It is trained as SL is in the run's preset with that backbone (`config.logging_training`), whatever the run's own rate,
batches or epochs, so that one serves all runs on a dataset with a network and a seed.

Unlike a run, whose checkpoint is chosen by ranking, this one's is the epoch with the best validation likelihood: what
is asked of π̂_b are probabilities. All validation events count, whatever the protocol scores.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.logging_policy import cache
from offrec.logging_policy.cache import FitSpec, Part
from offrec.logging_policy.fitting import fit_logging_policy
from offrec.models.network import Network, NetworkOptions
from offrec.training.loop import TrainingOptions

Need = Literal["network", "log_b", "both"]


@dataclass(frozen=True)
class LoggingPolicy:
    network: Network | None  # on the device, held fixed
    log_b: Tensor | None  # [E] over the events of the whole log, on the device; NaN outside of training
    calibration: dict[str, float]  # "network.…" on validation sessions, "log_b.…" on the training sessions left out


def load_or_fit(
    dataset: Dataset,
    network: NetworkOptions,
    training: TrainingOptions,
    seed: int,
    device: torch.device,
    console: Console,
    *,
    folds: int = 2,
    need: Need,
) -> LoggingPolicy:
    """π̂_b of a dataset, from beside it or, the first time, fitted and left there."""
    spec = FitSpec(dataset, network, training, seed, folds)
    parts: list[Part] = [part for part in get_args(Part) if need in (part, "both")]
    sessions = len(dataset.split("train"))
    if "log_b" in parts and not 2 <= folds <= sessions:
        raise InputError(f"{sessions} training sessions cannot be left out in {folds} parts; choose 2 or a few more.")
    root = dataset.path / "logging"
    if not all(cache.is_complete(spec.folder(root, part)) for part in parts):
        root = cache.writable_root(root, console)
        with ExitStack() as stack:
            for folder in sorted(spec.folder(root, part) for part in parts):  # so that nobody waits in a circle
                stack.enter_context(cache.fit_lock(folder, console))
            missing = [part for part in parts if not cache.is_complete(spec.folder(root, part))]
            if missing:
                fit_logging_policy(spec, missing, root, device, console)
    found: dict[str, Any] = {"network": None, "log_b": None, "calibration": {}}
    for part in parts:
        folder = spec.folder(root, part)
        if part == "network":
            found["network"] = cache.read_network(spec, folder).to(device)
        else:
            found["log_b"] = cache.read_log_b(spec, folder).to(device)
        found["calibration"] |= {
            f"{part}.{name}": value for name, value in cache.read_description(folder)["calibration"].items()
        }
    return LoggingPolicy(**found)


__all__ = ["LoggingPolicy", "Need", "load_or_fit"]
