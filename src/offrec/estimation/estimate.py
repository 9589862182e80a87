"""Several policies judged on one log, beside the policy that made it: from policies and a dataset to a table's rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.transitions import reward_vector
from offrec.errors import InputError
from offrec.estimation import fitted_q, value_at_5
from offrec.estimation.collect import LoggingModel, collect_trajectories, load_logging_model, reward_trajectories
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimators import ESTIMATORS, SessionTerms, estimator, terms
from offrec.estimation.interval import Interval, interval, refitted
from offrec.estimation.list_policy import ListPolicy, Play
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.mean_rank import order_by_mean_rank
from offrec.estimation.trajectories import Doubles, Trajectories
from offrec.estimation.verdict import Assessment, assess
from offrec.models.network import NetworkOptions
from offrec.policy import Policy
from offrec.training.loop import TrainingOptions

RECOMMENDED = "direct"
OF_BLENDS = "self_normalised"  # where the direct method cannot speak

EvaluationSplit = Literal["test", "validation"]


@dataclass(frozen=True)
class EstimateOptions:
    """What is to be estimated, and how."""

    split: EvaluationSplit = "test"
    estimators: tuple[str, ...] = ()  # none: the recommended one; "all": every one that the log and the play allow
    gamma: float = 1.0
    play: Play = "sample"
    k: int | None = None  # of the lists played; None: as long as the log's
    temperature: float = 1.0
    blend: float = 1.0  # share of the decisions that the policy makes; the others are left to the one that logged
    reward: Mapping[str, float] = field(default_factory=dict)
    cap: float | None = None
    refits: int = 4  # of Q, to resamples of the training sessions: an interval of the direct method takes two or more
    value_at_5: bool = (
        True  # also value@5, where Q is fitted anyway: one more fit, of the log's own Q, kept beside the log
    )
    seed: int = 0
    values: ValueOptions = field(default_factory=ValueOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)  # of π̂_b, where the log has no propensities
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise InputError(f"gamma is {self.gamma}; it must lie between 0 and 1.")
        for name in self.named:
            estimator(name)
        weighted = [name for name in self.named if ESTIMATORS[name].weighted]
        if self.play == "topk" and weighted:
            raise InputError(
                f"A policy that is played by its best k has no weights, so {weighted[0]} cannot judge it; "
                "leave it at direct, or --play sample."
            )
        modelled = [name for name in self.named if ESTIMATORS[name].modelled]
        if self.blend < 1 and modelled:
            raise InputError(
                f"{modelled[0]} cannot judge a blend, for what the logging policy would have done besides what it did "
                "is not known; leave it out, or --blend 1."
            )
        if self.refits == 1 or self.refits < 0:
            raise InputError(f"An interval from {self.refits} refits cannot be given; fit at least 2, or 0 for none.")

    @property
    def named(self) -> tuple[str, ...]:
        """Estimators that were asked for by name."""
        return tuple(name for name in self.estimators if name != "all")

    def chosen(self, steps: Trajectories) -> list[str]:
        """The estimators to judge by."""
        if "all" in self.estimators:
            return [name for name in possible(steps) if self.blend == 1 or not ESTIMATORS[name].modelled]
        return list(self.named or (RECOMMENDED if self.blend == 1 else OF_BLENDS,))


@dataclass(frozen=True)
class PolicyEstimate:
    """One policy."""

    name: str
    play: Play
    k: int
    steps: Trajectories
    assessed: dict[str, Assessment]  # by estimator
    differences: dict[str, Interval]  # to the logging policy, paired over sessions; by estimator
    value: float | None = None  # value@5


@dataclass(frozen=True)
class EstimateResult:
    dataset: Dataset
    asked: EstimateOptions
    has_lists: bool  # the log has propensities
    calibration: dict[str, float]  # of π̂_b, where it has none
    logged: Interval  # what the logging policy earned, discounted
    sessions: int
    policies: list[PolicyEstimate]

    @property
    def order(self) -> dict[str, int]:
        """name → place, from 1: which to try first, by the mean of its ranks by value@5 and by the direct method. Of
        those that have both, the direct figure not withheld; nothing where they are not several.
        """
        direct = [one.assessed.get("direct") for one in self.policies]
        figures = [np.nan if found is None or found.withheld else found.interval.estimate for found in direct]
        cheap = [np.nan if one.value is None else one.value for one in self.policies]
        places = zip(self.policies, order_by_mean_rank(cheap, figures), strict=True)
        placed = {one.name: place for one, place in places if place is not None}
        return placed if len(placed) > 1 else {}

    def has_interval(self, name: str) -> bool:
        """By an estimator: without refits one of the direct method is of the sessions alone, and looks certain."""
        return name != "direct" or self.asked.refits > 0

    def as_json(self) -> dict[str, Any]:
        asked = self.asked
        found = {
            "dataset": str(self.dataset.path),
            "fingerprint": self.dataset.fingerprint,
            "split": asked.split,
            "gamma": asked.gamma,
            "temperature": asked.temperature,
            "blend": asked.blend,
            "propensities": "logged" if self.has_lists else "estimated",
            "calibration": self.calibration,
            "logging": {"sessions": self.sessions, **self.logged.as_json()},
            "policies": [self._row(one) for one in self.policies],
        }
        finite: dict[str, Any] = _finite(found)
        return finite

    def _row(self, one: PolicyEstimate) -> dict[str, Any]:
        found = {}
        for name, assessment in one.assessed.items():
            shown = name in self.asked.named or not assessment.withheld
            lacking = {} if self.has_interval(name) else dict.fromkeys(("low", "high", "error"))
            difference = {**one.differences[name].as_json(), **lacking} if shown else None
            figures = assessment.as_json(name in self.asked.named)
            found[name] = {**figures, **lacking, "over_logging": difference}
        cheap = {value_at_5.METRIC: one.value, "order": self.order.get(one.name)}
        return {"name": one.name, "play": one.play, "k": one.k, **cheap, "estimates": found}


def estimate(
    policies: "Policy | Mapping[str, Policy]",
    dataset: Dataset,
    asked: EstimateOptions | None = None,
    console: Console | None = None,
) -> EstimateResult:
    """What policies would earn in a session of the log's visitors, from the log alone."""
    asked, console = asked or EstimateOptions(), console or Console(quiet=True)
    named = {policies.name: policies} if isinstance(policies, Policy) else dict(policies)
    decisions = LoggedDecisions.load(dataset, asked.split)
    rewards = reward_vector(dataset.behaviours, dict(asked.reward))
    steps = reward_trajectories(decisions, rewards)
    if not len(steps):
        raise InputError(f"The {asked.split} split of {dataset.path} has no sessions; judge another split.")
    plays = {name: played_as(policy, asked, decisions) for name, policy in named.items()}
    for name, played in plays.items():
        check_askable(name, played, decisions, asked)
    logging: dict[object, LoggingModel] = {}
    cheap: dict[object, Callable[[Policy], float] | None] = {}
    found = []
    for name, played in plays.items():
        policy = played.policy
        key = (policy.history, policy.device)
        if key not in logging:
            network = replace(asked.network, history=policy.history)
            logging[key] = load_logging_model(dataset, network, asked.training, policy.device, console, asked.seed)
        one = _judged(name, played, dataset, asked, logging[key], console)
        if asked.value_at_5 and any(ESTIMATORS[by].modelled for by in one.assessed):
            if key not in cheap:
                cheap[key] = value_at_5.scorer_for(dataset, asked.split, rewards, asked.values, policy, console)
            value = cheap[key]
            one = replace(one, value=value and value(policy))
        found.append(one)
    calibration = next(iter(logging.values())).calibration if logging else {}
    return EstimateResult(dataset, asked, decisions.has_lists, calibration, earned(steps, asked), len(steps), found)


