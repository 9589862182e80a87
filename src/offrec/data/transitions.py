"""The MDP: turn sessions, rewards and γ into discounts and returns. No loss reads γ or `done`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offrec.data.rewards import split_rewards
from offrec.errors import InputError
from offrec.types import Floats, Sessions


@dataclass(frozen=True)
class Transitions:
    """The rewards, discounts and returns of all events."""

    reward: Floats  # [E]
    discount: Floats  # [E] γ, or 0 for the last event of a session
    discount_if_ignored: float  # γ: ignoring an item does not change the state, even at the end of a session
    return_to_go: Floats  # [E] discounted sum of rewards from the event to the end of its session


def transitions(sessions: Sessions, rewards: Floats | None, gamma: float) -> Transitions:
    """Compute the transitions of all events of `sessions`.

    Args:
        sessions: The sessions; only their events offsets[0] … offsets[-1] − 1 are used.
        rewards: Rewards of all events of the arrays, at least up to offsets[-1]; see `event_rewards`. None: all are 0.
        gamma: The discount factor γ.

    Raises:
        InputError: If γ is not between 0 and 1.
    """
    if not 0 <= gamma <= 1:
        raise InputError(f"gamma must be between 0 and 1; got {gamma}.")
    base = int(sessions.offsets[0])
    edges = np.unique(np.asarray(sessions.offsets))  # without empty sessions, which have no last event
    last = edges[1:] - 1 - base
    reward = np.zeros(sessions.events, np.float32) if rewards is None else split_rewards(sessions, rewards)
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
