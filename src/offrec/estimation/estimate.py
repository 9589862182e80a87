"""Estimate what policies would earn on a log, compared with its logging policy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.errors import InputError
from offrec.estimation import value_at_5
from offrec.estimation.assumption import assumption_bias
from offrec.estimation.certify import Certification, certify
from offrec.estimation.collect import (
    LoggingModel,
    check_logging_splits,
    collect_trajectories,
    load_logging_model,
    reward_trajectories,
)
from offrec.estimation.control_variates import with_values
from offrec.estimation.estimators import ESTIMATORS, SessionTerms, get_estimator, session_terms
from offrec.estimation.fit_processes import check_jobs, fit_concurrently
from offrec.estimation.interval import Interval, bootstrap_interval, refit_interval
from offrec.estimation.item_clusters import item_clusters
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import ALL, WEIGHTED, EstimateOptions, describe_left_out
from offrec.estimation.passes import LocalPasses
from offrec.estimation.result import EstimateResult, PolicyEstimate
from offrec.estimation.served_policy import (
    ListProbabilities,
    log_ratios,
    place_log_ratios,
    served_probabilities,
)
from offrec.estimation.session_lists import served_log
from offrec.estimation.trajectories import Trajectories, blend_ratio
from offrec.estimation.verdict import assess
from offrec.evaluation import EvaluationSplit
from offrec.models.mapped_policy import in_catalogue
from offrec.policy import Policy
from offrec.types import Doubles, Floats

SERVED = "--served"
AT_TEMPERATURE = " at temperature "  # in the name of a policy that is certified at several temperatures


def estimate(
    policies: Policy | Mapping[str, Policy],
    dataset: Dataset,
    options: EstimateOptions | None = None,
    console: Console | None = None,
    *,
    served: Policy | None = None,
    remote: Callable[[str, EvaluationSplit, EstimateOptions], LocalPasses] | None = None,
) -> EstimateResult:
    """Estimate what policies would earn per session, from a log alone.

    Args:
        policies: One policy, or several by name.
        dataset: The log. It must use the same item indices as the policies.
        options: Options of the estimate.
        console: Shows the progress; silent by default.
        served: The policy that served the log by sampling its lists. It allows ratios of picks, which vary much less
            than ratios of lists: see the estimator `pick`.
        remote: Returns the `offrec.estimation.partitioned.RemotePasses` of a policy by its name, for estimates on
            several machines. The name of `served` is `SERVED`.

    Returns:
        For each policy and estimator the estimate, its interval, its diagnostics and a verdict.

    Raises:
        InputError: If the split has no decisions, a requested estimator is not supported by the log or a policy, the
            log was not served by `served`, or `jobs` was given without a fit that could use it.

    Example:
        >>> result = offrec.estimate({"sl": policy}, dataset)
        >>> result.policies[0].assessments["direct"].verdict
        'caution'
        >>> result.sessions_note
        'sl was trained on this dataset, so only its test sessions are used.'
    """
    options, console = options or EstimateOptions(), console or Console(quiet=True)
    decisions, rewards, list_policies, split, note = _load(policies, dataset, options)
    given = {policies.name} if isinstance(policies, Policy) else set(policies)
    local = {name: LocalPasses() for name in (*list_policies, SERVED)}

    def passes_of(name: str) -> LocalPasses:
        if remote is None:
            return local[name]
        is_given = name in given or name == SERVED
        return remote(name if is_given else name.rpartition(AT_TEMPERATURE)[0], split, options)

    logged_lists, clusters = None, None
    options.check_weightings(has_lists=decisions.has_lists, is_served=served is not None)
    if remote is None:
        check_jobs(list_policies, decisions, options)
    if served is not None:
        clusters = item_clusters(dataset) if options.uses_clusters else None
        cluster = None if clusters is None else clusters.cluster
        if not served.stochastic:
            raise InputError(
                f"--served {served.name} has no probabilities, so it did not sample the lists of this log; omit it."
            )
        server = ListPolicy(in_catalogue(served, dataset), "sample", decisions.k, options.served_temperature)
        logged_lists = served_probabilities(server, decisions, passes_of(SERVED).list_probabilities, cluster)
    if remote is None:
        fit_concurrently(list_policies, local, decisions, rewards, split, options, console)
    logging_models: dict[object, LoggingModel] = {}
    scorers: dict[object, Callable[[Policy], float] | None] = {}
    estimates = []
    for name, list_policy in list_policies.items():
        policy = list_policy.policy
        key = (policy.history, policy.device)
        if key not in logging_models:
            network = options.network_for(policy)
            logging_models[key] = load_logging_model(
                dataset, network, options.training, policy.device, console, options.seed
            )
        passes, logging = passes_of(name), logging_models[key]
        one = _estimate_policy(name, list_policy, decisions, rewards, options, logging, logged_lists, passes, console)
        if options.value_at_5 and any(ESTIMATORS[estimator].uses_q for estimator in one.assessments):
            if key not in scorers:
                scorers[key] = value_at_5.scorer_for(dataset, split, rewards, options.values, policy, console)
            score = scorers[key]
            one = replace(one, value_at_5=None if score is None else score(policy))
        estimates.append(one)
    calibration = next(iter(logging_models.values())).calibration if logging_models else {}
    logged = logged_value(reward_trajectories(decisions, rewards), options)
    notes = (*dataset.meta.get("decisions", {}).get("notes", ()), *([clusters.source] if clusters else []))
    certification = certify_estimates(estimates, options, console) if options.certify else None
    return EstimateResult(
        source=dataset.path,
        fingerprint=dataset.fingerprint,
        notes=notes,
        options=options,
        has_propensities=decisions.has_lists,
        calibration=calibration,
        logged=logged,
        sessions=len(decisions.sessions),
        split=split,
        sessions_note=note,
        policies=estimates,
        certification=certification,
    )


def certify_estimates(estimates: Sequence[PolicyEstimate], options: EstimateOptions, console: Console) -> Certification:
    """Certify shares of the traffic with each policy's own estimator, from the trajectories of the policies alone."""
    with console.counter("certifying shares") as progress:
        return certify(
            {one.name: one.trajectories for one in estimates},
            estimator={one.name: next(iter(one.assessments)) for one in estimates},
            shares=options.shares,
            gamma=options.gamma,
            cap=options.cap,
            seed=options.seed,
            progress=progress,
        )


