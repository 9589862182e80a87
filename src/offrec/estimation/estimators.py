"""The estimators: what a policy would earn in a session, from sessions that another policy logged.

Each is one sum over a session i, whose mean over the S sessions is the estimate. With w the product of the ratios π / b
so far, capped or not, and δ what a decision says beyond what was already expected,

    c_i = base_i + Σ_t γ^t w_it δ_it                          plain
    c_i = base_i + Σ_t γ^t w_it δ_it / mean_j w_jt            normalised: weights of a step are 1 on average

    importance                 base = 0        δ = r                    per-decision importance sampling
    capped                     base = 0        δ = r                    w ≤ cap, √S unless it is given
    self_normalised            base = 0        δ = r                    normalised
    marginal                   base = 0        δ = r                    ratios of clusters, not of items; normalised
    direct                     base = V(s₀)                             no weights
    doubly_robust              base = V(s₀)    δ = r + γ V(s′) − Q(s, a)
    weighted_doubly_robust     base = V(s₀)    δ = r + γ V(s′) − Q(s, a) normalised

V(s′) is 0 after a session's last decision. The mean over j is over all sessions, each with the weight it had last where
it is over by step t: its end is a state that nobody leaves and in which all policies do the same. A mean over the
sessions still there would estimate what a decision earns *given* that the session got so far, which is another thing.
"""

from dataclasses import dataclass, replace

import numpy as np

from offrec.errors import InputError
from offrec.estimation.trajectories import Doubles, Trajectories, weights
from offrec.types import Longs


@dataclass(frozen=True)
class Estimator:
    """What tells one estimator from another."""

    name: str
    weighted: bool = True  # by ratios of probabilities
    modelled: bool = False  # on Q and V
    normalised: bool = False
    capped: bool = False  # also where no cap is given
    marginal: bool = False

    def cap(self, steps: Trajectories, cap: float | None) -> float:
        """The cap in force: weights above √S cost more variance than the bias of cutting them (Ionides 2008)."""
        if cap is not None:
            return cap
        return float(len(steps)) ** 0.5 if self.capped else np.inf


ESTIMATORS = {
    one.name: one
    for one in (
        Estimator("importance"),
        Estimator("capped", capped=True),
        Estimator("self_normalised", normalised=True),
        Estimator("marginal", normalised=True, marginal=True),
        Estimator("direct", weighted=False, modelled=True),
        Estimator("doubly_robust", modelled=True),
        Estimator("weighted_doubly_robust", modelled=True, normalised=True),
    )
}


@dataclass(frozen=True)
class SessionTerms:
    """An estimate before it is summed: all that a resample of sessions needs."""

    offsets: Longs  # [S + 1]
    step: Longs  # [D]
    base: Doubles  # [S]
    gain: Doubles  # [D] γ^t w δ
    weight: Doubles  # [D] w
    normalised: bool

    def __len__(self) -> int:
        return len(self.base)

    @property
    def last(self) -> Doubles:
        """[S] the weight each session ended with: 1 for one without a decision."""
        found, lengths = np.ones(len(self)), np.diff(self.offsets)
        found[lengths > 0] = self.weight[self.offsets[1:][lengths > 0] - 1]
        return found

    def by_session(self, values: Doubles) -> Doubles:
        """[D] → [S] sums over each session."""
        session = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        return np.bincount(session, values, minlength=len(self)).astype(np.float64)  # integers where there are none

    def mean_weight(self) -> Doubles:
        """[T] mean weight at each step, over all sessions."""
        return mean_weight(self.offsets, self.step, self.weight, self.last)


def terms(name: str, steps: Trajectories, gamma: float = 1.0, cap: float | None = None) -> SessionTerms:
    """What the estimator `name` sums over each session."""
    if not 0 <= gamma <= 1:
        raise InputError(f"The discount is {gamma}; it must lie between 0 and 1.")
    if cap is not None and not cap > 0:
        raise InputError(f"The cap on weights is {cap}; it must be above 0.")
    one = estimator(name)
    if one.marginal:
        steps = marginalised(steps)
    base, gain = _modelled(name, steps, gamma) if one.modelled else (np.zeros(len(steps)), steps.reward)
    if not one.weighted:
        nothing = np.zeros(steps.decisions)
        return SessionTerms(steps.offsets, steps.step, base, nothing, nothing + 1.0, normalised=False)
    weight = weights(steps, one.cap(steps, cap))[0]
    return SessionTerms(steps.offsets, steps.step, base, gamma**steps.step * weight * gain, weight, one.normalised)


def contributions(found: SessionTerms) -> Doubles:
    """[S] what each session adds; their mean is the estimate. Where normalised they hang on each other."""
    if not found.normalised:
        return found.base + found.by_session(found.gain)
    mean = found.mean_weight()[found.step]
    share = np.divide(found.gain, mean, out=np.zeros_like(mean), where=mean > 0)
    return found.base + found.by_session(share)


def value(name: str, steps: Trajectories, gamma: float = 1.0, cap: float | None = None) -> float:
    """What the policy would earn in a session."""
    return float(contributions(terms(name, steps, gamma, cap)).mean())


def estimator(name: str) -> Estimator:
    if name not in ESTIMATORS:
        raise InputError(f"There is no estimator {name!r}; known are {', '.join(ESTIMATORS)}.")
    return ESTIMATORS[name]


def marginalised(steps: Trajectories) -> Trajectories:
    """The same decisions with ratios of clusters in place of items."""
    if steps.log_marginal is None:
        raise InputError("Marginal weights need the clusters' ratios (log_marginal), and these steps have none.")
    return replace(steps, log_pi=steps.log_marginal, log_b=np.zeros(steps.decisions))


def mean_weight(offsets: Longs, step: Longs, weight: Doubles, last: Doubles) -> Doubles:
    """[T] at each step, over all sessions: those that are over keep the weight they had last."""
    sessions, lengths = len(offsets) - 1, np.diff(offsets)
    horizon = int(lengths.max(initial=0))
    here = np.bincount(step, weight, minlength=horizon)
    over = np.cumsum(np.bincount(lengths, last, minlength=horizon))[:horizon]
    return (here + over) / sessions


def _modelled(name: str, steps: Trajectories, gamma: float) -> tuple[Doubles, Doubles]:
    """V(s₀) [S] and r + γ V(s′) − Q(s, a) [D]."""
    base = steps.starts
    if base is None or (name != "direct" and (steps.q is None or steps.v is None)):
        raise InputError(f"The estimator {name!r} needs Q and V of the policy, and these steps have none.")
    if steps.q is None or steps.v is None:
        return base, np.zeros(steps.decisions)
    return base, residual(steps.reward, steps.q, steps.v, steps.step, gamma)


def residual(reward: Doubles, q: Doubles, v: Doubles, step: Longs, gamma: float) -> Doubles:
    """[D] r + γ V(s′) − Q(s, a): 0 in expectation, at every decision, where Q is right."""
    after = np.zeros_like(v)
    after[:-1] = np.where(step[1:] > 0, v[1:], 0.0)
    return reward + gamma * after - q
