"""Train runs: options → plan → trainer → policy."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offrec import catalogue
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.files import absolute_if_unnamed
from offrec.data.list_log import ListEpochs
from offrec.data.locks import lock_folder
from offrec.data.rewards import event_rewards
from offrec.errors import InputError, RunError, first_line
from offrec.estimation import value_at_5
from offrec.estimation.decision_values import ValueOptions
from offrec.evaluation.exposure import Exposure
from offrec.logging_policy import LoggingPolicy
from offrec.models.agent import Agent
from offrec.models.network import Network, frozen_tables, item_tables
from offrec.models.network_policy import NetworkPolicy
from offrec.models.user_agent import UserModelAgent
from offrec.policy import Policy
from offrec.runs.collapse import find_collapse
from offrec.runs.folder import check_run_folder, create_run_folder, read_run, run_id
from offrec.runs.loading import StoredRun, policy_name, read_stored_run
from offrec.runs.logging_run import check_logging_run, load_logging_policy
from offrec.runs.option_errors import merge_flags
from offrec.runs.options import logging_training, resolve_options
from offrec.runs.plan import RunPlan, plan_runs
from offrec.runs.replacement import take_place
from offrec.runs.user_model import build_trained_model, missing_lists, user_model_task
from offrec.runs.warm_start import WarmStart
from offrec.training.interleaved import train_interleaved
from offrec.training.loop import Trainer
from offrec.training.module_state import load_module
from offrec.training.sharded_checkpoint import exists as has_checkpoint
from offrec.training.trackers import TrackedRun, Trackers, choose_trackers
from offrec.training.update import ListCheck, TrainingTask
from offrec.types import Batch

DIAGNOSTICS = {
    "~q_logged": "q_logged",
    "~q_random": "q_random",
    "~return_to_go": "return_logged",
    "~entropy": "entropy",
    "~kl_to_logging": "kl_to_logging",
    "~rare": "mass_rare",
}
LOCKED = "wait for it to end, or choose another --out"
SELECTED_BY = {"ndcg": "NDCG@10", "reward": "reward@10", "value": "value@5", "last": None}


def train(
    dataset: str | Path | Dataset,
    out: str | Path,
    *,
    algorithm: str | None = None,
    backbone: str | None = None,
    preset: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
    start_from: str | Path | None = None,
    logging_policy: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    track: Sequence[str] = (),
    console: Console | None = None,
) -> NetworkPolicy:
    """Train a policy on a prepared dataset and store the run in a folder.

    Args:
        dataset: The dataset, or the folder that `offrec.prepare` wrote.
        out: Folder for the run: options, metrics.jsonl, best and last checkpoint.
        algorithm: Name of the learner; "sl" if None.
        backbone: Name of the backbone; if None, the preset's.
        preset: "strong" (the default) or "paper".
        seed: Seed of weights, batches and dropout; 0 if None.
        device: "auto" (the default), "cpu", "cuda", "cuda:1", …
        settings: Further options under dotted keys; `offrec options` lists them.
        start_from: Folder of an earlier run to start from. Its weights are matched by item id; the options that are not
            given are those of the earlier run, with a shorter schedule.
        logging_policy: Folder of an SL run on the same dataset, with the same network, that serves as π̂_b. By default
            π̂_b is fitted.
        resume: Continue the run in `out` if there is one.
        force: Replace the run in `out` if there is one, when the training has finished. Until then the old run stays.
        track: Trackers that receive the figures of each epoch: "tensorboard", "wandb", "mlflow" or "none". By default
            TensorBoard, if it is installed.
        console: Prints progress; by default to standard error.

    Returns:
        The policy of the best checkpoint.

    Raises:
        InputError: An option, the dataset or the folder is not valid.
        RunError: The loss became NaN or infinite, or memory ran out.
        Interrupted: Ctrl-C; the run is saved and can be resumed.

    Example:
        >>> policy = offrec.train("data/shop", "runs/dc", algorithm="dc", settings={"training.epochs": 3})
        >>> policy.recommend([12, 55, 9], k=10).items
        >>> policy = offrec.train("data/shop-2", "runs/dc-2", start_from="runs/dc")
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    out, console, track = absolute_if_unnamed(Path(out)), console or Console(), choose_trackers(track)
    flags = {
        "algorithm": ("algorithm.name", algorithm),
        "backbone": ("network.backbone", backbone),
        "preset": ("preset", preset),
        "seed": ("seed", seed),
        "device": ("device", device),
    }
    start = None if start_from is None else WarmStart.read(start_from)
    dataset = dataset if start is None else start.adapt(dataset)
    merged = merge_flags(flags, settings or {})
    options = resolve_options(merged if start is None else start.settings(merged), dataset.protocol.format)
    logging_run = None if logging_policy is None else read_stored_run(Path(logging_policy))
    if logging_run is not None:
        check_logging_run(logging_run, dataset, options)
    (plan,) = plan_runs(dataset, {out.name: options}, console).values()
    with lock_folder(out, advice=LOCKED):
        run = build_trainer(
            plan, out, console, resume=resume, force=force, track=track, start=start, logging_run=logging_run
        )
        try:
            run.trainer.run()
        except (RunError, MemoryError, OSError, RuntimeError):
            run.print_old_run()
            raise
        return run.finish()


