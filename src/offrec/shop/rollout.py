"""Roll-outs: sessions played to their end, and what they truly earned."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offrec.errors import InputError
from offrec.shop.players import Player
from offrec.shop.randomness import outcome_uniforms
from offrec.shop.visitors import BEHAVIOURS, Dynamics, Step, Visitors

Doubles = NDArray[np.float64]
NORMAL = 1.959964  # half the width of a 95 % interval, in standard errors
Watch = Callable[[Tensor, int, Tensor, Visitors, Step], None]
Progress = Callable[[int, int], None]  # (sessions that have ended, sessions)
MAX_STEPS = 1000  # nobody stays so long by these worlds' chances; what a policy for ever would earn must end somewhere


@dataclass(frozen=True)
class Mean:
    """A mean over sessions with its 95 % interval."""

    mean: float
    low: float
    high: float

    def as_json(self) -> dict[str, float | None]:
        """One session alone has no interval: null."""
        known = np.isfinite(self.high)
        return {"mean": self.mean, "low": self.low if known else None, "high": self.high if known else None}


def mean_with_interval(values: Doubles) -> Mean:
    mean = float(values.mean())
    error = NORMAL * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("inf")
    return Mean(mean, mean - error, mean + error)


@dataclass(frozen=True)
class Rollout:
    """What sessions earned. Rows of two roll-outs with equal shop, seed and number are the same visitors."""

    world: str
    shop_seed: int
    k: int
    policy: str
    play: str  # "topk": its best k; "sample": drawn without replacement
    seed: int
    gamma: float
    rewards: Doubles  # [N] undiscounted
    discounted: Doubles  # [N] γ^t a step, the t-th list counting from 0
    lengths: Doubles  # [N] picks
    steps: Doubles  # [N] lists, also those without a pick
    bought: Doubles  # [N] purchases
    cut: float  # share of sessions that had not ended after max_steps

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def reward(self) -> Mean:
        return mean_with_interval(self.rewards)

    @property
    def discount(self) -> Mean:
        return mean_with_interval(self.discounted)

    @property
    def length(self) -> Mean:
        return mean_with_interval(self.lengths)

    @property
    def purchases(self) -> Mean:
        return mean_with_interval(self.bought)

    def as_json(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "play": self.play,
            "world": self.world,
            "seed": self.shop_seed,
            "k": self.k,
            "sessions": len(self),
            "rollout_seed": self.seed,
            "reward": self.reward.as_json(),
            "discounted": {"gamma": self.gamma, **mean_with_interval(self.discounted).as_json()},
            "length": self.length.as_json(),
            "steps": mean_with_interval(self.steps).as_json(),
            "purchases": self.purchases.as_json(),
            "cut": self.cut,
        }


def paired_difference(a: Rollout, b: Rollout) -> Mean:
    """By how much a's reward a session is above b's, the same visitors met with the same luck."""
    if (a.world, a.shop_seed, a.seed, len(a)) != (b.world, b.shop_seed, b.seed, len(b)):
        raise InputError("These roll-outs did not meet the same visitors: world, seeds and sessions must be equal.")
    return mean_with_interval(a.rewards - b.rewards)


class SessionTotals:
    """What each session has come to so far."""

    def __init__(self, sessions: int, gamma: float, device: torch.device) -> None:
        self.gamma = gamma
        self.sums = torch.zeros(5, sessions, dtype=torch.double, device=device)

    def add(self, rows: Tensor, number: int, found: Step) -> None:
        reward = found.reward
        picked = found.behaviour < len(BEHAVIOURS)
        bought = found.behaviour == BEHAVIOURS.index("buy")
        parts = (reward, self.gamma**number * reward, picked, torch.ones_like(picked), bought)
        self.sums[:, rows] += torch.stack([part.double() for part in parts])

    def arrays(self) -> list[Doubles]:
        return list(self.sums.cpu().numpy())


def run_sessions(
    dynamics: Dynamics,
    player: Player,
    sessions: int,
    seed: int,
    max_steps: int,
    watch: Watch,
    progress: Progress | None = None,
) -> Tensor:
    """Sessions from arrival to leaving; `watch(rows, step, lists, visitors, what came of it)` sees every step.

    Returns the sessions that had not ended after `max_steps`.
    """
    visitors = dynamics.arrive(sessions, seed)
    player.begin(sessions, seed)
    rows = torch.arange(sessions, device=dynamics.device)
    for number in range(max_steps):
        if not len(rows):
            break
        fate = outcome_uniforms(seed, number, sessions, dynamics.device, dynamics.items.worth.dtype)[:, rows]
        lists = player.offer(visitors, rows, number)
        found = dynamics.step(visitors, lists, fate)
        player.observe_step(rows, found)
        watch(rows, number, lists, visitors, found)
        rows, visitors = rows[~found.leaves], found.visitors[~found.leaves]
        if progress is not None:
            progress(sessions - len(rows), sessions)
    return rows
