"""From options to what the loop trains: the log on the device, its batches, an agent's losses, its validation."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from offrec import catalogue
from offrec.catalogue import backend
from offrec.data.dataset import Dataset
from offrec.data.replay import Epochs, Replay, automatic_batch_size
from offrec.data.transitions import Floats, Transitions, reward_shift, reward_vector, reward_vector_or_none, transitions
from offrec.errors import InputError, first_line
from offrec.evaluation import ScoredEvents
from offrec.models.agent import Agent, LogFacts, return_spread
from offrec.models.network import Network, item_tables
from offrec.models.network_policy import NetworkPolicy
from offrec.policy import Policy
from offrec.runs.options import RunOptions
from offrec.training import memory
from offrec.training.memory import MemoryPlan
from offrec.training.update import TrainingTask
from offrec.types import Batch

WATCHED = 2048  # rows of validation on which diagnostics are taken: they cost passes over the catalogue
NAMES = {
    "~q_logged": "q_logged",
    "~q_random": "q_random",
    "~return_to_go": "return_logged",
    "~entropy": "entropy",
    "~kl_to_logging": "kl_to_logging",
    "~rare": "mass_rare",
}

Logging = Literal["network", "log_b", "both"]


class Shared:
    """What runs on one dataset have in common: the log on the device, and the events they are judged by."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._replays: dict[object, Replay] = {}
        self._scored: dict[object, ScoredEvents] = {}
        self._watched: dict[object, list[Batch]] = {}

    def replay(self, options: RunOptions, device: torch.device) -> Replay:
        key = self._key(options, device)
        if key not in self._replays:
            self._replays[key] = self._replay("train", options, device)
        return self._replays[key]

    def scored(self, options: RunOptions, device: torch.device) -> ScoredEvents:
        key = (options.network.history, device)
        if key not in self._scored:
            self._scored[key] = ScoredEvents(
                self.dataset, "validation", options.network.history, device
            ).cache_batches()
        return self._scored[key]

    def watched(self, options: RunOptions, device: torch.device) -> list[Batch]:
        """Batches of validation, always the same: what diagnostics are taken on."""
        key = self._key(options, device)
        if key not in self._watched:
            replay, kept = self._replay("validation", options, device), list[Batch]()
            for index in replay.shuffled(WATCHED // 4, seed=0):
                if sum(map(len, kept)) < WATCHED:
                    kept.append(replay.batch(index))
            self._watched[key] = kept
        return self._watched[key]

    def facts(self, options: RunOptions, device: torch.device) -> LogFacts:
        """All but log π̂_b, which has to be fitted."""
        return_to_go = self.replay(options, device).mdp[2]
        unit = return_spread(return_to_go.cpu()) if options.reward_unit == "returns" else 1.0
        shift = reward_shift(self._rewards(options)) if options.reward_shift else 0.0
        return LogFacts(options.gamma, unit, shift, torch.tensor(self.dataset.train_counts))

    def bytes(self, device: torch.device) -> int:
        held: list[Replay | ScoredEvents] = [*self._replays.values(), *self._scored.values()]
        return sum(each.bytes for each in held if each.device == device)

    def _rewards(self, options: RunOptions) -> Floats:
        needed = options.learner.needs_reward or options.select in ("reward", "value")
        return reward_vector(self.dataset.behaviours, options.reward, needed=needed)

    def _replay(self, split: Literal["train", "validation"], options: RunOptions, device: torch.device) -> Replay:
        sessions, rewards = self.dataset.split(split), self._rewards(options)
        if options.reward_shift:
            rewards = rewards + rewards.dtype.type(reward_shift(rewards))
        mdp: Transitions = transitions(sessions, rewards, options.gamma)
        return Replay(sessions, mdp, self.dataset.n_items, options.network.history, options.training.encode, device)

    def _key(self, options: RunOptions, device: torch.device) -> object:
        rewards = (*self._rewards(options).tolist(), options.reward_shift, options.gamma)
        return rewards, options.network.history, options.training.encode, device


@dataclass(frozen=True)
class Draft:
    """A run of which only the batches are there yet."""

    options: RunOptions
    device: torch.device
    n_items: int
    epochs: Epochs
    scored: ScoredEvents
    watched: list[Batch]
    rewards: Floats | None  # of each behaviour, where all are known
    facts: LogFacts
    logging: Logging | None  # what of π̂_b has to be fitted before
    memory: MemoryPlan  # without the log, which others may share


def draft(shared: Shared, options: RunOptions, device: torch.device) -> Draft:
    training, dataset = options.training, shared.dataset
    if training.capture == "on" and device.type != "cuda":
        raise InputError(f"training.capture is on, but {device} has no CUDA graphs; leave it at auto.")
    _check_rewards(shared, options)
    by_kernel = _by_kernels(options, device) and device.type == "cuda"
    captured = by_kernel and training.capture != "off"
    replay, facts = shared.replay(options, device), shared.facts(options, device)
    batch_size = training.batch_size or automatic_batch_size(len(replay.items))
    epochs = Epochs(replay, batch_size, options.seed, rounded=captured, by_kernel=by_kernel)
    sketch = _sketch(dataset, options, facts)
    return Draft(
        options,
        device,
        dataset.n_items,
        epochs,
        shared.scored(options, device),
        shared.watched(options, device) if options.learner.needs_reward else [],
        reward_vector_or_none(dataset.behaviours, options.reward),
        facts,
        _logging(sketch, options),
        _memory(sketch, options, epochs, captured),
    )


def _by_kernels(options: RunOptions, device: torch.device) -> bool:
    """Do kernels compute over the catalogue while the run trains? What else does waits for the device, so it cannot be
    captured.
    """
    critic = options.critic.network(options.network).width if options.learner.needs.critic == "own" else 0
    widest, most = max(options.network.width, critic), backend.MAX_KERNEL_WIDTH
    if options.catalogue == "kernels" and device.type != "cuda":
        raise InputError(f"catalogue is kernels, but they need a GPU and the device is {device}; leave it at auto.")
    if options.catalogue == "kernels" and widest > most:
        raise InputError(f"catalogue is kernels, but they take widths up to {most}, found {widest}; leave it at auto.")
    taken = options.catalogue in ("auto", "kernels") and widest <= most and backend.has_triton()
    if options.training.capture == "on" and not taken:
        raise InputError("training.capture is on, but only what the catalogue's kernels compute can be captured.")
    return taken


def _check_rewards(shared: Shared, options: RunOptions) -> None:
    if options.algorithm == "sl" and options.learner.needs_reward:
        rewards = reward_vector(shared.dataset.behaviours, options.reward)
        if rewards.min() < 0:
            raise InputError("algorithm.weight is reward, and a reward is below 0: it cannot be a weight.")


def _sketch(dataset: Dataset, options: RunOptions, facts: LogFacts) -> Agent:
    """The agent without memory. What it refuses, it refuses here."""
    with torch.device("meta"):
        facts = replace(facts, log_b=torch.empty(dataset.sessions.events))
        return Agent(dataset.n_items, options.learner, options.network, options.critic, facts, restored=True)


def _logging(agent: Agent, options: RunOptions) -> Logging | None:
    """What the learner needs of π̂_b; the network also to say how far its policy has gone from it."""
    values = agent.needs.logging == "values"
    watched = options.diagnostics == "all" and (values or agent.target is not None)
    if agent.prior is not None or agent.needs.start or watched:
        return "both" if values else "network"
    return "log_b" if values else None


def _memory(agent: Agent, options: RunOptions, epochs: Epochs, captured: bool) -> MemoryPlan:
    first, *others = (network.options for network in (agent.actor, agent.critic) if network is not None)
    # Values are read off a table with their level added, a copy for each head: Q and its gradient, two of the target.
    copies = 0 if agent.critic is None else 4 * agent.critic.table.nbytes
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
        beside=[(other.width, other.layers) for other in others],
        more=copies,
    )
    if _logging(agent, options) in (None, "log_b") or agent.prior is not None:
        return plan
    with torch.device("meta"):
        beside = Network(agent.n_items, options.network)  # π̂_b, kept for diagnostics alone
    return replace(plan, parameters=plan.parameters + sum(weights.nbytes for weights in beside.parameters()))


