"""Train one run by several processes: the steps of `offrec.runs.train` for one rank."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from offrec import catalogue
from offrec.catalogue import backend
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.files import absolute_if_unnamed
from offrec.data.locks import lock_folder
from offrec.errors import InputError
from offrec.logging_policy import LoggingPolicy
from offrec.logging_policy.cache import FitSpec
from offrec.logging_policy.sharded import RankFit, load_or_fit_sharded
from offrec.models.agent import Agent
from offrec.models.network_policy import NetworkPolicy
from offrec.models.user_agent import UserModelAgent
from offrec.runs.folder import check_run_folder, create_run_folder, read_run, run_id
from offrec.runs.loading import pick_device, policy_name
from offrec.runs.options import RunOptions, logging_training, resolve_options
from offrec.runs.plan import RunPlan, plan_run
from offrec.runs.rank_data import RankData
from offrec.runs.replacement import take_place
from offrec.runs.train import DIAGNOSTICS, LOCKED, build_agent, build_task, sum_diagnostics
from offrec.runs.user_model import missing_lists
from offrec.training import memory
from offrec.training.ranks import Ranks
from offrec.training.sharded import ShardedTrainer, load_module_rows
from offrec.training.sharded_checkpoint import exists as has_checkpoint
from offrec.training.trackers import TrackedRun, Trackers, choose_trackers
from offrec.training.update import TrainingTask

FOLDS = 2


def train_sharded(
    dataset: str | Path | Dataset,
    out: str | Path,
    ranks: Ranks,
    *,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
    track: Sequence[str] = (),
    console: Console | None = None,
) -> NetworkPolicy:
    """Train a policy by several processes, and store the run in a folder that they share. All ranks must call it.

    Args:
        dataset: The dataset, or its folder. All ranks must be able to read it.
        out: Folder for the run.
        ranks: The processes.
        settings: Options under dotted keys, as in `offrec.train`.
        resume: Continue the run in `out` if there is one. It may have been trained by another number of processes.
        force: Replace the run in `out` if there is one.
        track: Trackers of the leader, as in `offrec.train`.
        console: Prints progress; only the leader's is used.

    Returns:
        The policy of the best checkpoint, with this rank's items.

    Raises:
        InputError: An option, the dataset or the folder is not valid, or several ranks cannot train the learner.
        RunError: The loss became NaN or infinite, or memory ran out.
        Interrupted: Ctrl-C; the run is saved and can be resumed.
    """
    console = (console or Console()) if ranks.is_leader else Console(quiet=True)
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    out, track = absolute_if_unnamed(Path(out)), choose_trackers(track) if ranks.is_leader else ()
    options = resolve_options(settings or {}, dataset.protocol.format)
    _check_supported(options)
    with ExitStack() as stack:
        if ranks.is_leader:
            stack.enter_context(lock_folder(out, advice=LOCKED))
        plan = _plan(dataset, options, ranks, console)
        run = _build(plan, out, ranks, console, resume=resume, force=force, track=track)
        run.trainer.run()
        return run.finish()


def _check_supported(options: RunOptions) -> None:
    if options.select == "value":
        raise InputError("select=value cannot be used by several processes; use ndcg, reward or last.")
    if options.catalogue == "reference":
        raise InputError("catalogue=reference cannot be used by several processes; use auto.")
    if options.training.capture == "on":
        raise InputError("training.capture must be off or auto for several processes, which send messages in updates.")


def _plan(dataset: Dataset, options: RunOptions, ranks: Ranks, console: Console) -> RunPlan:
    """Plan this rank's part of a run, and check that it fits into its memory."""
    device = rank_device(options.device, ranks)
    options = replace(options, training=replace(options.training, capture="off"))
    free = memory.free(device)
    data = RankData(dataset, ranks)
    plan = plan_run(data, options, device)
    total = plan.memory + memory.nothing(log=data.bytes(device))
    available = free if device.type == "cuda" else free // _local_ranks(ranks)
    if options.training.memory_check:
        memory.check(total, device, available)
    shape = f"{ranks.catalogue_ranks} of {ranks.world} ranks store the catalogue, {ranks.data_ranks} read sessions"
    console.line(f"{shape}; per rank: {total.sentence(device, available)}")
    if device.type == "cuda":
        console.line("Updates are not captured as CUDA graphs, because ranks exchange messages.")
    return plan


def rank_device(name: str, ranks: Ranks) -> torch.device:
    """Return this rank's device. With several GPUs, the ranks of a machine use them in turn."""
    import os

    if name in ("auto", "cuda") and torch.cuda.is_available():
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', ranks.rank)) % torch.cuda.device_count()}"
        torch.cuda.set_device(name)
    return pick_device(name)


def _local_ranks(ranks: Ranks) -> int:
    import os

    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world)))


