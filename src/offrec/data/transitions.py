"""The MDP: sessions, a reward for each behaviour and γ, turned into what a learner reads. No loss sees γ or the
session's end.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offrec.errors import InputError
from offrec.types import Sessions

Floats = NDArray[np.float32]

REWARDS = {"view": 0.2, "click": 0.2, "cart": 1.0, "buy": 1.0}  # Xin et al. 2020: 0.2 for a click, 1 for a purchase


@dataclass(frozen=True)
class Transitions:
    reward: Floats  # [E]
    discount: Floats  # [E] γ, or 0 where the session ends
    discount_if_ignored: float  # γ: an ignored item leaves the visitor where they are, also at the session's last step
    return_to_go: Floats  # [E] discounted return from here to the session's end


def reward_vector(behaviours: list[str], rewards: dict[str, float], *, needed: bool = True) -> Floats:
    """[number of behaviours] the reward of each, in the dataset's order. Where none is `needed`, an unknown is 0."""
    known = {**REWARDS, **rewards}
    missing = [name for name in behaviours if name not in known]
    if missing and needed:
        raise InputError(
            f"No reward is known for the behaviour {missing[0]!r}; give one, for example --set reward.{missing[0]}=0.2."
        )
    surplus = [name for name in rewards if name not in behaviours]
    if surplus:
        raise InputError(
            f"reward.{surplus[0]} names a behaviour that the dataset does not have; it has {', '.join(behaviours)}."
        )
    found = np.array([known.get(name, 0.0) for name in behaviours], dtype=np.float32)
    if needed and not found.any():
        raise InputError(f"Every behaviour ({', '.join(behaviours)}) has reward 0; give at least one another reward.")
    return found


def reward_vector_or_none(behaviours: list[str], rewards: dict[str, float]) -> Floats | None:
    """As `reward_vector`; None where one is unknown or all are 0."""
    known = {**REWARDS, **rewards}
    given = all(name in known for name in behaviours) and any(known[name] for name in behaviours)
    return reward_vector(behaviours, rewards) if given else None


def reward_shift(rewards: Floats) -> float:
    """What makes every reward ≤ 0: minus the largest.

    Unlike the paper: an option. "Without loss of generality" it is only where all sessions are equally long.
    """
    return -max(0.0, float(rewards.max(initial=0.0)))


def transitions(sessions: Sessions, rewards: Floats, gamma: float) -> Transitions:
    """Over the events offsets[0] … offsets[-1] − 1 of `sessions`."""
    if not 0 <= gamma <= 1:
        raise InputError(f"gamma is {gamma}; it must lie between 0 and 1.")
    base = int(sessions.offsets[0])
    edges = np.unique(np.asarray(sessions.offsets))  # a session without an event has no last one
    last = edges[1:] - 1 - base
    reward = rewards[np.asarray(sessions.behaviours[base : sessions.offsets[-1]])]
    discount = np.full(len(reward), gamma, dtype=np.float32)
    discount[last] = 0.0
    return Transitions(reward, discount, gamma, _to_go(reward, last, np.diff(edges), gamma))


def _to_go(reward: Floats, last: NDArray[np.int64], length: NDArray[np.int64], gamma: float) -> Floats:
    """G_t = r_t + γ G_{t+1}, one step back in every session at a time."""
    return_to_go = reward.astype(np.float64)
    for back in range(1, int(length.max(initial=0))):
        here = last[length > back] - back
        return_to_go[here] += gamma * return_to_go[here + 1]
    return return_to_go.astype(np.float32)
