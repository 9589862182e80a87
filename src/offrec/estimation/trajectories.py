"""What an estimate is made from: logged sessions as one number a decision, never [events × items].

A decision t of a session has the ratio ρ = π(list | s) / b(list | s) and the weight w = Π_{u ≤ t} ρ_u. Where a session
is over, nothing depends on the policy any more: its reward is 0, its ratio 1, so its weight stays what it last was.
Means of weights at step t are over all sessions, those that are over among them, and have the expectation 1.
"""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from offrec.errors import InputError
from offrec.types import Longs

Doubles = NDArray[np.float64]

BEYOND = 230.0  # log of the largest weight that is told from larger ones: its square is still a double


@dataclass(frozen=True)
class Trajectories:
    """Decisions of logged sessions as flat arrays: session s holds decisions offsets[s] … offsets[s + 1] − 1, in time.

    S sessions, D decisions. A session may be empty: it earns nothing, whatever the policy, and counts in every mean.
    Float64 throughout; what is None is not known, and the estimators that need it refuse.
    """

    offsets: Longs  # [S + 1], starts at 0
    reward: Doubles  # [D] in the reward's own units
    log_pi: Doubles | None = None  # [D] log π(list | s) of the policy judged; −∞ where it never shows that list
    log_b: Doubles | None = None  # [D] the same of the policy that logged, given or estimated
    q: Doubles | None = None  # [D] Q^π(s, a) of the logged decision
    v: Doubles | None = None  # [D] V^π(s) = E_π Q^π(s, ·)
    start: Doubles | None = (
        None  # [S] V^π before each session's first decision; 0 for an empty one. None: it is v there
    )
    rare: Doubles | None = None  # [D] π's mass at s on items that π_b hardly ever takes
    log_marginal: Doubles | None = None  # [D] log of π(c | s) / b(c | s), c the cluster of the logged item
    by: dict[str, Doubles] = field(default_factory=dict)  # behaviour → [D] its part of the reward

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def decisions(self) -> int:
        return len(self.reward)

    @cached_property
    def lengths(self) -> Longs:
        """[S] decisions of each session."""
        return np.diff(self.offsets)

    @cached_property
    def session(self) -> Longs:
        """[D] which session each decision belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def step(self) -> Longs:
        """[D] 0 for a session's first decision, then 1, …"""
        return np.arange(self.decisions) - np.repeat(self.offsets[:-1], self.lengths)

    @property
    def horizon(self) -> int:
        """Decisions of the longest session."""
        return int(self.lengths.max(initial=0))

    @property
    def starts(self) -> Doubles | None:
        """[S] V^π where each session starts."""
        if self.start is not None or self.v is None:
            return self.start
        found = np.zeros(len(self))
        found[self.lengths > 0] = self.v[self.offsets[:-1][self.lengths > 0]]
        return found

    def earning(self, behaviour: str) -> "Trajectories":
        """The same decisions, of whose reward only one behaviour's part counts. Q and V were of the whole reward."""
        if behaviour not in self.by:
            raise InputError(
                f"No part of the reward is called {behaviour!r}; there are {', '.join(self.by) or 'none'}."
            )
        return replace(self, reward=self.by[behaviour], q=None, v=None, start=None, by={})

    def counting(self) -> "Trajectories":
        """The same decisions, each worth 1: what is estimated is how many decisions a session has."""
        return replace(self, reward=np.ones(self.decisions), q=None, v=None, start=None, by={})

    def of(self, sessions: Longs) -> "Trajectories":
        """Some of the sessions, or some several times."""
        lengths = self.lengths[sessions]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        index = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[:-1][sessions], lengths)
        columns = {name: values[index] for name, values in _columns(self).items()}
        start = None if self.start is None else self.start[sessions]
        return Trajectories(offsets, start=start, by={name: part[index] for name, part in self.by.items()}, **columns)


def log_weights(steps: Trajectories) -> Doubles:
    """[D] log of w = Π_{u ≤ t} π(list_u | s_u) / b(list_u | s_u)."""
    if steps.log_pi is None or steps.log_b is None:
        raise InputError(
            "Weights need the policy's and the log's probability of each list: a policy that is played by its top k "
            "has none, so only the direct method can judge it."
        )
    ratio = steps.log_pi - steps.log_b
    order = np.argsort(steps.step, kind="stable")
    until = np.cumsum(np.bincount(steps.step, minlength=1))
    for first, last in pairwise(until):  # a sum over all sessions at once would lose digits
        now = order[first:last]
        ratio[now] += ratio[now - 1]
    return np.minimum(ratio, BEYOND)


def weights(steps: Trajectories, cap: float = np.inf) -> tuple[Doubles, Doubles]:
    """[D] and [D]: min(w_t, cap) and the same one decision earlier, which is 1 at a session's first."""
    after = np.minimum(np.exp(log_weights(steps)), cap)
    before = np.ones_like(after)
    before[1:] = np.where(steps.step[1:] > 0, after[:-1], 1.0)
    return after, before


def _columns(steps: Trajectories) -> dict[str, Doubles]:
    """All that is known of decisions, by its name, but for the parts of the reward."""
    found = {one.name: getattr(steps, one.name) for one in fields(steps)}
    return {n: v for n, v in found.items() if v is not None and n not in ("offsets", "start", "by")}


def _check(steps: Trajectories) -> None:
    offsets = steps.offsets
    if len(offsets) < 2 or offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != len(steps.reward):
        raise InputError(
            f"{len(steps.reward)} decisions do not fill sessions that end at {offsets[1:].tolist()[-3:]}: offsets "
            "start at 0, never fall, and end at the number of decisions; give at least one session."
        )
    named = {**_columns(steps), **{f"by[{name!r}]": part for name, part in steps.by.items()}}
    for name, values in named.items():
        if values.shape != (steps.decisions,):
            raise InputError(f"{name} has the shape {values.shape}; there are {steps.decisions} decisions.")
        fine = np.isfinite(values) | ((values == -np.inf) & (name in ("log_pi", "log_marginal")))
        if not fine.all():
            raise InputError(f"{name} is {values[~fine][0]} at decision {int(np.argmin(fine))}; it must be finite.")
    if steps.start is not None and steps.start.shape != (len(steps),):
        raise InputError(f"start has the shape {steps.start.shape}; there are {len(steps)} sessions.")
