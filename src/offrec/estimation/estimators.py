"""Off-policy estimators: what a policy would earn per session, from sessions that another policy logged.

Each estimator computes one contribution c_i per session; the estimate is their mean over the S sessions. With the
weight w (the product of the ratios π / b so far) and an increment δ per decision,

    c_i = base_i + Σ_t γ^t w_it δ_it                          plain
    c_i = base_i + Σ_t γ^t w_it δ_it / mean_j w_jt            normalised: the weights at each step have mean 1

    importance                 base = 0        δ = r                    per-decision importance sampling
    capped                     base = 0        δ = r                    w ≤ cap; default √S
    self_normalised            base = 0        δ = r                    normalised
    marginal                   base = 0        δ = r                    ratios of item clusters; normalised
    order_free                 base = 0        δ = r                    ratios of sets; normalised
    cascade                    base = 0        δ = r                    ratios of prefixes; normalised
    pick                       base = 0        δ = r                    ratios of picks; normalised
    marginal_pick              base = 0        δ = r                    ratios of the pick's cluster; normalised
    state_marginal             base = 0        δ = r                    earlier ratios averaged; normalised
    state_marginal_pick        base = 0        δ = r                    the same with ratios of picks
    direct                     base = V(s₀)                             no weights
    doubly_robust              base = V(s₀)    δ = r + γ V(s′) − Q(s, a)
    weighted_doubly_robust     base = V(s₀)    δ = r + γ V(s′) − Q(s, a) normalised

`marginal_doubly_robust` (OffCEM, Saito et al. 2023) and `order_free_doubly_robust` are `weighted_doubly_robust` with
the ratios of `marginal` and `order_free`. The ratios of `cascade`, `pick` and `marginal_pick` depend on the reaction of
the visitor, so that ρ Q has another mean than V. Their doubly robust forms, `cascade_doubly_robust` and so on, use a
control variate K with the mean V instead (see `control_variates`). With K = ρ Q they would be doubly robust as usual:

    base = V(s₀) − K(s₀)    δ = r + γ (V(s′) − K(s′))    normalised

`state_marginal` replaces the product of the earlier ratios by its mean in the class of the state (see `state_weights`).
`state_marginal_doubly_robust` and `state_marginal_pick_doubly_robust` are its doubly robust forms.

V(s′) is 0 after the last decision of a session. The mean over j includes sessions that have ended before step t, with
their last weight: they stay in an absorbing state in which all policies act alike. A mean over the remaining sessions
would estimate the reward of a decision *given* that the session lasted that long, which is a different quantity.
"""

from dataclasses import dataclass, replace

import numpy as np

from offrec.errors import InputError
from offrec.estimation.state_weights import Splice
from offrec.estimation.trajectories import Trajectories, log_ratios_of, weights
from offrec.types import Doubles, Longs

REACTION_WEIGHTINGS = ("prefixes", "picks", "pick_clusters")  # ratios that depend on what the visitor picked
CLUSTER_WEIGHTINGS = ("clusters", "pick_clusters")


@dataclass(frozen=True)
class Estimator:
    """The properties that distinguish the estimators."""

    name: str
    uses_weights: bool = True
    uses_q: bool = False
    is_normalised: bool = False
    is_capped: bool = False  # even if no cap is given
    weighting: str = "lists"  # the ratios in use: π / b of lists, or an entry of `Trajectories.log_ratios`
    last_ratios: int = 0  # ratios that are not averaged over the class of the state; 0: the product of all ratios

    @property
    def depends_on_reaction(self) -> bool:
        """Whether the ratios depend on what the visitor picked, not only on the list."""
        return self.weighting in REACTION_WEIGHTINGS

    def effective_cap(self, sessions: int, cap: float | None) -> float:
        """Return the cap on the weights: `cap` if given, else √S for `capped` (Ionides 2008), else infinity."""
        if cap is not None:
            return cap
        return float(sessions) ** 0.5 if self.is_capped else np.inf


