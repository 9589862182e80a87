"""Turn options into a plan: everything about a run that can be decided or rejected before anything is written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from offrec.algorithms.user_model import UserModel
from offrec.catalogue import backend
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.list_log import ListEpochs, ListLog
from offrec.data.replay import Epochs
from offrec.data.rewards import split_rewards
from offrec.errors import InputError
from offrec.evaluation import ScoredEvents
from offrec.logging_policy import Need
from offrec.logging_policy.propensities import logged_propensities
from offrec.models.agent import Agent, LogFacts
from offrec.models.item_features import FeatureMap, ItemFeatures
from offrec.models.neighbours import STEPS
from offrec.models.network import Network, item_tables
from offrec.runs.loading import pick_device
from offrec.runs.options import RunOptions
from offrec.runs.shared_data import SharedData
from offrec.runs.user_model import plan_lists
from offrec.training import memory
from offrec.training.memory import MemoryPlan
from offrec.types import Batch, Floats


@dataclass(frozen=True)
class RunPlan:
    """A run whose batches are defined but whose networks do not exist yet."""

    shared: SharedData
    options: RunOptions
    device: torch.device
    epochs: Epochs | ListEpochs  # the batches of every epoch
    scored_events: ScoredEvents  # of validation
    diagnostic_batches: list[Batch]  # empty: no diagnostics
    rewards: Floats | None  # [E] of all events, if all are known
    facts: LogFacts
    logging: Need | None  # the parts of π̂_b that must be fitted first
    memory: MemoryPlan  # without the log, which other runs may share
    validation_lists: ListLog | None = None  # of a user model

    @property
    def dataset(self) -> Dataset:
        return self.shared.dataset


def plan_runs(dataset: Dataset, options: Mapping[str, RunOptions], console: Console) -> dict[str, RunPlan]:
    """Plan runs that train at the same time, and check that they fit into memory together.

    Args:
        dataset: The dataset of all runs.
        options: The options of each run, by name.
        console: Prints the expected memory.

    Returns:
        The plans, by name.

    Raises:
        InputError: A run cannot be trained with these options, or memory is insufficient.
    """
    devices = {name: pick_device(one.device) for name, one in options.items()}
    available = {device: memory.free(device) for device in devices.values()}  # before the log is on the device
    shared = SharedData(dataset)
    plans = {name: plan_run(shared, one, devices[name]) for name, one in options.items()}
    for device, free in available.items():
        here = [plan for plan in plans.values() if plan.device == device]
        total = sum((plan.memory for plan in here), memory.nothing(log=shared.bytes(device)))
        if all(plan.options.training.memory_check for plan in here):
            memory.check(total, device, free)
        console.line(total.sentence(device, free, len(here)))
    return plans


def count_concurrent_runs(dataset: Dataset, options: RunOptions, limit: int, processes: int = 1) -> int:
    """Return how many runs with these options the free memory of their device can hold at the same time.

    The log is stored once; every run needs its own weights, gradients and batches.

    Args:
        dataset: The dataset of the runs.
        options: The options of each run, apart from the seed.
        limit: The largest number to return.
        processes: Processes that share the device.

    Returns:
        A number from 1 to `limit`. It is `limit` if training.memory_check is off.

    Raises:
        InputError: A run cannot be trained with these options.
    """
    if limit <= 1 or not options.training.memory_check:
        return max(1, limit)
    device = pick_device(options.device)
    available = memory.free(device) // processes
    shared = SharedData(dataset)
    peak = plan_run(shared, options, device).memory.peak
    return max(1, min(limit, (available - shared.bytes(device)) // peak))


def plan_run(shared: SharedData, options: RunOptions, device: torch.device) -> RunPlan:
    """Plan one run.

    Args:
        shared: The data that it may share with other runs.
        options: Its options.
        device: Where it trains.

    Returns:
        The plan.

    Raises:
        InputError: The run cannot be trained with these options.
    """
    _check_rewards(shared, options)
    if isinstance(options.learner, UserModel):
        epochs, lists, facts, memory_plan = plan_lists(shared, options, device)
        events = shared.scored_events(options, device)
        rewards = shared.known_rewards(options)
        return RunPlan(shared, options, device, epochs, events, [], rewards, facts, None, memory_plan, lists)
    by_kernel = _uses_kernels(options, device)
    captured = by_kernel and options.training.capture != "off"
    facts = shared.log_facts(options, device)
    if options.learner.needs.logging == "logged":
        facts = replace(facts, log_b=logged_propensities(shared.dataset))
    batches = shared.epochs(options, device, round_sizes=captured, use_kernel=by_kernel)
    features = shared.features(options, device)
    agent = _agent_without_memory(shared, options, facts, features)
    return RunPlan(
        shared,
        options,
        device,
        batches,
        shared.scored_events(options, device),
        shared.diagnostic_batches(options, device) if options.learner.needs_reward else [],
        shared.known_rewards(options),
        facts,
        _logging_need(agent, options),
        _memory(agent, options, batches, captured),
    )


def _uses_kernels(options: RunOptions, device: torch.device) -> bool:
    """Return whether GPU kernels compute over the catalogue. Only their updates can be captured as CUDA graphs."""
    if options.training.capture == "on" and device.type != "cuda":
        raise InputError(f"training.capture is on, but {device} has no CUDA graphs; leave it at auto.")
    if options.catalogue == "kernels" and device.type != "cuda":
        raise InputError(f"catalogue is kernels, but kernels need a GPU and the device is {device}; leave it at auto.")
    critic_width = options.critic.network(options.network).width if options.learner.needs.critic == "own" else 0
    width, limit = max(options.network.width, critic_width), backend.MAX_KERNEL_WIDTH
    if options.catalogue == "kernels" and width > limit:
        raise InputError(
            f"catalogue is kernels, but kernels support widths up to {limit} and this network has {width}; leave it at "
            "auto."
        )
    usable = options.catalogue in ("auto", "kernels") and width <= limit and backend.has_triton()
    if options.training.capture == "on" and not usable:
        raise InputError("training.capture is on, but this run does not use the catalogue's kernels; leave it at auto.")
    return usable and device.type == "cuda"


def _check_rewards(shared: SharedData, options: RunOptions) -> None:
    if not options.learner.needs.weights_by_reward:
        return
    dataset, train = shared.dataset, shared.dataset.split("train")
    rewards = split_rewards(train, shared.rewards(options, needed=True))
    if len(rewards) and rewards.min() < 0:
        lowest = int(rewards.argmin())
        name = dataset.behaviours[train.behaviours[int(train.offsets[0]) + lowest]]
        raise InputError(
            f"An event {name!r} has the reward {rewards[lowest]:g}, but {options.algorithm} weights events by their "
            "rewards and a negative reward cannot be a weight; use rewards of 0 or more."
        )


def _agent_without_memory(
    shared: SharedData, options: RunOptions, facts: LogFacts, features: ItemFeatures | None
) -> Agent:
    """Build the agent on the meta device: it checks its options and knows its sizes, but allocates no memory."""
    with torch.device("meta"):
        facts = replace(facts, log_b=torch.empty(shared.dataset.sessions.events))
        return Agent(
            shared.dataset.n_items,
            options.learner,
            options.network,
            options.critic,
            facts,
            restored=True,
            features=features,
            shard=shared.shard,
        )


def _logging_need(agent: Agent, options: RunOptions) -> Need | None:
    """Return the parts of π̂_b that the learner or its diagnostics need."""
    log_b = agent.needs.logging == "values"
    for_diagnostics = options.diagnostics == "all" and (agent.log_b is not None or agent.target is not None)
    if agent.prior is not None or agent.needs.start or for_diagnostics:
        return "both" if log_b else "network"
    return "log_b" if log_b else None


def _memory(agent: Agent, options: RunOptions, epochs: Epochs, captured: bool) -> MemoryPlan:
    first, *others = (network.options for network in (agent.actor, agent.critic) if network is not None)
    # Values are read from a table with their level added, one copy per head: Q, its gradient and two of the target.
    copies = 0 if agent.critic is None else 4 * agent.critic.items_in.nbytes
    if agent.critic is not None and agent.actor is not None and 64 < first.width <= 128:
        copies += agent.actor.items_in.nbytes  # transposed, for the pass that computes the gradient of the state
    # With features: the mapped features, the table, the bias and their gradients.
    maps = [one for one in agent.modules() if isinstance(one, FeatureMap)]
    copies += sum(8 * 4 * len(one.features.seen) * one.dense.shape[1] for one in maps)
    plan = memory.plan(
        agent,
        item_tables(agent, agent.n_items),
        table_state=options.training.table_state,
        sizes=epochs.sizes(epochs.plan(0)),
        width=first.width,
        layers=first.layers,
        history=options.network.history,
        log=0,
        captured=captured,
        half=options.training.precision == "bf16",
        dense=options.catalogue == "reference",
        others=[(other.width, other.layers) for other in others],
        more=copies,
    )
    if agent.neighbours is not None:
        counts = 2 * 4 * STEPS * len(epochs.replay.items)  # of each event, which the agent on `meta` does not have
        plan = replace(plan, parameters=plan.parameters + counts)
    if _logging_need(agent, options) in (None, "log_b") or agent.prior is not None:
        return plan
    with torch.device("meta"):
        prior = Network(
            agent.n_items, options.network, features=agent.features, shard=agent.shard
        )  # π̂_b, which only diagnostics read
    return replace(plan, parameters=plan.parameters + sum(weights.nbytes for weights in prior.parameters()))