@dataclass(frozen=True)
class RankRun:
    """A run of one rank that is ready to train."""

    plan: RunPlan
    policy: NetworkPolicy
    trainer: ShardedTrainer
    out: Path
    ranks: Ranks

    def finish(self) -> NetworkPolicy:
        """Load the weights of the best checkpoint, and replace an old run."""
        progress, console = self.trainer.progress, self.trainer.console
        ended = f"{progress.epoch} of {self.plan.options.training.epochs} epochs"
        console.line(f"Trained: {ended}; epoch {progress.best_epoch + 1} is selected.")
        load_module_rows(self.policy.agent, self.trainer.folder / "best.safetensors", self.trainer.facts)
        self.ranks.barrier()
        if self.ranks.is_leader and self.trainer.folder != self.out:
            take_place(self.trainer.folder, self.out)
        self.policy.warnings = tuple(progress.warnings.values())
        for sentence in self.policy.warnings:
            console.line(f"Warning: {sentence}")
        return self.policy


def _build(
    plan: RunPlan, out: Path, ranks: Ranks, console: Console, *, resume: bool, force: bool, track: Sequence[str]
) -> RankRun:
    """Fit or load π̂_b, build this rank's networks, and let the leader create the folder to train in."""
    options, data = plan.options, plan.shared
    assert isinstance(data, RankData)
    dataset = data.whole
    checked = None
    if ranks.is_leader:
        folder = check_run_folder(dataset, out, options, resume=resume, force=force)
        checked = folder, resume and has_checkpoint(folder / "last.safetensors"), (folder / "run.json").exists()
    folder, is_resumed, has_run = ranks.from_leader(checked)
    logging = _logging_policy(plan, data, console)
    with ranks.active():
        agent = build_agent(plan, logging.network, logging.log_b, has_weights=is_resumed)
    if ranks.is_leader and not (resume and has_run):
        create_run_folder(dataset, out, options, folder=folder, logging_policy=logging.calibration)
    ranks.barrier()
    policy = NetworkPolicy(policy_name(options), agent, dataset.vocabulary, plan.device, dataset.meta["data_hash"])
    policy.source_shop, policy.item_properties = dataset.meta.get("shop"), dataset.item_properties
    prior = logging.network if agent.prior is None else None
    task = _task(plan, policy, agent, prior, ranks)
    facts = {"data_hash": policy.data_hash, "run": run_id(read_run(folder))}

    def open_trackers(first_epoch: int) -> Trackers:
        return Trackers(track, TrackedRun(out.name, folder, options.settings(), first_epoch), console)

    trainer = ShardedTrainer(task, options.training, folder, facts, options.seed, console, open_trackers, ranks=ranks)
    if is_resumed:
        trainer.resume()
        console.line(f"Resumed after {trainer.progress.updates:,} updates.")
    console.line(
        f"{policy.name} on {dataset.path.name} ({dataset.fingerprint}): {dataset.n_items:,} items, "
        f"{dataset.split('train').events:,} transitions, {plan.device}"
    )
    if (sentence := missing_lists(options, dataset)) is not None:
        console.line(f"Warning: {sentence}")
    return RankRun(plan, policy, trainer, out, ranks)


def _logging_policy(plan: RunPlan, data: RankData, console: Console) -> LoggingPolicy:
    """Return this rank's part of π̂_b, as far as the run needs it."""
    if plan.logging is None:
        return LoggingPolicy(None, None, {})
    options = plan.options
    training = replace(logging_training(options, data.whole.protocol.format), capture="auto")
    spec = FitSpec(data.whole, options.network, training, options.seed, FOLDS)
    features = data.features(options, plan.device)
    fit = RankFit(spec, data.dataset, features, data.ranks, plan.device, console)
    with catalogue.use_backend(options.catalogue), data.ranks.active():
        return load_or_fit_sharded(fit, plan.logging)


def _task(
    plan: RunPlan, policy: NetworkPolicy, agent: Agent | UserModelAgent, prior: Any, ranks: Ranks
) -> TrainingTask:
    """Return the task of this rank. Figures are those of all ranks."""
    task = build_task(plan, policy, prior)

    def around() -> Any:
        stack = ExitStack()
        stack.enter_context(backend.use_backend(plan.options.catalogue))
        stack.enter_context(ranks.active())
        return stack

    def diagnose() -> dict[str, float]:
        assert isinstance(agent, Agent)
        own = sum_diagnostics(agent, plan.diagnostic_batches, prior)
        parts = ranks.gather_data((own, sum(map(len, plan.diagnostic_batches))))
        rows = sum(number for _, number in parts)
        names = next((list(sums) for sums, _ in parts if sums), [])
        return {DIAGNOSTICS[name]: sum(sums.get(name, 0.0) for sums, _ in parts) / rows for name in names}

    # Whether there are diagnostics must not depend on the sessions of a rank.
    has_diagnostics = any(ranks.gather(task.diagnose is not None))
    return replace(task, around=around, diagnose=diagnose if has_diagnostics else None)