def played_as(policy: Policy, asked: EstimateOptions, decisions: LoggedDecisions) -> ListPolicy:
    """As asked; but a policy that is no distribution can only be played by its best k."""
    k = asked.k or decisions.k
    if asked.play == "topk" or not policy.stochastic:
        return ListPolicy(policy, "topk", k, blend=asked.blend)
    if decisions.has_lists and k != decisions.k:
        raise InputError(f"The log's lists have {decisions.k} items, so lists of {k} have no weights; leave out k.")
    return ListPolicy(policy, "sample", k, asked.temperature, asked.blend)


def check_askable(name: str, played: ListPolicy, decisions: LoggedDecisions, asked: EstimateOptions) -> None:
    """Refuse an estimator by name that this policy, or this log, cannot have; "all" leaves such ones out."""
    for one in map(estimator, asked.named):
        if one.weighted and played.play == "topk":
            raise InputError(
                f"{name} gives scores, not chances, so it has no weights and {one.name} cannot judge it; "
                "leave it out, or ask for direct."
            )
        if one.marginal and decisions.has_lists:
            raise InputError(
                "The log has propensities of its lists and none of clusters of items, so marginal cannot judge by it; "
                "ask for another estimator."
            )


def returned(steps: Trajectories, gamma: float) -> Doubles:
    """[S] what each session earned, discounted."""
    return np.bincount(steps.session, gamma**steps.step * steps.reward, minlength=len(steps)).astype(np.float64)