def _load(
    policies: Policy | Mapping[str, Policy], dataset: Dataset, options: EstimateOptions
) -> tuple[LoggedDecisions, Floats, dict[str, ListPolicy], EvaluationSplit, str]:
    """Return the decisions to use, the reward of each event, the policies by name, and the split and why it is used."""
    named = {policies.name: policies} if isinstance(policies, Policy) else dict(policies)
    named = {name: in_catalogue(policy, dataset) for name, policy in named.items()}
    whole = LoggedDecisions.load(dataset, "all")
    if options.certify and not whole.has_lists:
        raise InputError(
            f"--certify needs exact propensities, but {dataset.path} has none; log lists with their probabilities, for "
            "instance with `offrec serve --log`."
        )
    list_policies = {
        list_name: list_policy
        for name, policy in named.items()
        for list_name, list_policy in _family(name, as_list_policy(name, policy, options, whole), options).items()
    }
    split, note = choose_sessions(list_policies, dataset, options)
    decisions = LoggedDecisions.load(dataset, split)
    if not len(decisions.sessions):
        raise InputError(f"The {split} split of {dataset.path} has no sessions; choose another --split.")
    if not len(decisions):
        raise InputError(f"The {split} split of {dataset.path} has sessions but no decisions; choose another --split.")
    if not decisions.has_lists:
        check_logging_splits(dataset)
    return decisions, event_rewards(dataset, dict(options.reward)), list_policies, split, note


def _family(name: str, list_policy: ListPolicy, options: EstimateOptions) -> dict[str, ListPolicy]:
    """Return the policy at each of the temperatures to certify, or alone if it has none."""
    if not options.temperatures or list_policy.play == "topk":
        return {name: list_policy}
    return {f"{name}{AT_TEMPERATURE}{one:g}": replace(list_policy, temperature=one) for one in options.temperatures}


