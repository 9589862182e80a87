"""Estimate what policies would earn on a log, compared with its logging policy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.errors import InputError
from offrec.estimation import value_at_5
from offrec.estimation.collect import LoggingModel, collect_trajectories, load_logging_model, reward_trajectories
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimators import ESTIMATORS, SessionTerms, get_estimator, session_terms
from offrec.estimation.fitted_q import PolicyValues, fit_q
from offrec.estimation.interval import Interval, bootstrap_interval, refit_interval
from offrec.estimation.list_policy import ListPolicy, Play
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.mean_rank import order_by_mean_rank
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import Assessment, assess
from offrec.evaluation import EvaluationSplit
from offrec.models.network import NetworkOptions
from offrec.policy import Policy
from offrec.training.loop import TrainingOptions
from offrec.types import Doubles, Floats

RECOMMENDED = "direct"
RECOMMENDED_FOR_BLENDS = "self_normalised"  # the direct method cannot evaluate a blend
ALL = "all"


@dataclass(frozen=True)
class EstimateOptions:
    """Options of `estimate`.

    Args:
        split: The sessions to estimate from. Q is always fitted to the training sessions.
        estimators: Names from `ESTIMATORS`; "all" for every one that the log and the policy allow; empty for the
            recommended one.
        gamma: Discount per decision.
        play: Whether policies sample their lists or show their top k.
        k: Items per list; None for the length of the logged lists.
        temperature: Softmax temperature of sampled lists.
        blend: Share of the decisions that the policy makes; the logging policy makes the others.
        reward: Reward of each behaviour; missing ones use the default.
        cap: Largest importance weight; None for the estimator's own cap.
        refits: How often Q is refitted to resampled sessions; with 0 the direct method has no interval.
        value_at_5: Whether to compute value@5 too if Q is fitted anyway. This needs one more fit, which is cached.
        seed: Seed of the bootstrap and the logging policy.
        values: How Q is fitted.
        network: Network of π̂_b, if the log has no propensities.
        training: Training of π̂_b.

    Raises:
        InputError: If a value is out of range or an estimator is incompatible with the other options.
    """

    split: EvaluationSplit = "test"
    estimators: tuple[str, ...] = ()
    gamma: float = 1.0
    play: Play = "sample"
    k: int | None = None
    temperature: float = 1.0
    blend: float = 1.0
    reward: Mapping[str, float] = field(default_factory=dict)
    cap: float | None = None
    refits: int = 4
    value_at_5: bool = True
    seed: int = 0
    values: ValueOptions = field(default_factory=ValueOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise InputError(f"--gamma must be between 0 and 1; got {self.gamma}.")
        if self.refits < 0 or self.refits == 1:
            raise InputError(f"--refits must be 0 or at least 2; got {self.refits}.")
        for estimator in map(get_estimator, self.named_estimators):
            if estimator.uses_weights and self.play == "topk":
                raise InputError(
                    f"--estimator {estimator.name} needs list probabilities, but --play topk has none; use "
                    "--estimator direct or --play sample."
                )
            if estimator.uses_q and self.blend < 1:
                raise InputError(
                    f"--estimator {estimator.name} cannot evaluate a blend: the logging policy's probabilities for "
                    "unshown lists are unknown. Use another estimator or --blend 1."
                )

    @property
    def named_estimators(self) -> tuple[str, ...]:
        """The estimators that were chosen by name; their numbers are always shown."""
        return tuple(name for name in self.estimators if name != ALL)

    def choose_estimators(self, trajectories: Trajectories) -> list[str]:
        """Return the estimators to use for these trajectories."""
        if ALL in self.estimators:
            return [
                name for name in available_estimators(trajectories) if self.blend == 1 or not ESTIMATORS[name].uses_q
            ]
        return list(self.named_estimators or (RECOMMENDED if self.blend == 1 else RECOMMENDED_FOR_BLENDS,))


@dataclass(frozen=True)
class PolicyEstimate:
    """The estimates of one policy."""

    name: str
    play: Play
    k: int
    trajectories: Trajectories
    assessments: dict[str, Assessment]  # by estimator
    differences: dict[str, Interval]  # by estimator: difference from the logging policy, paired over sessions
    value_at_5: float | None = None


@dataclass(frozen=True)
class EstimateResult:
    """The estimates of all policies on one log."""

    dataset: Dataset
    options: EstimateOptions
    has_propensities: bool
    calibration: dict[str, float]  # of π̂_b, if the log has no propensities
    logged: Interval  # what the logging policy earned per session
    sessions: int
    policies: list[PolicyEstimate]

    @property
    def suggested_order(self) -> dict[str, int]:
        """Place of each policy, starting at 1, by its mean rank under value@5 and the direct method.

        Maps names to places. Contains the policies that have both numbers and whose direct estimate is not withheld.
        Empty if fewer than two policies qualify.
        """
        direct = [policy.assessments.get("direct") for policy in self.policies]
        estimates = [np.nan if one is None or one.is_withheld else one.interval.estimate for one in direct]
        values = [np.nan if policy.value_at_5 is None else policy.value_at_5 for policy in self.policies]
        places = zip(self.policies, order_by_mean_rank(values, estimates), strict=True)
        order = {policy.name: place for policy, place in places if place is not None}
        return order if len(order) > 1 else {}

    def has_interval(self, estimator: str) -> bool:
        """Return whether the interval is meaningful: without refits the direct method ignores the error of Q."""
        return estimator != "direct" or self.options.refits > 0

    def is_shown(self, assessment: Assessment) -> bool:
        """Return whether the numbers are shown: not withheld, or the estimator was chosen by name."""
        return not assessment.is_withheld or assessment.estimator in self.options.named_estimators

    def as_json(self) -> dict[str, Any]:
        """Return everything that `offrec estimate --json` prints. Infinite numbers become None."""
        options = self.options
        tree: dict[str, Any] = _finite(
            {
                "dataset": str(self.dataset.path),
                "fingerprint": self.dataset.fingerprint,
                "split": options.split,
                "gamma": options.gamma,
                "temperature": options.temperature,
                "blend": options.blend,
                "propensities": "logged" if self.has_propensities else "estimated",
                "propensity_calibration": self.calibration,
                "logging_policy": {"sessions": self.sessions, **self.logged.as_json()},
                "policies": [self._policy_as_json(policy) for policy in self.policies],
            }
        )
        return tree

    def _policy_as_json(self, policy: PolicyEstimate) -> dict[str, Any]:
        estimates = {}
        for name, assessment in policy.assessments.items():
            is_shown = self.is_shown(assessment)
            missing = {} if self.has_interval(name) else dict.fromkeys(("low", "high", "standard_error"))
            difference = {**policy.differences[name].as_json(), **missing} if is_shown else None
            numbers = assessment.as_json(always_show=is_shown)
            estimates[name] = {**numbers, **missing, "difference_to_logging_policy": difference}
        return {
            "name": policy.name,
            "play": policy.play,
            "k": policy.k,
            value_at_5.METRIC: policy.value_at_5,
            "suggested_order": self.suggested_order.get(policy.name),
            "estimates": estimates,
        }


def estimate(
    policies: Policy | Mapping[str, Policy],
    dataset: Dataset,
    options: EstimateOptions | None = None,
    console: Console | None = None,
) -> EstimateResult:
    """Estimate what policies would earn per session, from a log alone.

    Args:
        policies: One policy, or several by name.
        dataset: The log. It must use the same item indices as the policies.
        options: Options of the estimate.
        console: Shows the progress; silent by default.

    Returns:
        For each policy and estimator the estimate, its interval, its diagnostics and a verdict.

    Raises:
        InputError: If the split has no sessions, or a requested estimator is not supported by the log or a policy.

    Example:
        >>> result = offrec.estimate({"sl": policy}, dataset)
        >>> result.policies[0].assessments["direct"].verdict
        'caution'
    """
    options, console = options or EstimateOptions(), console or Console(quiet=True)
    decisions, rewards, list_policies = _load(policies, dataset, options)
    logging_models: dict[object, LoggingModel] = {}
    scorers: dict[object, Callable[[Policy], float] | None] = {}
    estimates = []
    for name, list_policy in list_policies.items():
        policy = list_policy.policy
        key = (policy.history, policy.device)
        if key not in logging_models:
            network = replace(options.network, history=policy.history)
            logging_models[key] = load_logging_model(
                dataset, network, options.training, policy.device, console, options.seed
            )
        one = _estimate_policy(name, list_policy, decisions, rewards, options, logging_models[key], console)
        if options.value_at_5 and any(ESTIMATORS[estimator].uses_q for estimator in one.assessments):
            if key not in scorers:
                scorers[key] = value_at_5.scorer_for(dataset, options.split, rewards, options.values, policy, console)
            score = scorers[key]
            one = replace(one, value_at_5=None if score is None else score(policy))
        estimates.append(one)
    calibration = next(iter(logging_models.values())).calibration if logging_models else {}
    logged = logged_value(reward_trajectories(decisions, rewards), options)
    sessions = len(decisions.sessions)
    return EstimateResult(dataset, options, decisions.has_lists, calibration, logged, sessions, estimates)


def _load(
    policies: Policy | Mapping[str, Policy], dataset: Dataset, options: EstimateOptions
) -> tuple[LoggedDecisions, Floats, dict[str, ListPolicy]]:
    """Return the decisions of the split, the reward of every event, and the policies by name."""
    named = {policies.name: policies} if isinstance(policies, Policy) else dict(policies)
    decisions = LoggedDecisions.load(dataset, options.split)
    if not len(decisions.sessions):
        raise InputError(f"The {options.split} split of {dataset.path} has no sessions; choose another --split.")
    list_policies = {name: as_list_policy(name, policy, options, decisions) for name, policy in named.items()}
    return decisions, event_rewards(dataset, options.reward), list_policies


def as_list_policy(name: str, policy: Policy, options: EstimateOptions, decisions: LoggedDecisions) -> ListPolicy:
    """Choose how a policy builds its lists; a policy without probabilities can only show its top k.

    Raises:
        InputError: If an estimator was named that this policy or this log does not allow. "all" skips such estimators.
    """
    k, is_topk = options.k or decisions.k, options.play == "topk" or not policy.stochastic
    for estimator in map(get_estimator, options.named_estimators):
        if estimator.uses_weights and is_topk:
            raise InputError(
                f"--estimator {estimator.name} needs list probabilities, but {name} has only scores; use "
                "--estimator direct or omit this policy."
            )
        if estimator.uses_clusters and decisions.has_lists:
            raise InputError(
                f"--estimator {estimator.name} needs propensities of item clusters, but the log has propensities of "
                "lists; choose another estimator."
            )
    if is_topk:
        return ListPolicy(policy, "topk", k, blend=options.blend)
    if decisions.has_lists and k != decisions.k:
        raise InputError(f"-k is {k}, but the logged lists have {decisions.k} items; omit -k or use --play topk.")
    return ListPolicy(policy, "sample", k, options.temperature, options.blend)


def available_estimators(trajectories: Trajectories) -> list[str]:
    """Return the estimators whose columns are available, assuming that Q can be fitted."""
    has_weights = trajectories.log_pi is not None and trajectories.log_b is not None
    has_clusters = trajectories.log_cluster_ratio is not None
    return [
        name
        for name, estimator in ESTIMATORS.items()
        if (has_weights or not estimator.uses_weights) and (has_clusters or not estimator.uses_clusters)
    ]


def logged_value(trajectories: Trajectories, options: EstimateOptions) -> Interval:
    """Return what the logging policy earned per session."""
    zeros, returns = np.zeros(trajectories.decisions), trajectories.returns(options.gamma)
    terms = SessionTerms(trajectories.offsets, trajectories.step, returns, zeros, zeros + 1.0, is_normalised=False)
    return bootstrap_interval(terms, seed=options.seed)


def difference_to_log(
    name: str, trajectories: Trajectories, options: EstimateOptions, refits: Doubles | None = None
) -> Interval:
    """Return the interval of estimate − logged reward, paired by session. `refits`: as in `assess`."""
    terms = session_terms(name, trajectories, options.gamma, options.cap)
    paired = replace(terms, base=terms.base - trajectories.returns(options.gamma))
    interval = bootstrap_interval(paired, seed=options.seed)
    return interval if refits is None else refit_interval(interval.estimate, refits, interval.standard_error)


def _estimate_policy(
    name: str,
    list_policy: ListPolicy,
    decisions: LoggedDecisions,
    rewards: Floats,
    options: EstimateOptions,
    logging: LoggingModel,
    console: Console,
) -> PolicyEstimate:
    """Collect the trajectories of one policy and assess every estimator."""
    trajectories, estimators, refits = _collect(name, list_policy, decisions, rewards, options, logging, console)
    assessments, differences = {}, {}
    for estimator in estimators:
        used = refits if estimator == "direct" else None
        assessments[estimator] = assess(
            estimator,
            trajectories,
            gamma=options.gamma,
            cap=options.cap,
            seed=options.seed,
            refits=used,
            propensity_error=logging.calibration.get("calibration_error"),
        )
        differences[estimator] = difference_to_log(estimator, trajectories, options, used)
    return PolicyEstimate(name, list_policy.play, list_policy.k, trajectories, assessments, differences)


def _collect(
    name: str,
    list_policy: ListPolicy,
    decisions: LoggedDecisions,
    rewards: Floats,
    options: EstimateOptions,
    logging: LoggingModel,
    console: Console,
) -> tuple[Trajectories, list[str], Doubles | None]:
    """Return the trajectories (with Q and V if needed), the estimators, and the direct estimates of the refits."""
    with_clusters = ALL in options.estimators or "marginal" in options.estimators
    with console.counter(f"{name}: weights") as progress:
        trajectories = collect_trajectories(
            list_policy, decisions, rewards, logging, with_clusters=with_clusters, progress=progress
        )
    estimators = options.choose_estimators(trajectories)
    if not any(ESTIMATORS[estimator].uses_q for estimator in estimators):
        return trajectories, estimators, None
    fits = 1 + (options.refits if "direct" in estimators else 0)
    values = [_fit_values(name, list_policy, decisions, rewards, options, number, console) for number in range(fits)]
    whole, *resampled = [replace(trajectories, q=one.q, v=one.v) for one in values]
    return whole, estimators, np.array([_mean_start_value(one) for one in resampled]) if resampled else None


def _fit_values(
    name: str,
    list_policy: ListPolicy,
    decisions: LoggedDecisions,
    rewards: Floats,
    options: EstimateOptions,
    number: int,
    console: Console,
) -> PolicyValues:
    """Fit Q to all training sessions (number 0) or to resampled ones, and evaluate it on the split."""
    label = f"{name}: fitted Q" if number == 0 else f"{name}: refit {number} of {options.refits}"
    settings = replace(options.values, seed=options.values.seed + number)
    resample_seed = number or None
    fitted = fit_q(
        list_policy,
        decisions.dataset,
        rewards,
        options.gamma,
        settings,
        console,
        label=label,
        resample_seed=resample_seed,
    )
    return fitted.values(decisions)


def _mean_start_value(trajectories: Trajectories) -> float:
    start_values = trajectories.start_values
    assert start_values is not None
    return float(start_values.mean())


def _finite(tree: Any) -> Any:
    """Replace infinite numbers with None, because JSON cannot represent them."""
    if isinstance(tree, dict):
        return {name: _finite(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not np.isfinite(tree) else tree
