"""Runs that train in a moment."""

from pathlib import Path
from typing import Any

from offrec.console import Console
from offrec.runs.train import train

QUIET = Console(quiet=True)
FAST = {"network.width": 8, "network.history": 5, "training.epochs": 1, "diagnostics": "some"}


def trained(dataset: Any, out: Path, **options: Any) -> Any:
    """Train a small policy on the CPU."""
    settings = {**FAST, **options.pop("settings", {})}
    return train(dataset, out, settings=settings, device="cpu", console=QUIET, **options)