ESTIMATORS = {
    estimator.name: estimator
    for estimator in (
        Estimator("importance"),
        Estimator("capped", is_capped=True),
        Estimator("self_normalised", is_normalised=True),
        Estimator("marginal", is_normalised=True, weighting="clusters"),
        Estimator("order_free", is_normalised=True, weighting="sets"),
        Estimator("cascade", is_normalised=True, weighting="prefixes"),
        Estimator("pick", is_normalised=True, weighting="picks"),
        Estimator("marginal_pick", is_normalised=True, weighting="pick_clusters"),
        Estimator("state_marginal", is_normalised=True, last_ratios=1),
        Estimator("state_marginal_pick", is_normalised=True, weighting="picks", last_ratios=1),
        Estimator("direct", uses_weights=False, uses_q=True),
        Estimator("doubly_robust", uses_q=True),
        Estimator("weighted_doubly_robust", uses_q=True, is_normalised=True),
        Estimator("marginal_doubly_robust", uses_q=True, is_normalised=True, weighting="clusters"),
        Estimator("order_free_doubly_robust", uses_q=True, is_normalised=True, weighting="sets"),
        Estimator("cascade_doubly_robust", uses_q=True, is_normalised=True, weighting="prefixes"),
        Estimator("pick_doubly_robust", uses_q=True, is_normalised=True, weighting="picks"),
        Estimator("marginal_pick_doubly_robust", uses_q=True, is_normalised=True, weighting="pick_clusters"),
        Estimator("state_marginal_doubly_robust", uses_q=True, is_normalised=True, last_ratios=1),
        Estimator(
            "state_marginal_pick_doubly_robust", uses_q=True, is_normalised=True, weighting="picks", last_ratios=1
        ),
    )
}


@dataclass(frozen=True)
class SessionTerms:
    """An estimate before the sum over sessions: everything that a bootstrap resample needs."""

    offsets: Longs  # [S + 1]
    step: Longs  # [D]
    base: Doubles  # [S]
    gain: Doubles  # [D] γ^t w δ
    weight: Doubles  # [D] w
    is_normalised: bool
    increment: Doubles | None = None  # [D] γ^t δ, for state-marginal weights
    splice: Splice | None = None  # how state-marginal weights depend on the sessions; None: they do not

    def __len__(self) -> int:
        return len(self.base)

    @property
    def last_weight(self) -> Doubles:
        """[S] the weight at the end of each session; 1 for a session without decisions."""
        last, lengths = np.ones(len(self)), np.diff(self.offsets)
        last[lengths > 0] = self.weight[self.offsets[1:][lengths > 0] - 1]
        return last

    def sum_by_session(self, values: Doubles) -> Doubles:
        """[D] → [S] sum over each session."""
        session = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        # The result of `bincount` for an empty array has an integer type.
        return np.bincount(session, values, minlength=len(self)).astype(np.float64)

    def mean_weight(self) -> Doubles:
        """[T] mean weight at each step, over all sessions."""
        return mean_weight(self.offsets, self.step, self.weight, self.last_weight)


def session_terms(name: str, trajectories: Trajectories, gamma: float = 1.0, cap: float | None = None) -> SessionTerms:
    """Compute what the estimator `name` sums over each session.

    Args:
        name: One of `ESTIMATORS`.
        trajectories: Logged sessions with the columns that the estimator needs.
        gamma: Discount per decision.
        cap: Largest weight; None for the estimator's own cap.

    Returns:
        The terms; `contributions` turns them into one number per session.

    Raises:
        InputError: If gamma or cap is out of range, or if a column that the estimator needs is missing.
    """
    if not 0 <= gamma <= 1:
        raise InputError(f"gamma must be between 0 and 1; got {gamma}.")
    if cap is not None and not cap > 0:
        raise InputError(f"cap must be positive; got {cap}.")
    return terms_of(get_estimator(name), trajectories, gamma, cap)


def terms_of(estimator: Estimator, trajectories: Trajectories, gamma: float, cap: float | None) -> SessionTerms:
    """Compute what an estimator sums over each session; arguments as in `session_terms`, which checks them."""
    trajectories = with_ratios(trajectories, estimator)
    if estimator.uses_q:
        base, increment = _base_and_residual(estimator, trajectories, gamma)
    else:
        base, increment = np.zeros(len(trajectories)), trajectories.reward
    offsets, step = trajectories.offsets, trajectories.step
    if not estimator.uses_weights:
        zeros = np.zeros(trajectories.decisions)
        return SessionTerms(offsets, step, base, zeros, zeros + 1.0, is_normalised=False)
    discounted, used_cap = gamma**step * increment, estimator.effective_cap(len(trajectories), cap)
    if not estimator.last_ratios:
        weight = weights(trajectories, used_cap)[0]
        return SessionTerms(offsets, step, base, weight * discounted, weight, estimator.is_normalised)
    splice = _splice(trajectories, estimator, used_cap)
    weight = splice.weights()
    return SessionTerms(offsets, step, base, weight * discounted, weight, estimator.is_normalised, discounted, splice)


