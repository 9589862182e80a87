"""The reward of every event: its number in the log's reward column or, without one, the reward of its behaviour."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.types import Doubles, Floats, Longs, Sessions

REWARDS = {"view": 0.2, "click": 0.2, "cart": 1.0, "buy": 1.0}  # Xin et al. 2020: 0.2 for a click, 1 for a purchase

BLOCK_EVENTS = 1 << 22  # events whose rewards are computed at once to find out whether there are any
PSEUDO_EVENTS = 5.0  # with the mean reward of the behaviour, in the mean reward of an item


def event_rewards(
    dataset: Dataset, by_behaviour: Mapping[str, float], *, needed: bool = True, parts: Sequence[slice] | None = None
) -> Floats:
    """Return the reward of every event of a dataset.

    An event with a number in the reward column of `offrec prepare --reward` has this number as its reward. Every other
    event has the reward of its behaviour.

    Args:
        dataset: The dataset.
        by_behaviour: Rewards by behaviour; `REWARDS` contains the defaults.
        needed: Whether a behaviour without a reward is an error. If not, its reward is 0.
        parts: Ranges of the events to compute; None: all. Other events have reward 0 and take no memory.

    Returns:
        [E] rewards of all events, in the order of the dataset.

    Raises:
        InputError: If a behaviour has no reward, a reward is for an unknown behaviour or changes no event, or all
            rewards are 0.
    """
    fixed = behaviour_rewards(dataset, by_behaviour, needed=needed)
    if parts is None:
        rewards = _rewards_of(dataset, fixed, slice(None))
        has_reward = bool(rewards.any())
    else:
        rewards = np.zeros(len(dataset.sessions.items), np.float32)  # pages that are not written take no memory
        for part in parts:
            rewards[part] = _rewards_of(dataset, fixed, part)
        has_reward = _has_reward(dataset, fixed)
    if needed and len(rewards) and not has_reward:
        names = ", ".join(dataset.behaviours)
        raise InputError(f"Every event ({names}) has reward 0; set another one, such as --set reward.NAME=1.")
    return rewards


def _rewards_of(dataset: Dataset, fixed: Floats, part: slice) -> Floats:
    rewards = fixed[np.asarray(dataset.sessions.behaviours[part])]
    if dataset.reward_column is not None:
        column = np.asarray(dataset.reward_column[part])
        rewards = np.where(np.isnan(column), rewards, column)
    return rewards


def _has_reward(dataset: Dataset, fixed: Floats) -> bool:
    """Return whether any event has a reward other than 0, without computing all rewards at once."""
    starts = range(0, len(dataset.sessions.items), BLOCK_EVENTS)
    return any(bool(_rewards_of(dataset, fixed, slice(first, first + BLOCK_EVENTS)).any()) for first in starts)


def event_rewards_or_none(
    dataset: Dataset, by_behaviour: Mapping[str, float], *, parts: Sequence[slice] | None = None
) -> Floats | None:
    """Return `event_rewards`, or None if a behaviour has no reward or all rewards are 0.

    Rewards of other behaviours are ignored: a run may be evaluated on a later log that lacks one of its behaviours.
    """
    if _names_without_reward(dataset, by_behaviour):
        return None
    used = {name: by_behaviour[name] for name in _names_without_number(dataset) if name in by_behaviour}
    rewards = event_rewards(dataset, used, needed=False, parts=parts)
    fixed = behaviour_rewards(dataset, used, needed=False)
    return rewards if rewards.any() or (parts is not None and _has_reward(dataset, fixed)) else None


def behaviour_rewards(dataset: Dataset, by_behaviour: Mapping[str, float], *, needed: bool = True) -> Floats:
    """[behaviours] the reward of an event without a number in the reward column; arguments as in `event_rewards`."""
    _check_names(dataset, by_behaviour)
    if needed and (missing := _names_without_reward(dataset, by_behaviour)):
        raise InputError(f"The behaviour {missing[0]!r} has no reward; set one, such as --set reward.{missing[0]}=0.2.")
    known = {**REWARDS, **by_behaviour}
    return np.array([known.get(name, 0.0) for name in dataset.behaviours], dtype=np.float32)


def item_rewards(
    dataset: Dataset,
    by_behaviour: Mapping[str, float],
    part: slice | None = None,
    add: Callable[[Doubles], Doubles] = lambda own: own,
) -> Floats:
    """Return the mean reward of each item's training events, by behaviour.

    Means of items are shrunk towards that of the behaviour, as if each item had `PSEUDO_EVENTS` events with it.

    Args:
        dataset: The dataset.
        by_behaviour: Rewards by behaviour, for events without a number in the reward column.
        part: The range of items to return; None: all.
        add: Adds the sums of processes that read other training sessions.

    Returns:
        [items, behaviours] or, without a reward column, [behaviours].

    Raises:
        InputError: As in `event_rewards`.
    """
    fixed = behaviour_rewards(dataset, by_behaviour)
    if dataset.reward_column is None:
        return fixed
    sessions, behaviours = dataset.split("train"), len(dataset.behaviours)
    events = slice(int(sessions.offsets[0]), int(sessions.offsets[-1]))
    reward = event_rewards(dataset, by_behaviour, parts=[events])[events].astype(np.float64)
    behaviour = np.asarray(dataset.sessions.behaviours[events]).astype(np.int64)
    count, total = (add(_sums(behaviour, one, behaviours)) for one in (np.ones_like(reward), reward))
    mean = np.where(count > 0, total / np.maximum(1, count), fixed)
    first, last = (0, dataset.n_items) if part is None else (part.start, part.stop)
    item = np.asarray(dataset.sessions.items[events]).astype(np.int64)
    is_own = (item >= first) & (item < last)
    pair, shape = ((item - first) * behaviours + behaviour)[is_own], (last - first, behaviours)
    sums, counts = (
        add(_sums(pair, weights, shape[0] * shape[1])).reshape(shape)
        for weights in (reward[is_own], np.ones(len(pair)))
    )
    return ((sums + PSEUDO_EVENTS * mean) / (counts + PSEUDO_EVENTS)).astype(np.float32)


def _sums(index: Longs, values: Doubles, length: int) -> Doubles:
    return np.bincount(index, values, length).astype(np.float64)


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
