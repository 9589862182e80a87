"""Rank items by what showing them adds: how often they are picked when shown, and the reward of a pick."""

from collections.abc import Mapping

import numpy as np
import torch

from offrec.baselines.mean_reward import MeanReward
from offrec.baselines.record import BaselineRecord
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.data.transitions import transitions
from offrec.errors import InputError
from offrec.types import Doubles, Longs

GAMMA = 0.9  # discount of `PickReturn`, as in the presets of learners that maximise reward


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


class PickReturn(PickRate):
    """Rank items like `PickRate`, but by the return after a pick instead of its reward.

        score(a) = rate(a) · (return(a) − mean return)

    return(a) is the mean discounted sum of rewards from the pick to the end of its session, shrunk like the reward.
    This looks ahead without learning: an item after which visitors stay has a higher return.
    """

    name = "pick-return"

    def totals(self, dataset: Dataset, rewards: Mapping[str, float]) -> tuple[Doubles, Longs]:
        train = dataset.split("train")
        returns = transitions(train, event_rewards(dataset, rewards), GAMMA).return_to_go
        items = np.asarray(train.items[int(train.offsets[0]) : int(train.offsets[-1])])
        total = np.bincount(items, weights=returns, minlength=dataset.n_items)
        return total.astype(np.float64), dataset.train_counts


def pick_rates(dataset: Dataset, pseudo_events: float) -> Doubles:
    """[A] how often each item was picked when it was shown, shrunk towards the mean over all shown items.

    Raises:
        InputError: The dataset has no lists.
    """
    lists = dataset.split_decisions("train")
    if lists is None or not len(lists):
        raise InputError(
            f"{dataset.path} contains no served lists, but this baseline counts how often items were shown; "
            "prepare a log with lists (--format served or decisions), or choose another baseline."
        )
    part = slice(int(lists.offsets[0]), int(lists.offsets[-1]))
    shown, event = np.asarray(lists.items[part]), np.asarray(lists.event[part])
    shows = np.bincount(shown[shown < dataset.n_items], minlength=dataset.n_items)
    picks = np.bincount(np.asarray(dataset.sessions.items)[event[event >= 0]], minlength=dataset.n_items)
    mean = picks.sum() / max(1, shows.sum())
    rate: Doubles = (picks + pseudo_events * mean) / (shows + pseudo_events)
    return rate


RECORDS = (
    BaselineRecord(
        "pick-rate",
        "Excess reward per show",
        PickRate,
        "The items whose shows add most reward: pick rate times mean reward above average; needs a log with lists.",
        "Pick rate",
        needs_lists=True,
    ),
    BaselineRecord(
        "pick-return",
        "Excess return per show",
        PickReturn,
        "The items whose shows add most return: pick rate times mean return above average; needs a log with lists.",
        "Pick return",
        needs_lists=True,
    ),
)