def contributions(terms: SessionTerms) -> Doubles:
    """[S] contribution of each session; their mean is the estimate. Normalised contributions depend on each other."""
    if not terms.is_normalised:
        return terms.base + terms.sum_by_session(terms.gain)
    mean = terms.mean_weight()[terms.step]
    normalised = np.divide(terms.gain, mean, out=np.zeros_like(mean), where=mean > 0)
    return terms.base + terms.sum_by_session(normalised)


def estimate_value(name: str, trajectories: Trajectories, gamma: float = 1.0, cap: float | None = None) -> float:
    """Estimate the value per session, without an interval. The arguments are those of `session_terms`."""
    return float(contributions(session_terms(name, trajectories, gamma, cap)).mean())


def get_estimator(name: str) -> Estimator:
    """Return the estimator with this name, or raise `InputError`."""
    if name not in ESTIMATORS:
        raise InputError(f"Unknown estimator {name!r}; choose from {', '.join(ESTIMATORS)}.")
    return ESTIMATORS[name]


def with_ratios(trajectories: Trajectories, estimator: Estimator) -> Trajectories:
    """Replace the ratios of lists with those that the estimator uses."""
    if estimator.weighting == "lists":
        return trajectories
    if estimator.weighting not in trajectories.log_ratios:
        raise InputError(
            f"The estimator {estimator.name} needs ratios of {estimator.weighting}, which are missing; choose another "
            "estimator."
        )
    ratio = trajectories.log_ratios[estimator.weighting]
    return replace(trajectories, log_pi=ratio, log_b=np.zeros(trajectories.decisions))


def _splice(trajectories: Trajectories, estimator: Estimator, cap: float) -> Splice:
    """Return what determines the state-marginal weights of trajectories whose ratios are those of the estimator."""
    if trajectories.state is None:
        raise InputError(
            f"The estimator {estimator.name} needs the classes of the states, which are missing; choose another "
            "estimator."
        )
    log_ratio = log_ratios_of(trajectories)
    return Splice(trajectories.offsets, trajectories.state, estimator.last_ratios, log_ratio, cap)


def mean_weight(offsets: Longs, step: Longs, weight: Doubles, last_weight: Doubles) -> Doubles:
    """[T] mean weight at each step over all sessions; a session that has ended keeps its last weight."""
    sessions, lengths = len(offsets) - 1, np.diff(offsets)
    horizon = int(lengths.max(initial=0))
    running = np.bincount(step, weight, minlength=horizon)
    ended = np.cumsum(np.bincount(lengths, last_weight, minlength=horizon))[:horizon]
    return (running + ended) / sessions


def td_residual(reward: Doubles, q: Doubles, v: Doubles, step: Longs, gamma: float) -> Doubles:
    """[D] r + γ V(s′) − Q(s, a); its expectation is 0 at every decision if Q is exact."""
    next_value = np.zeros_like(v)
    next_value[:-1] = np.where(step[1:] > 0, v[1:], 0.0)
    return reward + gamma * next_value - q


def _base_and_residual(estimator: Estimator, trajectories: Trajectories, gamma: float) -> tuple[Doubles, Doubles]:
    """Return the base [S] and the increments [D] of an estimator with Q."""
    name, weighting = estimator.name, estimator.weighting
    base, q, v = trajectories.start_values, trajectories.q, trajectories.v
    if base is None or (name != "direct" and (q is None or v is None)):
        raise InputError(
            f"The estimator {name} needs Q and V, which are missing; fit Q first or choose another estimator."
        )
    if q is None or v is None:
        return base, np.zeros(trajectories.decisions)
    if estimator.uses_weights and estimator.depends_on_reaction:
        if weighting not in trajectories.controls:
            raise InputError(
                f"The estimator {name} needs Q of each item of a list, which is missing; choose another estimator."
            )
        control, starts = trajectories.controls[weighting], trajectories.lengths > 0
        base = base.copy()
        base[starts] -= control[trajectories.offsets[:-1][starts]]
        return base, td_residual(trajectories.reward, np.zeros_like(v), v - control, trajectories.step, gamma)
    return base, td_residual(trajectories.reward, q, v, trajectories.step, gamma)
