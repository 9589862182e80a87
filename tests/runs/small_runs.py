"""Runs that train in a moment."""

from pathlib import Path
from typing import Any

from offrec.console import Console
from offrec.runs.train import train

QUIET = Console(quiet=True)
FAST = {"network.width": 8, "network.history": 5, "training.epochs": 1, "diagnostics": "some"}


def fast(algorithm: str | None) -> dict[str, Any]:
    """The settings that apply to a learner. The user model has no network."""
    return {key: value for key, value in FAST.items() if algorithm != "user-model" or key != "network.width"}


def trained(dataset: Any, out: Path, **options: Any) -> Any:
    """Train a small policy on the CPU."""
    settings = {**fast(options.get("algorithm")), **options.pop("settings", {})}
    return train(dataset, out, settings=settings, device="cpu", console=QUIET, **options)
