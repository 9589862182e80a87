"""Logged sessions as the input of an estimator: one number per decision and column.

Decision t of a session has the ratio ρ_t = π(list | s) / b(list | s) and the weight w_t = Π_{u ≤ t} ρ_u. After the end
of a session the reward is 0 and the ratio is 1, so the weight keeps its last value. Mean weights at step t are taken
over all sessions, ended ones included; their expectation is 1.
"""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from offrec.errors import InputError
from offrec.types import Doubles, Longs

MAX_LOG_WEIGHT = 230.0  # the square of e^230 still fits into a double


@dataclass(frozen=True)
class Trajectories:
    """Decisions of logged sessions as flat arrays; session s has the decisions offsets[s] … offsets[s + 1] − 1.

    There are S sessions and D decisions. A session without decisions earns 0 under every policy and counts in every
    mean. All columns are float64. Columns that are None are unknown; estimators that need them raise `InputError`.
    """

    offsets: Longs  # [S + 1], starts at 0
    reward: Doubles  # [D]
    log_pi: Doubles | None = None  # [D] log π(list | s) of the evaluated policy; −∞ if it never shows the list
    log_b: Doubles | None = None  # [D] log b(list | s) of the logging policy, logged or estimated
    q: Doubles | None = None  # [D] Q^π(s, a) of the logged decision
    v: Doubles | None = None  # [D] V^π(s) = E_π Q^π(s, ·)
    start_value: Doubles | None = None  # [S] V^π of the first state, 0 without decisions; None to derive it from v
    rare_mass: Doubles | None = None  # [D] probability that π assigns to items that b rarely shows
    log_ratios: dict[str, Doubles] = field(
        default_factory=dict
    )  # weighting → [D] log ratio, in place of π / b of lists
    controls: dict[str, Doubles] = field(
        default_factory=dict
    )  # weighting → [D] control variate: see `control_variates`
    reward_by_behaviour: dict[str, Doubles] = field(default_factory=dict)  # behaviour → [D] its part of the reward
    state: Longs | None = None  # [D] class of the state before the decision, for state-marginal weights
    is_averaged: bool = False  # whether log_pi is that of means over contexts that the log does not distinguish

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def decisions(self) -> int:
        """Number of decisions D."""
        return len(self.reward)

    @cached_property
    def lengths(self) -> Longs:
        """[S] decisions per session."""
        return np.diff(self.offsets)

    @cached_property
    def session(self) -> Longs:
        """[D] the session of each decision."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def step(self) -> Longs:
        """[D] 0 for the first decision of a session, then 1, 2, …"""
        return np.arange(self.decisions) - np.repeat(self.offsets[:-1], self.lengths)

    @property
    def start_values(self) -> Doubles | None:
        """[S] V^π of the first state of each session."""
        if self.start_value is not None or self.v is None:
            return self.start_value
        values = np.zeros(len(self))
        values[self.lengths > 0] = self.v[self.offsets[:-1][self.lengths > 0]]
        return values

    def returns(self, gamma: float) -> Doubles:
        """[S] discounted reward that each session earned."""
        return np.bincount(self.session, gamma**self.step * self.reward, minlength=len(self)).astype(np.float64)

    def with_reward_of(self, behaviour: str) -> "Trajectories":
        """Count only the reward of one behaviour. Q and V are dropped, because they belong to the whole reward."""
        if behaviour not in self.reward_by_behaviour:
            known = ", ".join(self.reward_by_behaviour) or "none"
            raise InputError(f"The reward has no component for behaviour {behaviour!r}; known behaviours: {known}.")
        return self._with_reward(self.reward_by_behaviour[behaviour])

    def with_unit_reward(self) -> "Trajectories":
        """Give each decision the reward 1, so that the estimate is the number of decisions per session."""
        return self._with_reward(np.ones(self.decisions))

    def _with_reward(self, reward: Doubles) -> "Trajectories":
        return replace(self, reward=reward, q=None, v=None, start_value=None, controls={}, reward_by_behaviour={})

    def select(self, sessions: Longs) -> "Trajectories":
        """Select sessions by number; a number may occur more than once."""
        lengths = self.lengths[sessions]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        index = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[:-1][sessions], lengths)
        columns = {name: values[index] for name, values in _columns(self).items()}
        start_value = None if self.start_value is None else self.start_value[sessions]
        by_behaviour = {name: part[index] for name, part in self.reward_by_behaviour.items()}
        ratios = {name: part[index] for name, part in self.log_ratios.items()}
        controls = {name: part[index] for name, part in self.controls.items()}
        return Trajectories(
            offsets,
            start_value=start_value,
            state=None if self.state is None else self.state[index],
            log_ratios=ratios,
            controls=controls,
            reward_by_behaviour=by_behaviour,
            is_averaged=self.is_averaged,
            **columns,
        )


def blended(trajectories: Trajectories, share: float) -> Trajectories:
    """Return the trajectories of a blend: each decision is made by π with probability `share`, otherwise by b.

    A blend has the ratio share · ρ + 1 − share at every decision. Q and V are dropped, because a blend needs the
    logging policy's probabilities of unshown lists.

    Args:
        trajectories: Those of π itself, with log_pi and log_b.
        share: Above 0 and at most 1; with 1 the trajectories are returned unchanged.

    Raises:
        InputError: If `share` is out of range or the probabilities are unknown.
    """
    if not 0 < share <= 1:
        raise InputError(f"The share of a blend must be above 0 and at most 1; got {share}.")
    if share == 1:
        return trajectories
    log_pi, log_b = trajectories.log_pi, trajectories.log_b
    if log_pi is None or log_b is None:
        raise InputError("A blend needs π(list | s) and b(list | s), which are unknown; estimate the policy alone.")
    rare = trajectories.rare_mass
    return replace(
        trajectories,
        log_pi=log_b + blend_ratio(log_pi - log_b, share),
        rare_mass=None if rare is None else share * rare,
        log_ratios={name: blend_ratio(ratio, share) for name, ratio in trajectories.log_ratios.items()},
        q=None,
        v=None,
        start_value=None,
        controls={},
    )


def blend_ratio(log_ratio: Doubles, share: float) -> Doubles:
    """[D] log(share · ρ + 1 − share), the ratio of a blend."""
    if share == 1:
        return log_ratio
    return np.asarray(np.logaddexp(np.log(share) + log_ratio, np.log1p(-share)))


def log_ratios_of(trajectories: Trajectories) -> Doubles:
    """[D] log π(list | s) − log b(list | s), or raise `InputError` if they are unknown."""
    if trajectories.log_pi is None or trajectories.log_b is None:
        raise InputError(
            "Importance weights need π(list | s) and b(list | s); a policy that shows its top k has no list "
            "probabilities, so use the estimator direct."
        )
    return trajectories.log_pi - trajectories.log_b


def log_weights(trajectories: Trajectories) -> Doubles:
    """[D] log w_t = Σ_{u ≤ t} log π(list_u | s_u) − log b(list_u | s_u).

    Args:
        trajectories: Logged sessions with both probabilities.
    """
    total = log_ratios_of(trajectories)
    order = np.argsort(trajectories.step, kind="stable")
    bounds = np.cumsum(np.bincount(trajectories.step, minlength=1))
    for first, last in pairwise(bounds):  # one sum over all sessions would lose digits
        current = order[first:last]
        total[current] += total[current - 1]
    return np.minimum(total, MAX_LOG_WEIGHT)


def weights(trajectories: Trajectories, cap: float = np.inf) -> tuple[Doubles, Doubles]:
    """Return min(w_t, cap) [D], and the same value one decision earlier [D], which is 1 at the first decision."""
    after = np.minimum(np.exp(log_weights(trajectories)), cap)
    return after, one_earlier(after, trajectories.step)


def one_earlier(weight: Doubles, step: Longs) -> Doubles:
    """[D] the weight [D] one decision earlier, which is 1 at the first decision."""
    before = np.ones_like(weight)
    before[1:] = np.where(step[1:] > 0, weight[:-1], 1.0)
    return before


def _columns(trajectories: Trajectories) -> dict[str, Doubles]:
    """Return the known columns with one number per decision."""
    columns = {column.name: getattr(trajectories, column.name) for column in fields(trajectories)}
    others = ("offsets", "start_value", "log_ratios", "controls", "reward_by_behaviour", "state", "is_averaged")
    return {name: values for name, values in columns.items() if values is not None and name not in others}


def _check(trajectories: Trajectories) -> None:
    offsets, decisions = trajectories.offsets, len(trajectories.reward)
    if len(offsets) < 2 or offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != decisions:
        raise InputError(
            f"offsets end with {offsets[-3:].tolist()} for {decisions} decisions; they must start at 0, never "
            "decrease and end at the number of decisions. Pass at least one session."
        )
    parts = {f"reward_by_behaviour[{name!r}]": part for name, part in trajectories.reward_by_behaviour.items()}
    ratios = {f"log_ratios[{name!r}]": part for name, part in trajectories.log_ratios.items()}
    controls = {f"controls[{name!r}]": part for name, part in trajectories.controls.items()}
    for name, values in {**_columns(trajectories), **parts, **ratios, **controls}.items():
        if values.shape != (decisions,):
            raise InputError(f"{name} has shape {values.shape}; expected ({decisions},), one value per decision.")
        valid = np.isfinite(values) | ((values == -np.inf) & (name == "log_pi" or name in ratios))
        if not valid.all():
            raise InputError(f"{name} is {values[~valid][0]} at decision {int(np.argmin(valid))}; it must be finite.")
    if trajectories.state is not None and trajectories.state.shape != (decisions,):
        raise InputError(f"state has shape {trajectories.state.shape}; expected ({decisions},), one per decision.")
    start_value = trajectories.start_value
    if start_value is not None and start_value.shape != (len(trajectories),):
        raise InputError(f"start_value has shape {start_value.shape}; expected ({len(trajectories)},).")
