"""Estimate what policies would earn on a log, compared with its logging policy."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.errors import InputError
from offrec.estimation import value_at_5
from offrec.estimation.collect import LoggingModel, collect_trajectories, load_logging_model, reward_trajectories
from offrec.estimation.estimators import ESTIMATORS, SessionTerms, get_estimator, session_terms
from offrec.estimation.fitted_q import PolicyValues, fit_q
from offrec.estimation.interval import Interval, bootstrap_interval, refit_interval
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import ALL, EstimateOptions
from offrec.estimation.result import EstimateResult, PolicyEstimate
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import assess
from offrec.evaluation import EvaluationSplit
from offrec.policy import Policy
from offrec.types import Doubles, Floats


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
        >>> result.sessions_note
        'sl was trained on this dataset, so only its test sessions are used.'
    """
    options, console = options or EstimateOptions(), console or Console(quiet=True)
    decisions, rewards, list_policies, split, note = _load(policies, dataset, options)
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
                scorers[key] = value_at_5.scorer_for(dataset, split, rewards, options.values, policy, console)
            score = scorers[key]
            one = replace(one, value_at_5=None if score is None else score(policy))
        estimates.append(one)
    calibration = next(iter(logging_models.values())).calibration if logging_models else {}
    logged = logged_value(reward_trajectories(decisions, rewards), options)
    sessions = len(decisions.sessions)
    return EstimateResult(dataset, options, decisions.has_lists, calibration, logged, sessions, split, note, estimates)


def _load(
    policies: Policy | Mapping[str, Policy], dataset: Dataset, options: EstimateOptions
) -> tuple[LoggedDecisions, Floats, dict[str, ListPolicy], EvaluationSplit, str]:
    """Return the decisions to use, the reward of each event, the policies by name, and the split and why it is used."""
    named = {policies.name: policies} if isinstance(policies, Policy) else dict(policies)
    whole = LoggedDecisions.load(dataset, "all")
    list_policies = {name: as_list_policy(name, policy, options, whole) for name, policy in named.items()}
    split, note = choose_sessions(list_policies, dataset, options)
    decisions = LoggedDecisions.load(dataset, split)
    if not len(decisions.sessions):
        raise InputError(f"The {split} split of {dataset.path} has no sessions; choose another --split.")
    return decisions, event_rewards(dataset, dict(options.reward)), list_policies, split, note


def choose_sessions(
    policies: Mapping[str, ListPolicy], dataset: Dataset, options: EstimateOptions
) -> tuple[EvaluationSplit, str]:
    """Return the sessions to estimate from, and the sentence that says why.

    Raises:
        InputError: If all sessions are requested, but a policy was trained on some, or Q is fitted to some.
    """
    has_propensities = dataset.decisions is not None
    trained = [name for name, one in policies.items() if one.policy.data_hash == dataset.meta["data_hash"]]
    fitted = [name for name, one in policies.items() if options.fits_q(one.play == "sample", has_propensities)]
    if options.split == "all" and (trained or fitted or not has_propensities):
        reason = f"{trained[0]} was trained on some" if trained else "Q or the propensities are fitted to some"
        raise InputError(f"--split all needs sessions that nothing was fitted to, but {reason}; use --split test.")
    if options.split is not None:
        return options.split, f"The {options.split} sessions were chosen."
    if trained:
        verb = "was" if len(trained) == 1 else "were"
        return "test", f"{', '.join(trained)} {verb} trained on this dataset, so only its test sessions are used."
    if fitted or not has_propensities:
        part = "Q is" if fitted else "The propensities are"
        return "test", f"{part} fitted to the training sessions, so only the test sessions are used."
    return "all", "All sessions are used: no policy was trained on this dataset, and its propensities are exact."


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
    estimators = options.choose_estimators(trajectories, decisions.has_lists)
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