def agent(made: Draft, prior: Network | None = None, log_b: Tensor | None = None) -> Agent:
    """Fresh, from the run's seed. `prior`, `log_b`: π̂_b, and its logarithm at the log's events."""
    options = made.options
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        try:
            return Agent(
                made.n_items,
                options.learner,
                options.network,
                options.critic,
                replace(made.facts, log_b=log_b),
                prior,
                bfloat16_products=options.training.precision == "bf16",
            ).to(made.device)
        except (RuntimeError, MemoryError) as error:
            reason = first_line(error)
            raise InputError(
                f"A network of width {options.network.width} over {made.n_items:,} items cannot be made here "
                f"({reason}); lower network.width."
            ) from error


def job(
    made: Draft, policy: NetworkPolicy, prior: Network | None = None, value: Callable[[Policy], float] | None = None
) -> TrainingTask:
    """`prior`: π̂_b, for diagnostics of agents that do not hold it themselves. `value`: what select = value goes by."""
    options, learning = made.options, policy.agent

    def validate() -> dict[str, float]:
        ranks = made.scored.ranks(policy)
        found = ranks.metrics((10,))
        figures = {name: found[name] for name in ("HR@10", "NDCG@10")}
        figures |= {} if value is None else {"value@5": value(policy)}
        return figures if made.rewards is None else {**figures, "reward@10": ranks.reward_ndcg(made.rewards, 10)}

    def diagnose() -> dict[str, float]:
        return diagnostics(learning, made.watched, prior)

    watch = made.watched and (learning.target is not None or learning.prior is not None or prior is not None)
    return TrainingTask(
        learning,
        learning.loss,
        made.epochs,
        validate,
        {"ndcg": "NDCG@10", "reward": "reward@10", "value": "value@5", "last": None}[options.select],
        after=learning.after,
        tables=[table for table in item_tables(learning, policy.n_items) if table.requires_grad],
        around=implementation(options),
        diagnose=diagnose if watch else None,
    )


def diagnostics(agent: Agent, batches: list[Batch], prior: Network | None = None) -> dict[str, float]:
    """Means over the rows of all batches."""
    sums: dict[str, Tensor] = {}
    for batch in batches:
        for name, values in agent.diagnostics(batch, prior).items():
            sums[name] = sums.get(name, 0.0) + values.double().sum()
    rows = sum(len(batch) for batch in batches)
    return {NAMES[name]: float(total) / rows for name, total in sums.items()}


def implementation(options: RunOptions) -> Callable[[], AbstractContextManager[None]]:
    """The catalogue's implementation that the run asks for, as long as a block lasts."""
    return lambda: catalogue.use_backend(options.catalogue)
