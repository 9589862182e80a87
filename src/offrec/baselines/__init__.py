"""Baselines, which are policies without training, and their registry.

Every comparison includes them: a learner that does not beat them has learned nothing useful.
"""

import torch

from offrec.baselines import content_neighbours, counting, item_neighbours, mean_reward, neighbours, pick_rate
from offrec.baselines.content_neighbours import ContentNeighbours
from offrec.baselines.counting import Markov, Popular, Recent
from offrec.baselines.item_neighbours import ItemNeighbours
from offrec.baselines.mean_reward import MeanReward, TotalReward
from offrec.baselines.neighbours import SessionNeighbours, VectorSessionNeighbours
from offrec.baselines.pick_rate import PickRate, PickReturn
from offrec.baselines.record import BASELINES, BaselineRecord, register_baseline
from offrec.data.dataset import Dataset
from offrec.policy import Policy

for _record in (
    counting.POPULAR,
    *mean_reward.RECORDS,
    *pick_rate.RECORDS,
    counting.RECENT,
    counting.MARKOV,
    item_neighbours.RECORD,
    content_neighbours.RECORD,
    *neighbours.RECORDS,
):
    register_baseline(_record)

__all__ = [
    "BASELINES",
    "BaselineRecord",
    "ContentNeighbours",
    "ItemNeighbours",
    "Markov",
    "MeanReward",
    "PickRate",
    "PickReturn",
    "Popular",
    "Recent",
    "SessionNeighbours",
    "TotalReward",
    "VectorSessionNeighbours",
    "baseline",
    "register_baseline",
]


def baseline(name: str, dataset: Dataset, history: int = 50, device: torch.device | str = "cpu") -> Policy:
    """Build a baseline from the training sessions of a dataset.

    Args:
        name: Name of the baseline, such as "recent" or "markov".
        dataset: The dataset whose training sessions are counted.
        history: The maximum number of items in a history.
        device: The device that computes the scores.

    Returns:
        A policy with the same interface as a trained one.

    Raises:
        InputError: No baseline has this name, or the dataset lacks what it needs.

    Example:
        >>> policy = offrec.baseline("recent", dataset)
        >>> offrec.evaluate(policy, dataset).metrics["all"]["NDCG@10"]
    """
    policy = BASELINES[name].build(dataset, history, torch.device(device))
    policy.item_properties = dataset.item_properties
    return policy
