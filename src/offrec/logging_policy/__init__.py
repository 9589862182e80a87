"""π̂_b, the estimate of the policy that produced the log: fitted once by SL and cached in the dataset's folder.

    DATASET/logging/<key>/      network.safetensors: fitted to every training session; or
                                log_b.npy, float32 [E]: log π̂_b(a|s) of each training event, by a network that was
                                fitted without the session of the event (NaN outside the training split);
                                about.json: what the key depends on, and the calibration on unseen events

A process locks the folder, fits, and publishes the complete folder. The folder is therefore complete or does not exist,
and no two processes fit the same logging policy.

π̂_b is trained like SL in the preset of the run. It ignores the run's learning rate and batch size, and its epochs
unless the run has fewer than its preset. All runs with the same network and seed on a dataset therefore share one π̂_b.

A warm run fits the network from the π̂_b of the earlier run. The networks of the folds always start from random weights:
the earlier run may have been trained on the sessions of any fold.

A run selects its checkpoint by a ranking metric. π̂_b uses the epoch with the best validation likelihood instead,
because learners read its probabilities. The likelihood includes all validation events, even those that the protocol
does not score.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.logging_policy import cache
from offrec.logging_policy.cache import FitSpec, FitStart, Part
from offrec.logging_policy.fitting import fit_logging_policy, measure_network
from offrec.models.network import Network, NetworkOptions
from offrec.training.loop import TrainingOptions

Need = Literal["network", "log_b", "both"]


@dataclass(frozen=True)
class LoggingPolicy:
    """π̂_b of a dataset; the parts that were not needed are None."""

    network: Network | None  # on the device, without gradients
    log_b: Tensor | None  # [E] over the events of the whole log, on the device; NaN outside the training split
    calibration: dict[str, float]  # "network.…" on validation sessions, "log_b.…" on held-out training sessions


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
    start: FitStart | None = None,
) -> LoggingPolicy:
    """Load π̂_b of a dataset from the cache, or fit it and add it to the cache.

    Args:
        dataset: The log.
        network: Network of π̂_b.
        training: Training of π̂_b.
        seed: Seed of the initial weights, the batches and the folds.
        device: Device for training and for the result.
        console: Shows the progress.
        folds: Number of folds for `log_b`; each event is evaluated by the network that was fitted without its fold.
        need: Which parts are needed.
        start: Weights from which the network is fitted; None for random weights.

    Returns:
        The parts that are needed, and their calibration.

    Raises:
        InputError: If there are fewer training sessions than folds, or if a cached folder cannot be read.
    """
    if start is not None and need != "log_b":
        return _load_or_fit_from(start, dataset, network, training, seed, device, console, folds, need)
    spec = FitSpec(dataset, network, training, seed, folds)
    return _load_or_fit(spec, device, console, need)


def is_cached(dataset: Dataset, network: NetworkOptions, training: TrainingOptions, seed: int) -> bool:
    """Return whether the cache contains the network of π̂_b for a dataset."""
    spec = FitSpec(dataset, network, training, seed, folds=2)  # the network does not depend on the folds
    return cache.is_complete(spec.folder(dataset.path / "logging", "network"))


def _load_or_fit_from(
    start: FitStart,
    dataset: Dataset,
    network: NetworkOptions,
    training: TrainingOptions,
    seed: int,
    device: torch.device,
    console: Console,
    folds: int,
    need: Need,
) -> LoggingPolicy:
    fitted = _load_or_fit(FitSpec(dataset, network, start.training, seed, folds, start), device, console, "network")
    if need == "network":
        return fitted
    folded = _load_or_fit(FitSpec(dataset, network, training, seed, folds), device, console, "log_b")
    return LoggingPolicy(fitted.network, folded.log_b, fitted.calibration | folded.calibration)


def _load_or_fit(spec: FitSpec, device: torch.device, console: Console, need: Need) -> LoggingPolicy:
    dataset, folds = spec.dataset, spec.folds
    parts: list[Part] = [part for part in get_args(Part) if need in (part, "both")]
    sessions = len(dataset.split("train"))
    if "log_b" in parts and not 2 <= folds <= sessions:
        raise InputError(f"folds must be between 2 and the {sessions} training sessions; got {folds}.")
    root = dataset.path / "logging"
    if not all(cache.is_complete(spec.folder(root, part)) for part in parts):
        root = cache.writable_root(root, console)
        with ExitStack() as stack:
            for folder in sorted(spec.folder(root, part) for part in parts):  # a fixed order avoids deadlocks
                stack.enter_context(cache.fit_lock(folder, console))
            missing = [part for part in parts if not cache.is_complete(spec.folder(root, part))]
            if missing:
                fit_logging_policy(spec, missing, root, device, console)
    folders = {part: spec.folder(root, part) for part in parts}
    calibration = {
        f"{part}.{name}": value
        for part, folder in folders.items()
        for name, value in cache.read_description(folder)["calibration"].items()
    }
    return LoggingPolicy(
        network=cache.read_network(spec, folders["network"]).to(device) if "network" in folders else None,
        log_b=cache.read_log_b(spec, folders["log_b"]).to(device) if "log_b" in folders else None,
        calibration=calibration,
    )


def from_network(network: Network, dataset: Dataset, seed: int, device: torch.device) -> LoggingPolicy:
    """Return a trained network as π̂_b, with its calibration on the validation sessions of the dataset."""
    network = network.requires_grad_(False).eval().to(device)
    calibration = measure_network(network, dataset, seed, device)
    return LoggingPolicy(network, None, {f"network.{name}": value for name, value in calibration.items()})


__all__ = ["FitStart", "LoggingPolicy", "Need", "from_network", "is_cached", "load_or_fit"]
