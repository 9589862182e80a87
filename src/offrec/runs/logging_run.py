"""π̂_b of a run: an SL run on the same dataset, a fit in the dataset's cache, or a new fit."""

from dataclasses import replace

import numpy as np
import torch

from offrec import catalogue, logging_policy
from offrec.algorithms.supervised import Supervised
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.logging_policy import FitStart, LoggingPolicy
from offrec.models.item_features import feature_scaling
from offrec.models.network import Network
from offrec.runs.loading import StoredRun
from offrec.runs.options import RunOptions, logging_training
from offrec.runs.plan import RunPlan
from offrec.training.loop import TrainingOptions

ACTOR = "actor."


def load_logging_policy(
    plan: RunPlan,
    console: Console,
    loaded: dict[object, LoggingPolicy],
    *,
    training: TrainingOptions | None = None,
    start: FitStart | None = None,
    run: StoredRun | None = None,
) -> LoggingPolicy:
    """Return the parts of π̂_b that a run needs.

    Args:
        plan: The plan of the run.
        console: Prints progress.
        loaded: Logging policies that other runs have loaded; this run adds its own.
        training: How π̂_b is fitted; by default as `logging_training` says.
        start: Weights from which the network of π̂_b is fitted.
        run: An SL run that serves as the network of π̂_b. Cross-fitted probabilities are always fitted.
    """
    need, options, device = plan.logging, plan.options, plan.device
    if need is None:
        return LoggingPolicy(None, None, {})
    training = training or logging_training(options, plan.dataset.protocol.format)
    start_hash, run_id = None if start is None else start.hash(), None if run is None else run.id
    key = (options.network, training, options.seed, device, need, start_hash, run_id)
    if key not in loaded:
        with catalogue.use_backend(options.catalogue):
            loaded[key] = _load(plan, console, training, start, run)
    return loaded[key]


def _load(
    plan: RunPlan, console: Console, training: TrainingOptions, start: FitStart | None, run: StoredRun | None
) -> LoggingPolicy:
    dataset, options, device, need = plan.dataset, plan.options, plan.device, plan.logging
    assert need is not None
    if run is None or need == "log_b":
        return logging_policy.load_or_fit(
            dataset, options.network, training, options.seed, device, console, need=need, start=start
        )
    served = logging_policy.from_network(_network_of(run, dataset, options), dataset, options.seed, device)
    if need == "network":
        return served
    fitted = logging_policy.load_or_fit(dataset, options.network, training, options.seed, device, console, need="log_b")
    return LoggingPolicy(served.network, fitted.log_b, served.calibration | fitted.calibration)


def _network_of(run: StoredRun, dataset: Dataset, options: RunOptions) -> Network:
    with torch.random.fork_rng():  # the initial weights are overwritten
        network = Network(dataset.n_items, options.network, features=run.features)
    weights = {name.removeprefix(ACTOR): one for name, one in run.weights.items() if name.startswith(ACTOR)}
    network.load_state_dict(weights)
    return network


def check_logging_run(run: StoredRun, dataset: Dataset, options: RunOptions) -> None:
    """Raise InputError unless a run can serve as π̂_b: SL on the same dataset, with the same network."""
    flag = f"--logging-policy {run.path}"
    learner = run.options.learner
    if not isinstance(learner, Supervised) or learner.weight != "equal":
        name = run.options.algorithm if not isinstance(learner, Supervised) else "sl with algorithm.weight=reward"
        raise InputError(f"{flag} is a run of {name}; it must be a run of sl that weights all events equally.")
    if run.facts["fingerprint"] != dataset.fingerprint:
        raise InputError(
            f"{flag} was trained on another dataset ({run.facts['fingerprint']}) than {dataset.path} "
            f"({dataset.fingerprint}); use a run on the same dataset."
        )
    properties = (run.properties, dataset.item_properties)
    scaling, scaling_now = (np.zeros(0) if one is None else feature_scaling(one) for one in properties)
    if run.features is not None and not np.array_equal(scaling, scaling_now):
        raise InputError(
            f"{flag} standardises item features in another way than this run, because one of them started from an "
            "earlier run; omit --logging-policy or --from."
        )
    before = replace(run.options.network, dropout=options.network.dropout)
    for key, value in vars(before).items():
        now = getattr(options.network, key)
        if value != now:
            raise InputError(f"network.{key} is {now}, but {flag} was trained with {value}; use the same network.")
