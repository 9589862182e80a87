"""Rank items by what showing them adds: how often they are picked when shown, and the reward of a pick."""

from collections.abc import Mapping

import numpy as np
import torch

from offrec.baselines.mean_reward import MeanReward
from offrec.baselines.record import BaselineRecord
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.types import Doubles, Longs


class PickRate(MeanReward):
    """Rank items by the reward that showing them adds, compared with an average pick.

        score(a) = rate(a) · (reward(a) − μ)

    rate(a) is how often a is picked when it is shown, and reward(a) is the mean reward of a pick, both shrunk towards
    their means over all items. μ is the mean reward of all picks: a visitor who picks a does not pick another item of
    the list. No personalisation and no look-ahead.

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
        self.rate = pick_rates(dataset, pseudo_events)
        super().__init__(dataset, history, device, rewards, pseudo_events=pseudo_events)

    def scores(self, total: Doubles, count: Longs) -> Doubles:
        mean = float(total.sum()) / max(1, int(count.sum()))
        scores: Doubles = self.rate * (super().scores(total, count) - mean)
        return scores


def pick_rates(dataset: Dataset, pseudo_events: float) -> Doubles:
    """[A] how often each item was picked when it was shown, shrunk towards the mean over all shown items.

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
    return rate


RECORD = BaselineRecord(
    "pick-rate",
    "Excess reward per show",
    PickRate,
    "The items whose shows add most reward: pick rate times mean reward above average; needs a log with lists.",
    "Pick rate",
    needs_lists=True,
)
