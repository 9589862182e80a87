"""Rank items by what showing them earns: how often they are picked when shown, and the reward of a pick."""

from collections.abc import Mapping

import numpy as np
import torch

from offrec.baselines.mean_reward import MeanReward
from offrec.baselines.record import BaselineRecord
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.types import Doubles, Longs

ROUNDS = 100  # of the fixed point, which takes about five


class PickRate(MeanReward):
    """Rank items so that the list with the best k items earns most at once.

        score(a) = rate(a) · (reward(a) − λ)

    rate(a) is how often a is picked when it is shown, and reward(a) is the mean reward of a pick, both shrunk towards
    their means over all items. λ is what the best list itself earns: an item that is picked takes the place of another
    pick. If a visitor picks a with odds rate(a) against "nothing", the k items with the highest scores are the list
    with the largest expected reward. No personalisation and no look-ahead.

    Args:
        dataset: A dataset with served lists; only its train split is read.
        history: The longest history that the policy reads.
        device: The device that scores are computed on.
        rewards: The reward per behaviour, in addition to the defaults.
        pseudo_events: m, the strength of the shrinkage, in picks for the reward and in shows for the rate.

    Raises:
        InputError: The dataset has no lists.
    """

    name = "pick-rate"

    def __init__(
        self,
        dataset: Dataset,
        history: int,
        device: torch.device,
        rewards: Mapping[str, float] | None = None,
        *,
        pseudo_events: float = 20.0,
    ) -> None:
        self.rate, self.none_share, self.k = pick_rates(dataset, pseudo_events)
        super().__init__(dataset, history, device, rewards, pseudo_events=pseudo_events)

    def scores(self, total: Doubles, count: Longs) -> Doubles:
        reward = super().scores(total, count)
        scores: Doubles = self.rate * (reward - best_list_reward(self.rate, reward, self.none_share, self.k))
        return scores


def pick_rates(dataset: Dataset, pseudo_events: float) -> tuple[Doubles, float, int]:
    """Return the shrunk pick rate of each item [A], the share of lists without a pick and the length of lists.

    Raises:
        InputError: The dataset has no lists.
    """
    lists = dataset.split_decisions("train")
    if lists is None or not len(lists):
        raise InputError(
            f"{dataset.path} contains no served lists, but the baseline pick-rate counts how often items were shown; "
            "prepare a log with lists (--format served or decisions), or choose another baseline."
        )
    part = slice(int(lists.offsets[0]), int(lists.offsets[-1]))
    shown, event = np.asarray(lists.items[part]), np.asarray(lists.event[part])
    shows = np.bincount(shown[shown < dataset.n_items], minlength=dataset.n_items)
    picks = np.bincount(np.asarray(dataset.sessions.items)[event[event >= 0]], minlength=dataset.n_items)
    mean = picks.sum() / max(1, shows.sum())
    rate: Doubles = (picks + pseudo_events * mean) / (shows + pseudo_events)
    return rate, float(np.mean(event < 0)), lists.k


def best_list_reward(rate: Doubles, reward: Doubles, none_share: float, k: int) -> float:
    """Return λ, the largest Σ rate · reward / (none + Σ rate) over all lists of k items (Dinkelbach's algorithm)."""
    best = 0.0
    for _ in range(ROUNDS):
        top = np.argsort(-rate * (reward - best), kind="stable")[:k]
        value = float((rate[top] * reward[top]).sum() / (none_share + rate[top].sum()))
        if value <= best:
            break
        best = value
    return best


RECORD = BaselineRecord(
    "pick-rate",
    "Reward per shown item",
    PickRate,
    "The list that earns most at once, by pick rates and mean rewards; needs a log with lists.",
    "Pick rate",
    needs_lists=True,
)
