"""The MDP: turn sessions, rewards by behaviour and γ into rewards, discounts, returns. No loss reads γ or `done`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offrec.errors import InputError
from offrec.types import Sessions

Floats = NDArray[np.float32]

REWARDS = {"view": 0.2, "click": 0.2, "cart": 1.0, "buy": 1.0}  # Xin et al. 2020: 0.2 for a click, 1 for a purchase


@dataclass(frozen=True)
class Transitions:
    """The rewards, discounts and returns of all events."""

    reward: Floats  # [E]
    discount: Floats  # [E] γ, or 0 for the last event of a session
    discount_if_ignored: float  # γ: ignoring an item does not change the state, even at the end of a session
    return_to_go: Floats  # [E] discounted sum of rewards from the event to the end of its session


def reward_vector(behaviours: list[str], rewards: dict[str, float], *, needed: bool = True) -> Floats:
    """Return the reward of each behaviour.

    Args:
        behaviours: The behaviours of the dataset, by index.
        rewards: Rewards by behaviour; `REWARDS` contains the defaults.
        needed: Whether a behaviour without a reward is an error. If not, its reward is 0.

    Returns:
        [number of behaviours] rewards in the order of `behaviours`.

    Raises:
        InputError: If a behaviour has no reward, a reward is for an unknown behaviour, or all rewards are 0.
    """
    known = {**REWARDS, **rewards}
    missing = [name for name in behaviours if name not in known]
    if missing and needed:
        raise InputError(f"The behaviour {missing[0]!r} has no reward; set one, such as --set reward.{missing[0]}=0.2.")
    surplus = [name for name in rewards if name not in behaviours]
    if surplus:
        raise InputError(
            f"reward.{surplus[0]} is not a behaviour of the dataset, which has {', '.join(behaviours)}; remove it."
        )
    vector = np.array([known.get(name, 0.0) for name in behaviours], dtype=np.float32)
    if needed and not vector.any():
        raise InputError(f"Every behaviour ({', '.join(behaviours)}) has reward 0; set at least one other reward.")
    return vector


def reward_vector_or_none(behaviours: list[str], rewards: dict[str, float]) -> Floats | None:
    """Return `reward_vector`, or None if a reward is missing or all are 0."""
    known = {**REWARDS, **rewards}
    is_complete = all(name in known for name in behaviours) and any(known[name] for name in behaviours)
    return reward_vector(behaviours, rewards) if is_complete else None


def reward_shift(rewards: Floats) -> float:
    """Return the shift that makes every reward ≤ 0: minus the largest reward.

    Unlike the paper: the shift is an option. It is "without loss of generality" only if all sessions have equal length.
    """
    return -max(0.0, float(rewards.max(initial=0.0)))


def transitions(sessions: Sessions, rewards: Floats, gamma: float) -> Transitions:
    """Compute the transitions of all events of `sessions`.

    Args:
        sessions: The sessions; only their events offsets[0] … offsets[-1] − 1 are used.
        rewards: [number of behaviours] see `reward_vector`.
        gamma: The discount factor γ.

    Raises:
        InputError: If γ is not between 0 and 1.
    """
    if not 0 <= gamma <= 1:
        raise InputError(f"gamma must be between 0 and 1; got {gamma}.")
    base = int(sessions.offsets[0])
    edges = np.unique(np.asarray(sessions.offsets))  # without empty sessions, which have no last event
    last = edges[1:] - 1 - base
    reward = rewards[np.asarray(sessions.behaviours[base : sessions.offsets[-1]])]
    discount = np.full(len(reward), gamma, dtype=np.float32)
    discount[last] = 0.0
    return Transitions(reward, discount, gamma, _return_to_go(reward, last, np.diff(edges), gamma))


def _return_to_go(reward: Floats, last: NDArray[np.int64], length: NDArray[np.int64], gamma: float) -> Floats:
    """Compute G_t = r_t + γ G_{t+1} for all sessions at once, from the last event backwards."""
    return_to_go = reward.astype(np.float64)
    for back in range(1, int(length.max(initial=0))):
        here = last[length > back] - back
        return_to_go[here] += gamma * return_to_go[here + 1]
    return return_to_go.astype(np.float32)
