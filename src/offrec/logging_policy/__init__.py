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
from offrec.logging_policy import cache as kept
from offrec.logging_policy.cache import Kind, Wanted
from offrec.logging_policy.fitting import fit
from offrec.models.network import Network, NetworkOptions
from offrec.training.loop import TrainingOptions

Need = Literal["network", "values", "both"]


@dataclass(frozen=True)
class Fitted:
    network: Network | None  # on the device, held fixed
    log_b: Tensor | None  # [E] over the events of the whole log, on the device; NaN outside of training
    calibration: dict[str, float]  # "network.…" on validation sessions, "values.…" on the training sessions left out


def fitted(
    dataset: Dataset,
    network: NetworkOptions,
    training: TrainingOptions,
    seed: int,
    device: torch.device,
    console: Console,
    *,
    folds: int = 2,
    need: Need,
) -> Fitted:
    """π̂_b of a dataset, from beside it or, the first time, fitted and left there."""
    wanted = Wanted(dataset, network, training, seed, folds)
    kinds: list[Kind] = [kind for kind in get_args(Kind) if need in (kind, "both")]
    sessions = len(dataset.split("train"))
    if "values" in kinds and not 2 <= folds <= sessions:
        raise InputError(f"{sessions} training sessions cannot be left out in {folds} parts; choose 2 or a few more.")
    home = dataset.path / "logging"
    if not all(kept.is_there(wanted.folder(home, kind)) for kind in kinds):
        home = kept.writable(home, console)
        with ExitStack() as stack:
            for folder in sorted(wanted.folder(home, kind) for kind in kinds):  # so that nobody waits in a circle
                stack.enter_context(kept.lock(folder, console))
            missing = [kind for kind in kinds if not kept.is_there(wanted.folder(home, kind))]
            if missing:
                fit(wanted, missing, home, device, console)
    found: dict[str, Any] = {"network": None, "log_b": None, "calibration": {}}
    for kind in kinds:
        folder = wanted.folder(home, kind)
        if kind == "network":
            found["network"] = kept.network(wanted, folder).to(device)
        else:
            found["log_b"] = kept.values(wanted, folder).to(device)
        found["calibration"] |= {f"{kind}.{name}": value for name, value in kept.about(folder)["calibration"].items()}
    return Fitted(**found)


__all__ = ["Fitted", "Need", "fitted"]
