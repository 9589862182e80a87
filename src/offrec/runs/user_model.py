"""Plan and train a user model: the parts of a run that differ from those of learners with networks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch

from offrec import catalogue
from offrec.algorithms.user_model import UserModel
from offrec.catalogue.shard import batch_group
from offrec.data.dataset import Dataset
from offrec.data.list_log import ListEpochs, ListLog
from offrec.errors import InputError
from offrec.models.agent import LogFacts
from offrec.models.log_shape import LogShape
from offrec.models.network_policy import NetworkPolicy
from offrec.models.user_agent import UserModelAgent, build_user_agent
from offrec.runs.options import RunOptions
from offrec.runs.shared_data import SharedData
from offrec.training.memory import MemoryPlan
from offrec.training.optimiser import Optimiser
from offrec.training.update import TrainingTask

LISTS_PAGE = "docs/how-to/your-log.md"
ACTIVATIONS = 64  # estimated bytes per (list, type, item) of a batch for the backward pass


def plan_lists(
    shared: SharedData, options: RunOptions, device: torch.device
) -> tuple[ListEpochs, ListLog, LogFacts, MemoryPlan]:
    """Read the lists of training and validation sessions.

    Args:
        shared: The data of the run.
        options: Its options.
        device: Where it trains.

    Returns:
        Training batches, validation lists, facts about the log, and the memory of the run.

    Raises:
        InputError: If an option does not apply to the user model.
    """
    assert isinstance(options.learner, UserModel)
    if options.select != "last":
        raise InputError(f"select must be last for user-model, which always trains all epochs; got {options.select}.")
    if options.training.capture == "on":
        raise InputError("training.capture must be off for user-model: its batches have different sizes.")
    shared.rewards(options, needed=True)  # every behaviour needs a reward
    epochs, validation = shared.list_epochs(options, device), shared.validation_lists(options, device)
    return epochs, validation, LogFacts(), _memory(shared, options, epochs, device)


def missing_lists(options: RunOptions, dataset: Dataset) -> str | None:
    """Return the warning for a user model that is trained on a log without lists; None for other runs."""
    if not isinstance(options.learner, UserModel) or LogShape.of(dataset).list_length:
        return None
    return (
        f"{dataset.path} contains no lists, so {options.algorithm} has to assume what visitors ignored and earns much "
        "less than with lists; if lists were logged, prepare them with --format decisions or --format served "
        f"({LISTS_PAGE})."
    )


def _memory(shared: SharedData, options: RunOptions, epochs: ListEpochs, device: torch.device) -> MemoryPlan:
    assert isinstance(options.learner, UserModel)
    shared.features(options, device)  # read before the meta device is selected, which would store no values
    with torch.device("meta"):
        agent = _build(shared, options, device)
    parameters = sum(tensor.nbytes for tensor in (*agent.parameters(), *agent.buffers()))
    trained = sum(tensor.nbytes for tensor in agent.parameters())
    largest = max(size.rows for size in epochs.begin(0))
    batch = update_bytes(agent, largest, epochs.log.k)
    log = sum(tensor.nbytes for tensor in vars(epochs.log.rows).values())
    return MemoryPlan(parameters, trained, 2 * trained, log, batch)


def update_bytes(agent: UserModelAgent, lists: int, k: int) -> int:
    """Return the estimated activations and temporary memory of an update with lists of k items."""
    return ACTIVATIONS * lists * agent.learner.types * k + 2 * agent.leave_effect.nbytes


def _build(shared: SharedData, options: RunOptions, device: torch.device) -> UserModelAgent:
    assert isinstance(options.learner, UserModel)
    return build_user_agent(
        shared.dataset.n_items,
        options.learner,
        options.network,
        LogShape.of(shared.dataset),
        shared.features(options, device),
        shared.shard,
    )


def build_trained_model(
    shared: SharedData, options: RunOptions, epochs: ListEpochs, validation: ListLog | None, device: torch.device
) -> UserModelAgent:
    """Build the user model of a run from its seed, and select how visitors choose if there are validation lists."""
    assert isinstance(options.learner, UserModel)
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        agent = _build(shared, options, device).to(device)
    rewards = torch.from_numpy(shared.item_rewards(options))
    agent.start(epochs.log, rewards, policy_reads_log=policy_reads_log(shared.dataset))
    if options.learner.choice == "auto" and agent.has_lists and validation is not None and validation.sessions:
        with batch_group(None):  # if sessions are divided over ranks, all of them fit the same pilots
            agent.is_cascade.fill_(shared.from_leader(_prefers_cascade(shared, options, epochs, validation, device)))
    agent.start_choice(epochs.log)
    return agent


def _prefers_cascade(
    shared: SharedData, options: RunOptions, epochs: ListEpochs, validation: ListLog, device: torch.device
) -> bool:
    """Return whether choice place by place predicts validation sessions better.

    Both forms are fitted to a part of the training sessions. A fit with one type of visitor would be faster, but it
    prefers the logit even where visitors choose place by place: the lists in the log depend on the visitor.
    """
    assert isinstance(options.learner, UserModel)
    likelihoods, training = {}, options.training
    forms: tuple[Literal["logit", "cascade"], ...] = ("logit", "cascade")
    pilot_log = shared.pilot_lists(epochs, options, device)
    pilot_epochs = ListEpochs(pilot_log, training.batch_size, options.seed)
    for choice in forms:
        learner = replace(options.learner, choice=choice)
        pilot = build_trained_model(shared, replace(options, learner=learner), pilot_epochs, None, device)
        optimiser = Optimiser(pilot, training.learning_rate)
        with catalogue.use_backend(options.catalogue):
            for epoch in range(training.epochs):
                pilot_epochs.begin(epoch)
                optimiser.rate = training.learning_rate * (1 - epoch / training.epochs)
                for sessions in pilot_epochs.batches:
                    optimiser.zero_grad()
                    terms = pilot.loss(pilot_epochs.log.batch(sessions))
                    torch.autograd.backward(torch.stack([term.mean() for term in terms.values()]).sum())
                    optimiser.step()
            likelihoods[choice] = pilot.choice_likelihood(validation)
    return likelihoods["cascade"] > likelihoods["logit"]


def policy_reads_log(dataset: Dataset) -> bool:
    """Return whether the policies that wrote a log knew visitors only from the log.

    This holds for decision logs of `offrec serve`, and for logs that only trained policies wrote in a simulated shop.
    """
    return dataset.protocol.format == "served" or "served" in (dataset.meta.get("shop") or {})


def user_model_task(
    policy: NetworkPolicy,
    options: RunOptions,
    epochs: ListEpochs,
    validation: ListLog,
    rank: Callable[[], dict[str, float]],
) -> TrainingTask:
    """Return the task for the training loop.

    Args:
        policy: The policy to train.
        options: The options of the run.
        epochs: The training batches.
        validation: Validation lists.
        rank: Ranks the validation events; called after the last epoch.
    """
    agent = policy.agent
    assert isinstance(agent, UserModelAgent)

    def validate() -> dict[str, float]:
        is_last = epochs.epoch == options.training.epochs - 1
        if is_last:
            agent.finish(epochs.log, validation)
        figures = agent.validate(validation, is_last, options.seed)
        return {**figures, **rank()} if is_last else figures

    return TrainingTask(
        agent,
        agent.loss,
        epochs,
        validate,
        None,
        tables=[agent.x],
        around=lambda: catalogue.use_backend(options.catalogue),
    )
