"""Roll-outs: sessions that are simulated to their end, and their true rewards."""

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
MAX_STEPS = 1000  # practically unreachable; a limit for policies that keep visitors forever


@dataclass(frozen=True)
class Mean:
    """A mean over sessions with its 95 % interval."""

    mean: float
    low: float
    high: float

    def as_json(self) -> dict[str, float | None]:
        """Return the mean and the interval, which is null for a single session."""
        known = np.isfinite(self.high)
        return {"mean": self.mean, "low": self.low if known else None, "high": self.high if known else None}


def mean_with_interval(values: Doubles) -> Mean:
    """Return the mean over sessions with its normal 95 % interval."""
    mean = float(values.mean())
    error = NORMAL * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("inf")
    return Mean(mean, mean - error, mean + error)


@dataclass(frozen=True)
class Rollout:
    """The results of simulated sessions.

    Two roll-outs with the same shop, seed and population have the same visitors in the same rows.
    """

    world: str
    shop_seed: int
    k: int
    policy: str
    play: str  # "topk": the best k items; "sample": k items sampled without replacement
    skip_recent: int  # how many of the visitor's last picks were ranked last
    seed: int
    population: int  # the number of visitors that the seed generates; the first N of them were simulated
    gamma: float
    rewards: Doubles  # [N] undiscounted
    discounted: Doubles  # [N] discounted by γ per list
    lengths: Doubles  # [N] picks
    steps: Doubles  # [N] lists
    bought: Doubles  # [N] purchases
    cut: float  # share of sessions that were cut off after max_steps

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
            "skip_recent": self.skip_recent,
            "world": self.world,
            "seed": self.shop_seed,
            "k": self.k,
            "sessions": len(self),
            "population": self.population,
            "rollout_seed": self.seed,
            "reward": self.reward.as_json(),
            "discounted": {"gamma": self.gamma, **mean_with_interval(self.discounted).as_json()},
            "length": self.length.as_json(),
            "steps": mean_with_interval(self.steps).as_json(),
            "purchases": self.purchases.as_json(),
            "cut": self.cut,
        }


def paired_difference(a: Rollout, b: Rollout) -> Mean:
    """Return the mean difference of the rewards per session, a minus b, over the same visitors.

    Raises:
        InputError: If the two roll-outs have different visitors.
    """
    visitors = [(one.world, one.shop_seed, one.seed, one.population, len(one)) for one in (a, b)]
    if visitors[0] != visitors[1]:
        raise InputError("The roll-outs have different visitors; world, seeds and number of sessions must be equal.")
    return mean_with_interval(a.rewards - b.rewards)


class SessionTotals:
    """The running totals of each session."""

    def __init__(self, sessions: int, gamma: float, device: torch.device) -> None:
        self.gamma = gamma
        self.sums = torch.zeros(5, sessions, dtype=torch.double, device=device)

    def add(self, rows: Tensor, number: int, result: Step) -> None:
        """Add the results of step `number` for the sessions `rows`."""
        reward = result.reward
        picked = result.behaviour < len(BEHAVIOURS)
        bought = result.behaviour == BEHAVIOURS.index("buy")
        parts = (reward, self.gamma**number * reward, picked, torch.ones_like(picked), bought)
        self.sums[:, rows] += torch.stack([part.double() for part in parts])

    def arrays(self) -> list[Doubles]:
        """Return rewards, discounted rewards, picks, lists and purchases of each session."""
        return list(self.sums.cpu().numpy())


def run_sessions(
    dynamics: Dynamics,
    player: Player,
    sessions: int,
    seed: int,
    max_steps: int,
    watch: Watch,
    progress: Progress | None = None,
    first: int | None = None,
) -> Tensor:
    """Simulate sessions until the visitors leave.

    Args:
        dynamics: The shop's equations.
        player: The policy that makes the lists.
        sessions: The number of visitors.
        seed: The seed of the visitors and of all random numbers.
        max_steps: The largest number of lists per session.
        watch: Called after every step with (sessions, step, lists, visitors before the step, results).
        progress: Called after every step with (sessions that have ended, sessions).
        first: Simulate only this many of the visitors; None for all.

    Returns:
        The sessions that had not ended after `max_steps`.
    """
    simulated = sessions if first is None else first
    visitors = dynamics.arrive(sessions, seed)[slice(simulated)]
    player.begin(sessions, seed)
    rows = torch.arange(simulated, device=dynamics.device)
    for number in range(max_steps):
        if not len(rows):
            break
        uniforms = outcome_uniforms(seed, number, sessions, dynamics.device, dynamics.items.worth.dtype)[:, rows]
        lists = player.offer(visitors, rows, number)
        result = dynamics.step(visitors, lists, uniforms)
        player.observe_step(rows, result)
        watch(rows, number, lists, visitors, result)
        rows, visitors = rows[~result.leaves], result.visitors[~result.leaves]
        if progress is not None:
            progress(simulated - len(rows), simulated)
    return rows
