"""State-marginal weights: products of ratios that are replaced by their mean in each class of states.

The weight of decision t multiplies all ratios since the start of the session, so its variance may grow exponentially
with t. Earlier ratios matter only through the state that they led to. State-marginal weights therefore average them:

    w_t = m_{t−L+1} ρ_{t−L+1} … ρ_t         m_u = mean of w_{u−1} over the sessions in the same class at step u
                                            m_u = 1 for u ≤ 0

m_u estimates how much more often the policy than the log is in a class of states at step u (marginalised importance
sampling, Xie et al. 2019; spliced with the last L ratios as in SOPE, Yuan et al. 2021). With L at least as large as the
longest session, w_t is the full product. Sessions that have ended form a class of their own and keep their last weight,
so that a policy gets credit for keeping visitors.

The weights are exact if all states of a class have the same value under the policy, for instance if the class is the
state. Otherwise earlier decisions that led to better states *within* a class get no credit.

The means depend on the sessions, so each bootstrap resample repeats them (`SplicedSums`). Its influences are
derivatives of the estimate by the weight of each session; they are computed backwards through all steps.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from offrec.estimation.trajectories import MAX_LOG_WEIGHT
from offrec.types import Doubles, Longs

if TYPE_CHECKING:
    from offrec.estimation.estimators import SessionTerms

MAX_ELEMENTS = 200_000  # decisions times resamples per part, which then stay in the cache


@dataclass(frozen=True)
class Splice:
    """Everything that determines the weights of resampled sessions.

    Args:
        offsets: [S + 1] first decision of each session.
        state: [D] class of the state before each decision; classes of different steps are different.
        last_ratios: The number L of ratios that are not averaged, at least 1.
        log_ratio: [D] log π / b of each decision.
        cap: Largest weight.
    """

    offsets: Longs
    state: Longs
    last_ratios: int
    log_ratio: Doubles
    cap: float = np.inf

    @property
    def limit(self) -> float:
        """The cap, or a number whose products are finite."""
        return min(self.cap, float(np.exp(MAX_LOG_WEIGHT)))

    @cached_property
    def order(self) -> Longs:
        """[D] the decisions sorted by step, then by class."""
        return np.lexsort((self.state, self.step))

    @cached_property
    def position(self) -> Longs:
        """[D] place of each decision in `order`."""
        position = np.empty_like(self.order)
        position[self.order] = np.arange(len(self.order))
        return position

    @cached_property
    def step(self) -> Longs:
        """[D] 0 for the first decision of a session, then 1, 2, …"""
        lengths = np.diff(self.offsets)
        return np.arange(len(self.state)) - np.repeat(self.offsets[:-1], lengths)

    @cached_property
    def session(self) -> Longs:
        """[D] the session of each decision of `order`."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))[self.order]

    @cached_property
    def factor(self) -> Doubles:
        """[D] product of the last L ratios at each decision of `order`."""
        total = self.log_ratio.copy()
        for back in range(1, min(self.last_ratios, len(self.bounds) - 1)):
            later = self.step >= back
            total[later] += self.log_ratio[np.flatnonzero(later) - back]
        return np.exp(np.minimum(total, MAX_LOG_WEIGHT))[self.order]

    @cached_property
    def bounds(self) -> Longs:
        """[T + 1] first place of each step in `order`."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.step))]).astype(np.int64)

    @cached_property
    def previous(self) -> Longs:
        """[D] place of the decision before each decision of `order`; its own place at step 0."""
        return self.position[self.order - (self.step[self.order] > 0)]

    @cached_property
    def averaged(self) -> Longs:
        """[D] place of the decision t − L + 1, or 0, of the same session, for each decision t of `order`."""
        return self.position[self.order - np.minimum(self.step[self.order], self.last_ratios - 1)]

    @cached_property
    def classes(self) -> list[tuple[Longs, Longs]]:
        """[T] the first place of each class within its step, and the class of each place."""
        result = []
        for first, last in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            state = self.state[self.order[first:last]]
            starts = np.flatnonzero(np.concatenate([[True], state[1:] != state[:-1]]))
            result.append((starts, np.cumsum(np.isin(np.arange(last - first), starts)) - 1))
        return result

    def weights(self) -> Doubles:
        """[D] the weight of each decision."""
        weight = self.forward(np.ones((len(self.offsets) - 1, 1)))[0][:, 0]
        return np.asarray(weight[self.position])

    def forward(self, counts: Doubles) -> tuple[Doubles, Doubles]:
        """[D, b] weights and class means, in the order of `order`, if session i occurs counts[i] [S, b] times."""
        weight = np.empty((len(self.state), counts.shape[1]))
        mean = np.ones_like(weight)
        for step, (starts, own) in enumerate(self.classes):
            rows = slice(self.bounds[step], self.bounds[step + 1])
            if step:
                often = counts[self.session[rows]]
                total = np.add.reduceat(often * weight[self.previous[rows]], starts, 0)
                mean[rows] = _divide(total, np.add.reduceat(often, starts, 0))[own]
            weight[rows] = np.minimum(mean[self.averaged[rows]] * self.factor[rows, None], self.limit)
        return weight, mean


class SplicedSums:
    """Estimates of resampled sessions with state-marginal weights, and the influence of each session on them.

    It has the interface of `offrec.estimation.interval.ResampledSums`.
    """

    is_normalised = True

    def __init__(self, terms: "SessionTerms", splice: Splice) -> None:
        self.plain, self.splice, self.sessions = terms.base, splice, len(terms)
        assert terms.increment is not None
        self.increment = terms.increment[splice.order, None]  # [D, 1]
        lengths = np.diff(terms.offsets)
        self.is_last = (splice.step == np.repeat(lengths, lengths) - 1)[splice.order]
        self.unseen = np.flatnonzero(lengths == 0)  # sessions without decisions, of weight 1

    def __call__(self, counts: Doubles) -> tuple[Doubles, Doubles]:
        """[b] estimates, and [b, S] S times their derivative by the share of each session."""
        size = max(1, MAX_ELEMENTS // max(1, len(self.increment)))
        parts = [self._part(counts[first : first + size].T) for first in range(0, len(counts), size)]
        return np.concatenate([value for value, _ in parts]), np.concatenate([influence.T for _, influence in parts])

    def _part(self, counts: Doubles) -> tuple[Doubles, Doubles]:
        """[b] estimates and [S, b] influences for the counts [S, b]."""
        splice = self.splice
        weight, mean = splice.forward(counts)
        gain, total = self._step_sums(counts, weight)
        inverse = _divide(np.full_like(total, self.sessions), total)
        slope = gain * inverse**2 / self.sessions
        later = np.cumsum(slope[::-1], 0)[::-1] - slope  # slopes of the steps after each one
        value = self.plain @ counts / self.sessions
        influence = self.plain[:, None] - value
        influence[self.unseen] -= slope.sum(0)
        slopes_of_means = np.zeros_like(weight)
        slopes_of_weights = np.zeros_like(weight)  # those that come from class means
        for step in reversed(range(len(splice.classes))):
            rows = slice(splice.bounds[step], splice.bounds[step + 1])
            session, (starts, own) = splice.session[rows], splice.classes[step]
            often = counts[session]
            own_slope = self.increment[rows] * inverse[step] - slope[step] - self.is_last[rows, None] * later[step]
            change = own_slope * weight[rows]
            if not step:
                influence[session] += change
                continue
            slope_of_weight = often * own_slope + slopes_of_weights[rows]
            if step >= splice.last_ratios:
                slope_of_weight *= splice.factor[rows, None]
                slopes_of_means[splice.averaged[rows]] = slope_of_weight * (weight[rows] < splice.limit)
            # All sessions of a class share its mean.
            of_class = np.add.reduceat(slopes_of_means[rows], starts, 0)
            of_member = _divide(of_class, np.add.reduceat(often, starts, 0))[own]
            before = splice.previous[rows]
            influence[session] += change + of_member * (weight[before] - mean[rows])
            slopes_of_weights[before] = often * of_member
        return value + (gain * inverse / self.sessions).sum(0), influence

    def _step_sums(self, counts: Doubles, weight: Doubles) -> tuple[Doubles, Doubles]:
        """[T, b] sums over sessions of γ^t w δ, and of the weights, with the last ones of ended sessions."""
        splice, steps = self.splice, len(self.splice.classes)
        gain, total = np.empty((steps, counts.shape[1])), np.empty((steps, counts.shape[1]))
        ended = counts[self.unseen].sum(0)
        for step in range(steps):
            rows = slice(splice.bounds[step], splice.bounds[step + 1])
            weighted = counts[splice.session[rows]] * weight[rows]
            gain[step] = (weighted * self.increment[rows]).sum(0)
            total[step] = weighted.sum(0) + ended
            ended = ended + weighted[self.is_last[rows]].sum(0)
        return gain, total


def _divide(values: Doubles, divisor: Doubles) -> Doubles:
    return np.divide(values, divisor, out=np.zeros_like(values), where=divisor > 0)