def earned(steps: Trajectories, asked: EstimateOptions) -> Interval:
    """What the sessions earned."""
    nothing, returns = np.zeros(steps.decisions), returned(steps, asked.gamma)
    return interval(SessionTerms(steps.offsets, steps.step, returns, nothing, nothing + 1.0, False), seed=asked.seed)


def possible(steps: Trajectories) -> list[str]:
    """The estimators that can speak of it."""
    weights = steps.log_pi is not None and steps.log_b is not None
    return [
        name
        for name, one in ESTIMATORS.items()
        if (weights or not one.weighted) and (steps.log_marginal is not None or not one.marginal)
    ]


def _judged(
    name: str, played: ListPolicy, dataset: Dataset, asked: EstimateOptions, logging: LoggingModel, console: Console
) -> PolicyEstimate:
    rewards = reward_vector(dataset.behaviours, dict(asked.reward))
    with console.counter(f"{name}: weights") as at:
        grouped = "all" in asked.estimators or "marginal" in asked.estimators
        steps = collect_trajectories(played, dataset, asked.split, rewards, logging, grouped=grouped, progress=at)
    chosen = asked.chosen(steps)
    again = None
    if any(ESTIMATORS[one].modelled for one in chosen):
        steps, again = _valued(name, played, dataset, asked, steps, "direct" in chosen, console)
    error = logging.calibration.get("calibration_error")
    assessed, differences = {}, {}
    for one in chosen:
        refits = again if one == "direct" else None
        found = assess(
            one, steps, gamma=asked.gamma, cap=asked.cap, seed=asked.seed, refits=refits, propensity_error=error
        )
        assessed[one] = found
        differences[one] = difference(one, steps, asked, refits)
    return PolicyEstimate(name, played.play, played.k, steps, assessed, differences)


def _valued(
    name: str,
    played: ListPolicy,
    dataset: Dataset,
    asked: EstimateOptions,
    steps: Trajectories,
    refitting: bool,
    console: Console,
) -> tuple[Trajectories, Doubles | None]:
    """The same decisions with Q and V, and the direct method's value of Q fitted again to resampled sessions."""
    rewards, decisions = (
        reward_vector(dataset.behaviours, dict(asked.reward)),
        LoggedDecisions.load(dataset, asked.split),
    )

    def values(seed: int | None, label: str) -> fitted_q.PolicyValues:
        options = replace(asked.values, seed=asked.values.seed + (0 if seed is None else seed))
        return fitted_q.fit_q(
            played, dataset, rewards, asked.gamma, options, console, label=f"{name}: {label}", resample=seed
        ).values(decisions)

    whole = values(None, "fitted Q")
    valued = replace(steps, q=whole.q, v=whole.v)
    if not refitting or not asked.refits:
        return valued, None
    again = []
    for number in range(1, asked.refits + 1):
        found = values(number, f"fitted Q again, {number} of {asked.refits}")
        starts = replace(steps, q=found.q, v=found.v).starts
        assert starts is not None
        again.append(float(starts.mean()))
    return valued, np.array(again)


def difference(name: str, steps: Trajectories, asked: EstimateOptions, refits: Doubles | None = None) -> Interval:
    """To what the same sessions earned. `refits`: as in `assess`, of the direct method."""
    plain = terms(name, steps, asked.gamma, asked.cap)
    around = interval(replace(plain, base=plain.base - returned(steps, asked.gamma)), seed=asked.seed)
    return around if refits is None else refitted(around.estimate, refits, around.error)


def _finite(tree: Any) -> Any:
    """One session alone has no interval: null, not infinity."""
    if isinstance(tree, dict):
        return {name: _finite(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not np.isfinite(tree) else tree
