"""Policies without training. They stand in every comparison: a learner that does not beat them has learned nothing."""

from collections.abc import Callable

import torch

from offrec.baselines.counting import Markov, Popular, Recent
from offrec.baselines.mean_reward import MeanReward
from offrec.baselines.neighbours import SessionNeighbours, VectorSessionNeighbours
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.policy import Policy

__all__ = [
    "BASELINES",
    "Markov",
    "MeanReward",
    "Popular",
    "Recent",
    "SessionNeighbours",
    "VectorSessionNeighbours",
    "baseline",
]

BASELINES: dict[str, Callable[[Dataset, int, torch.device], Policy]] = {
    "popular": Popular,
    "mean-reward": MeanReward,
    "recent": Recent,
    "markov": Markov,
    "sknn": SessionNeighbours,
    "vsknn": VectorSessionNeighbours,
}


def baseline(name: str, dataset: Dataset, history: int = 50, device: torch.device | str = "cpu") -> Policy:
    """The baseline `name`, made from the dataset's train split."""
    if name not in BASELINES:
        raise InputError(f"There is no baseline {name!r}; known are {', '.join(BASELINES)}.")
    return BASELINES[name](dataset, history, torch.device(device))