def train_many(
    dataset: str | Path | Dataset,
    runs: Mapping[str, Mapping[str, Any]],
    out: str | Path,
    *,
    start_from: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    track: Sequence[str] = (),
    console: Console | None = None,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, NetworkPolicy]:
    """Train several runs concurrently on one device. Each run gives the same result as it would alone.

    Args:
        dataset: The dataset, or its folder.
        runs: The settings of each run under dotted keys, by the run's name.
        out: Folder that gets one folder per run.
        start_from: Folder of an earlier run that all runs start from, as in `train`.
        resume: Continue the runs that exist.
        force: Replace the runs that exist, each when its training has finished.
        track: Trackers, as in `train`.
        console: Prints progress.
        failed: Called with the name and the exception of a run that fails; by default a line is printed.

    Returns:
        The policies by name, without those that failed.

    Raises:
        InputError: An option, the dataset or a folder is not valid.
        Interrupted: Ctrl-C; every run is saved and can be resumed.
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    console, track = console or Console(), choose_trackers(track)
    start = None if start_from is None else WarmStart.read(start_from)
    dataset = dataset if start is None else start.adapt(dataset)
    options = {
        name: resolve_options(settings if start is None else start.settings(settings), dataset.protocol.format)
        for name, settings in runs.items()
    }
    with console.board() as board, ExitStack() as locks:
        plans = plan_runs(dataset, options, console)
        for name in plans:
            locks.enter_context(lock_folder(Path(out) / name, advice=LOCKED))
        for name, plan in plans.items():  # check all folders before building the first run
            check_run_folder(
                dataset,
                Path(out) / name,
                plan.options,
                resume=resume,
                force=force,
                start=None if start is None else start.stored.id,
            )
        loaded: dict[object, LoggingPolicy] = {}
        built = {
            name: build_trainer(
                plan,
                Path(out) / name,
                board.console(name),
                resume=resume,
                force=force,
                track=track,
                logging_policies=loaded,
                start=start,
            )
            for name, plan in plans.items()
        }
        loaded.clear()  # agents have their own copies

        def print_failure(name: str, error: Exception) -> None:
            console.line(f"{name} failed: {first_line(error)}")

        done = train_interleaved({name: run.trainer for name, run in built.items()}, failed or print_failure)
        for name, run in built.items():
            if name not in done:
                run.print_old_run()
        return {name: run.finish() for name, run in built.items() if name in done}


@dataclass(frozen=True)
class BuiltRun:
    """A run that is ready to train."""

    plan: RunPlan
    policy: NetworkPolicy
    trainer: Trainer
    out: Path  # the trainer's folder, or the folder of the run that this run replaces

    def print_old_run(self) -> None:
        """After a failure: say that the old run was not replaced, if there is one."""
        if self.trainer.folder != self.out:
            self.trainer.console.line(f"{self.out} still contains the old run.")

    def finish(self) -> NetworkPolicy:
        """Print how training ended, replace an old run, and return the policy of the best checkpoint."""
        progress, options = self.trainer.progress, self.plan.options
        ended = f"{progress.epoch} of {options.training.epochs} epochs"
        ended += ", stopped early" if progress.stopped_early else ""
        selected = f"epoch {progress.best_epoch + 1} is best"
        if options.select == "last":
            selected = "the last epoch is selected"
        elif progress.best_epoch < 0:
            selected = "the weights at the start are best"
        self.trainer.console.line(f"Trained: {ended}; {selected}.")
        load_module(self.policy.agent, self.trainer.folder / "best.safetensors", self.trainer.facts)
        if self.trainer.folder != self.out:
            take_place(self.trainer.folder, self.out)
        self.policy.warnings = tuple(progress.warnings.values())
        for sentence in self.policy.warnings:
            self.trainer.console.line(f"Warning: {sentence}")
        return self.policy


def build_trainer(
    plan: RunPlan,
    out: Path,
    console: Console,
    *,
    resume: bool = False,
    force: bool = False,
    track: Sequence[str] = (),
    logging_policies: dict[object, LoggingPolicy] | None = None,
    start: WarmStart | None = None,
    logging_run: StoredRun | None = None,
) -> BuiltRun:
    """Fit or load π̂_b if the run needs it, build the networks, and create the folder to train in.

    Args:
        plan: The plan of the run.
        out: The run's folder.
        console: Prints progress.
        resume: Continue from the last checkpoint in `out`.
        force: Replace the run in `out`.
        track: The trackers of the run, as `choose_trackers` returns them.
        logging_policies: Logging policies that other runs have loaded; this run adds its own.
        start: The earlier run to start from.
        logging_run: The SL run that serves as π̂_b.

    Returns:
        The policy and its trainer.
    """
    options, dataset = plan.options, plan.dataset
    start_id = None if start is None else start.stored.id
    folder = check_run_folder(dataset, out, options, resume=resume, force=force, start=start_id)
    is_resumed = resume and has_checkpoint(folder / "last.safetensors")
    match = None if start is None else start.match(dataset)
    fit_start = fit_training = None
    if start is not None and match is not None:
        console.line(start.sentence(match))
        for warning in start.warnings(match, dataset):
            console.line(f"Warning: {warning}.")
        fit_start = start.logging_start(plan, match)
        fit_training = logging_training(start.cold_options(options), dataset.protocol.format)
    loaded = {} if logging_policies is None else logging_policies
    logging = load_logging_policy(plan, console, loaded, training=fit_training, start=fit_start, run=logging_run)
    agent = build_agent(plan, logging.network, logging.log_b, has_weights=start is not None or is_resumed)
    if start is not None and match is not None:
        start.load_into(agent, match, plan)
    if not (resume and (folder / "run.json").exists()):
        create_run_folder(
            dataset,
            out,
            options,
            folder=folder,
            logging_policy=logging.calibration,
            logging_run=None if logging_run is None else logging_run.id,
            start=None if start is None or match is None else start.describe(match, options),
            start_path=None if start is None else start.path,
        )
    policy = NetworkPolicy(policy_name(options), agent, dataset.vocabulary, plan.device, dataset.meta["data_hash"])
    policy.source_shop, policy.item_properties = dataset.meta.get("shop"), dataset.item_properties
    prior = logging.network if agent.prior is None else None
    task = build_task(plan, policy, prior, _value_scorer(plan, console), validate_start=start is not None)
    facts = {"data_hash": policy.data_hash, "run": run_id(read_run(folder))}

    def open_trackers(first_epoch: int) -> Trackers:
        return Trackers(track, TrackedRun(out.name, folder, options.settings(), first_epoch), console)

    trainer = Trainer(task, options.training, folder, facts, options.seed, console, open_trackers)
    if is_resumed:
        trainer.resume()
        if trainer.progress.finished:
            console.line(f"{out} is already trained.")
    size = sum(parameter.numel() for parameter in agent.parameters() if parameter.requires_grad)
    console.line(
        f"{policy.name} on {dataset.path.name} ({dataset.fingerprint}): {dataset.n_items:,} items, "
        f"{dataset.split('train').events:,} transitions, {size:,} parameters, {plan.device}"
    )
    if (sentence := missing_lists(options, dataset)) is not None:
        console.line(f"Warning: {sentence}")
    return BuiltRun(plan, policy, trainer, out)


def build_agent(
    plan: RunPlan, prior: Network | None = None, log_b: Tensor | None = None, *, has_weights: bool = False
) -> Agent | UserModelAgent:
    """Build the networks from the run's seed.

    Args:
        plan: The plan of the run.
        prior: The network of π̂_b, for learners that need it.
        log_b: [E] log π̂_b of the log's events, for learners that need it.
        has_weights: Whether weights will be loaded; what they decide is then not selected again.
    """
    options = plan.options
    if isinstance(plan.epochs, ListEpochs):
        validation = None if has_weights else plan.validation_lists
        return build_trained_model(plan.shared, options, plan.epochs, validation, plan.device)
    facts = replace(plan.facts, neighbours=plan.shared.neighbours(options))
    facts = facts if log_b is None else replace(facts, log_b=log_b)
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        try:
            return Agent(
                plan.dataset.n_items,
                options.learner,
                options.network,
                options.critic,
                facts,
                prior,
                bfloat16_products=options.training.precision == "bf16",
                features=plan.shared.features(options, plan.device),
                shard=plan.shared.shard,
            ).to(plan.device)
        except (RuntimeError, MemoryError) as error:
            raise InputError(
                f"network.width {options.network.width} over {plan.dataset.n_items:,} items does not fit into memory "
                f"({first_line(error)}); lower it."
            ) from error


def build_task(
    plan: RunPlan,
    policy: NetworkPolicy,
    prior: Network | None = None,
    value: Callable[[Policy], float] | None = None,
    *,
    validate_start: bool = False,
) -> TrainingTask:
    """Return the task for the training loop: losses, batches, validation and diagnostics.

    Args:
        plan: The plan of the run.
        policy: The policy to train.
        prior: The network of π̂_b, for the diagnostics of agents that do not contain it.
        value: Estimates the policy's value, if checkpoints are selected by value.
        validate_start: Whether the weights at the start are those of a trained policy, which may be the best.
    """
    agent, select = policy.agent, SELECTED_BY[plan.options.select]

    exposures: list[Exposure] = []

    def validate() -> dict[str, float]:
        with frozen_tables(agent):
            ranks, exposure = plan.scored_events.ranks_and_exposure(policy)
            value_at_5 = {} if value is None else {"value@5": value(policy)}
        exposures[:] = [exposure]
        metrics = ranks.metrics((10,))
        figures = {name: metrics[name] for name in ("HR@10", "NDCG@10")} | value_at_5
        return figures if plan.rewards is None else {**figures, "reward@10": ranks.reward_ndcg(plan.rewards, 10)}

    if isinstance(agent, UserModelAgent):
        assert isinstance(plan.epochs, ListEpochs)
        assert plan.validation_lists is not None
        return user_model_task(policy, plan.options, plan.epochs, plan.validation_lists, validate)

    def diagnose() -> dict[str, float]:
        return mean_diagnostics(agent, plan.diagnostic_batches, prior)

    def check(diagnostics: dict[str, float]) -> ListCheck:
        (exposure,) = exposures  # of the validation before
        return ListCheck(exposure.as_json(), find_collapse(plan.options, exposure, diagnostics, policy))

    has_diagnostics = agent.target is not None or agent.prior is not None or prior is not None
    return TrainingTask(
        agent,
        agent.loss,
        plan.epochs,
        validate,
        select,
        after=agent.after_update,
        tables=[table for table in item_tables(agent, policy.n_items) if table.requires_grad],
        around=lambda: catalogue.use_backend(plan.options.catalogue),
        diagnose=diagnose if plan.diagnostic_batches and has_diagnostics else None,
        check=check,
        validate_start=validate_start and select is not None,
    )


def mean_diagnostics(agent: Agent, batches: list[Batch], prior: Network | None = None) -> dict[str, float]:
    """Return the means of the agent's diagnostics over the rows of all batches."""
    sums, rows = sum_diagnostics(agent, batches, prior), sum(len(batch) for batch in batches)
    return {DIAGNOSTICS[name]: total / rows for name, total in sums.items()}


def sum_diagnostics(agent: Agent, batches: list[Batch], prior: Network | None = None) -> dict[str, float]:
    """Return the sums of the agent's diagnostics over the rows of all batches."""
    sums: dict[str, Tensor] = {}
    for batch in batches:
        for name, values in agent.diagnostics(batch, prior).items():
            sums[name] = sums.get(name, 0.0) + values.double().sum()
    return {name: float(total) for name, total in sums.items()}


def _value_scorer(plan: RunPlan, console: Console) -> Callable[[Policy], float] | None:
    """Return a function that estimates value@5 of a checkpoint, if checkpoints are selected by value@5."""
    options, dataset = plan.options, plan.dataset
    if options.select != "value":
        return None
    rewards, network = event_rewards(dataset, options.reward), options.critic.network(options.network)
    with catalogue.use_backend(options.catalogue):
        q = value_at_5.load_or_fit(dataset, rewards, options.gamma, ValueOptions(network), plan.device, console)
    return value_at_5.scorer(q, plan.scored_events)
