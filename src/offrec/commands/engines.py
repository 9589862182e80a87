"""Options of commands that can use a Ray cluster, and sizes of memory."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from offrec.commands.printing import unset
from offrec.errors import InputError

if TYPE_CHECKING:
    from offrec.data.dataset import Dataset
    from offrec.policy import Policy
    from offrec.scale.ray_engine import RayEngine

EngineName = Literal["local", "ray"]
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", re.IGNORECASE)
UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}  # powers of 2


@dataclass(frozen=True)
class RayOptions:
    """With --engine ray or --launch ray."""

    ray_address: Annotated[str | None, unset("HOST:PORT")] = None
    """Address of the Ray cluster. By default that in RAY_ADDRESS, else a new one on this machine."""
    ray_cpus: float = 1.0
    """Processors per task, or per process of a run."""
    ray_gpus: float = 0.0
    """GPUs per task, or per process of a run."""

    def connect(self, engine: EngineName) -> "RayEngine | None":
        """Connect to the cluster; return None if the engine is not Ray.

        Raises:
            InputError: If an option cannot be used, Ray is not installed, or the cluster does not answer.
        """
        if engine == "local":
            self.check_unused("--engine")
            return None
        from offrec.scale.ray_engine import RayEngine

        return RayEngine(self.ray_address, cpus=self.ray_cpus, gpus=self.ray_gpus)

    def check_unused(self, flag: str) -> None:
        """Raise InputError if an option was given although the command does not use Ray.

        Args:
            flag: The flag that would make it use Ray.
        """
        if self != RayOptions():
            raise InputError(f"--ray-address, --ray-cpus and --ray-gpus need {flag} ray; add it or remove them.")

    def device(self, given: str) -> str:
        """Return the device of tasks: the given one or, for auto, a GPU if tasks have any."""
        return given if given != "auto" else "cuda" if self.ray_gpus else "cpu"


def load_run(run: Path, device: str, dataset: "Dataset") -> "Policy":
    """Load a run on another machine."""
    from offrec.runs.loading import load

    return load(run, device)


def load_baseline(name: str, counted: Path, device: str, history: int, dataset: "Dataset") -> "Policy":
    """Build a baseline on another machine from the training sessions of the dataset `counted`."""
    from offrec.baselines import baseline
    from offrec.data.dataset import Dataset
    from offrec.runs.loading import pick_device

    same = counted == dataset.path
    return baseline(name, dataset if same else Dataset.open(counted), device=pick_device(device), history=history)


def parse_bytes(text: str, flag: str) -> int:
    """Return the bytes of a size such as 2GB; K, M, G and T are powers of 1,024.

    Args:
        text: The size.
        flag: The flag, for the message.

    Raises:
        InputError: If the text is not a size.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{flag} must be a size such as 512MB or 2GB; got {text!r}.")
    return int(float(match[1]) * (1 << UNITS[match[2].upper()]))
