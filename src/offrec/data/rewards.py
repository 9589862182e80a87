"""The reward of every event: its number in the log's reward column or, without one, the reward of its behaviour."""

from collections.abc import Mapping

import numpy as np

from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.types import Floats, Sessions

REWARDS = {"view": 0.2, "click": 0.2, "cart": 1.0, "buy": 1.0}  # Xin et al. 2020: 0.2 for a click, 1 for a purchase


def event_rewards(dataset: Dataset, by_behaviour: Mapping[str, float], *, needed: bool = True) -> Floats:
    """Return the reward of every event of a dataset.

    An event with a number in the reward column of `offrec prepare --reward` has this number as its reward. Every other
    event has the reward of its behaviour.

    Args:
        dataset: The dataset.
        by_behaviour: Rewards by behaviour; `REWARDS` contains the defaults.
        needed: Whether a behaviour without a reward is an error. If not, its reward is 0.

    Returns:
        [E] rewards of all events, in the order of the dataset.

    Raises:
        InputError: If a behaviour has no reward, a reward is for an unknown behaviour or changes no event, or all
            rewards are 0.
    """
    rewards = behaviour_rewards(dataset, by_behaviour, needed=needed)[np.asarray(dataset.sessions.behaviours)]
    if dataset.reward_column is not None:
        rewards = np.where(np.isnan(dataset.reward_column), rewards, dataset.reward_column)
    if needed and len(rewards) and not rewards.any():
        names = ", ".join(dataset.behaviours)
        raise InputError(f"Every event ({names}) has reward 0; set another one, such as --set reward.NAME=1.")
    return rewards


def event_rewards_or_none(dataset: Dataset, by_behaviour: Mapping[str, float]) -> Floats | None:
    """Return `event_rewards`, or None if a behaviour has no reward or all rewards are 0.

    Rewards of other behaviours are ignored: a run may be evaluated on a later log that lacks one of its behaviours.
    """
    if _names_without_reward(dataset, by_behaviour):
        return None
    used = {name: by_behaviour[name] for name in _names_without_number(dataset) if name in by_behaviour}
    rewards = event_rewards(dataset, used, needed=False)
    return rewards if rewards.any() else None


def behaviour_rewards(dataset: Dataset, by_behaviour: Mapping[str, float], *, needed: bool = True) -> Floats:
    """[behaviours] the reward of an event without a number in the reward column; arguments as in `event_rewards`."""
    _check_names(dataset, by_behaviour)
    if needed and (missing := _names_without_reward(dataset, by_behaviour)):
        raise InputError(f"The behaviour {missing[0]!r} has no reward; set one, such as --set reward.{missing[0]}=0.2.")
    known = {**REWARDS, **by_behaviour}
    return np.array([known.get(name, 0.0) for name in dataset.behaviours], dtype=np.float32)


def split_rewards(sessions: Sessions, rewards: Floats) -> Floats:
    """Return the part of `event_rewards` that belongs to the sessions of a split."""
    return rewards[int(sessions.offsets[0]) : int(sessions.offsets[-1])]


def reward_shift(rewards: Floats) -> float:
    """Return the shift that makes every reward ≤ 0: minus the largest reward.

    Unlike the paper: the shift is an option. It is "without loss of generality" only if all sessions have equal length.
    """
    return -max(0.0, float(rewards.max(initial=0.0)))


def _check_names(dataset: Dataset, by_behaviour: Mapping[str, float]) -> None:
    for name in by_behaviour:
        if name not in dataset.behaviours:
            names = ", ".join(dataset.behaviours)
            raise InputError(f"reward.{name} is not a behaviour of the dataset, which has {names}; remove it.")
        if name not in _names_without_number(dataset):
            raise InputError(
                f"reward.{name} has no effect: every event {name!r} of the dataset has a number in the reward column; "
                "remove it, or prepare the log without --reward."
            )


def _names_without_reward(dataset: Dataset, by_behaviour: Mapping[str, float]) -> list[str]:
    return [name for name in _names_without_number(dataset) if name not in REWARDS and name not in by_behaviour]


def _names_without_number(dataset: Dataset) -> list[str]:
    """Return the behaviours that have at least one event without a number in the reward column."""
    if dataset.reward_column is None:
        return dataset.behaviours
    behaviours = np.asarray(dataset.sessions.behaviours)[np.isnan(dataset.reward_column)]
    counts = np.bincount(behaviours, minlength=len(dataset.behaviours))
    return [name for name, count in zip(dataset.behaviours, counts, strict=True) if count]