def choose_sessions(
    policies: Mapping[str, ListPolicy], dataset: Dataset, options: EstimateOptions
) -> tuple[EvaluationSplit, str]:
    """Return the sessions to estimate from, and the sentence that says why.

    Raises:
        InputError: If all sessions are requested, but a policy was trained on some, or Q is fitted to some.
    """
    has_propensities = dataset.decisions is not None
    trained = [name for name, one in policies.items() if one.policy.data_hash == dataset.meta["data_hash"]]
    fitted = [name for name, one in policies.items() if options.fits_q(one.has_weights, has_propensities)]
    if options.split == "all" and (trained or fitted or not has_propensities):
        reason = f"{trained[0]} was trained on some" if trained else "Q or the propensities are fitted to some"
        raise InputError(f"--split all needs sessions that nothing was fitted to, but {reason}; use --split test.")
    if options.split is not None:
        return options.split, options.split_reason or f"--split {options.split} was given."
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
        if estimator.weighting != "lists" and is_topk:
            sampling = "add --play sample, or " if policy.stochastic else ""
            raise InputError(
                f"--estimator {estimator.name} needs sampled lists, but {name} shows its top {k}; {sampling}use "
                f"--estimator direct or, on a log that {name} served as a blend, --estimator {WEIGHTED}."
            )
        if estimator.uses_weights and is_topk and (not decisions.has_lists or k != decisions.k):
            raise InputError(
                f"--estimator {estimator.name} needs list probabilities, but {name} shows its top {k}, which this log "
                "cannot be compared with; use --estimator direct or omit this policy."
            )
    if is_topk:
        if options.blend < 1 and k != decisions.k:
            raise InputError(
                f"--blend needs lists of the logged length, {decisions.k}; got -k {k}: omit -k or omit --blend."
            )
        served = k == decisions.k and not options.named_estimators and served_log(policy, decisions)
        return ListPolicy(policy, "topk", k, blend=options.blend, served_log=served)
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
    interval = assumption_bias(name, trajectories, options.gamma, options.cap).widen(interval)
    return interval if refits is None else refit_interval(interval.estimate, refits, interval.standard_error)


def _estimate_policy(
    name: str,
    list_policy: ListPolicy,
    decisions: LoggedDecisions,
    rewards: Floats,
    options: EstimateOptions,
    logging: LoggingModel,
    logged_lists: ListProbabilities | None,
    passes: LocalPasses,
    console: Console,
) -> PolicyEstimate:
    """Collect the trajectories of one policy and assess every estimator."""
    trajectories, estimators, refits = _collect(
        name, list_policy, decisions, rewards, options, logging, logged_lists, passes, console
    )
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
    logged_lists: ListProbabilities | None,
    passes: LocalPasses,
    console: Console,
) -> tuple[Trajectories, list[str], Doubles | None]:
    """Return the trajectories (with Q and V if needed), the estimators, and the direct estimates of the refits."""
    with console.counter(f"{name}: weights") as progress:
        trajectories = collect_trajectories(
            list_policy,
            decisions,
            rewards,
            logging,
            match_lists=options.certify
            or list_policy.served_log
            or any(get_estimator(one).uses_weights for one in options.named_estimators),
            with_clusters=options.uses_clusters,
            with_states=options.uses_states,
            progress=progress,
            passes=passes,
        )
    place_ratios: dict[str, Doubles] = {}
    if logged_lists is not None and list_policy.play == "sample":
        own = passes.list_probabilities(list_policy, decisions, logged_lists.cluster)
        ratios, place_ratios = log_ratios(own, logged_lists, decisions), place_log_ratios(own, logged_lists)
        ratios = {weighting: blend_ratio(ratio, list_policy.blend) for weighting, ratio in ratios.items()}
        trajectories = replace(trajectories, log_ratios={**trajectories.log_ratios, **ratios})
    estimators = options.choose_estimators(trajectories, decisions.has_lists, list_policy.k)
    if ALL in options.estimators:
        is_sampled, is_served = list_policy.play == "sample", logged_lists is not None
        left_out = describe_left_out(estimators, is_sampled, decisions.has_lists, is_served, list_policy.blend)
        if left_out:
            console.line(f"{name}: estimators left out, {left_out}.")
    if not any(ESTIMATORS[estimator].uses_q for estimator in estimators):
        return trajectories, estimators, None
    fits = 1 + (options.refits if "direct" in estimators else 0)
    values = passes.fitted_values(name, list_policy, decisions, rewards, options, fits, console)
    whole, *resampled = [with_values(trajectories, one.q, one.v, one.items, place_ratios) for one in values]
    return whole, estimators, np.array([_mean_start_value(one) for one in resampled]) if resampled else None


def _mean_start_value(trajectories: Trajectories) -> float:
    start_values = trajectories.start_values
    assert start_values is not None
    return float(start_values.mean())
