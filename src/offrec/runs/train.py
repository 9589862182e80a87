"""Train and load runs: from options to a trained policy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from offrec import logging_policy
from offrec.console import Board, Console
from offrec.data.dataset import Dataset
from offrec.data.transitions import reward_vector
from offrec.data.vocabulary import Vocabulary, read_vocabulary
from offrec.errors import InputError, first_line
from offrec.estimation import value_at_5
from offrec.estimation.decision_values import ValueOptions
from offrec.logging_policy import LoggingPolicy
from offrec.models.agent import Agent
from offrec.models.network_policy import NetworkPolicy
from offrec.policy import Policy
from offrec.runs import folder as run_folder
from offrec.runs import options as config
from offrec.runs.options import RunOptions
from offrec.runs.plan import Draft, Shared, agent, draft, implementation, job
from offrec.training import memory
from offrec.training.interleaved import together
from offrec.training.loop import Trainer, load_module


def train(
    dataset: str | Path | Dataset,
    out: str | Path,
    *,
    algorithm: str = "sl",
    backbone: str | None = None,
    preset: str = "strong",
    seed: int = 0,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
    console: Console | None = None,
) -> NetworkPolicy:
    """Train a policy on a prepared dataset and leave the run in the folder `out`. `settings` are dotted keys:
    {"training.epochs": 3}.
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    flat = {"algorithm.name": algorithm, "seed": seed, "device": device, "preset": preset, **(settings or {})}
    if backbone is not None:
        flat.setdefault("network.backbone", backbone)
    layers = config.layered(flat, dataset.protocol.format)
    return run(dataset, Path(out), config.build(layers), resume=resume, force=force, console=console or Console())


def train_many(
    dataset: str | Path | Dataset,
    runs: Mapping[str, Mapping[str, Any]],
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    console: Console | None = None,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, NetworkPolicy]:
    """Train several runs at once on one device, `runs` being name → settings (dotted keys), each into out/name.

    Each is the run it would be alone. One that fails is reported (`failed(name, why)`, or a line on the console) and
    missing from what comes back; the others go on.
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    options = {name: config.build(config.layered(dict(flat), dataset.protocol.format)) for name, flat in runs.items()}
    asked = {name: (Path(out) / name, one) for name, one in options.items()}
    console = console or Console()
    with console.board() as board:
        prepared = _prepared(dataset, asked, resume=resume, force=force, console=console, board=board)

        def tell(name: str, error: Exception) -> None:
            console.line(f"{name} failed: {first_line(error)}")

        done = together({name: run.trainer for name, run in prepared.items()}, failed or tell)
    return {name: prepared[name].finished() for name in prepared if name in done}


def run(
    dataset: Dataset, out: Path, options: RunOptions, *, resume: bool, force: bool, console: Console
) -> NetworkPolicy:
    """Train one."""
    asked = {out.name: (out, options)}
    (prepared,) = _prepared(dataset, asked, resume=resume, force=force, console=console).values()
    prepared.trainer.run()
    return prepared.finished()


@dataclass(frozen=True)
class _Prepared:
    out: Path
    policy: NetworkPolicy
    trainer: Trainer

    def finished(self) -> NetworkPolicy:
        load_module(self.policy.agent, self.out / "best.safetensors")
        return self.policy


def _prepared(
    dataset: Dataset,
    asked: Mapping[str, tuple[Path, RunOptions]],
    *,
    resume: bool,
    force: bool,
    console: Console,
    board: Board | None = None,
) -> dict[str, _Prepared]:
    """Everything but the training. What can be refused is refused before anything is written."""
    devices = {name: pick_device(options.device) for name, (_, options) in asked.items()}
    available = {device: memory.free(device) for device in devices.values()}
    shared = Shared(dataset)
    drafts = {name: draft(shared, options, devices[name]) for name, (_, options) in asked.items()}
    for device, free in available.items():
        mine = [one for one in drafts.values() if one.device == device]
        whole = sum((one.memory for one in mine), memory.nothing(log=shared.bytes(device)))
        if all(one.options.training.memory_check for one in mine):
            memory.check(whole, device, free)
        console.line(whole.sentence(device, free, len(mine)))
    for out, options in asked.values():
        run_folder.check(dataset, out, options, resume=resume, force=force)
    consoles = {name: board.console(name) if board else console for name in asked}
    fitted = _fitted(dataset, drafts, consoles)
    found = {}
    for name, (out, options) in asked.items():
        learning = agent(drafts[name], fitted[name].network, fitted[name].log_b)
        if not (resume and (out / "run.json").exists()):
            run_folder.create(dataset, out, options, force=force, logging_policy=fitted[name].calibration)
        found[name] = _prepare(dataset, out, drafts[name], learning, fitted[name], consoles[name], resume=resume)
    return found


def _fitted(dataset: Dataset, drafts: Mapping[str, Draft], consoles: Mapping[str, Console]) -> dict[str, LoggingPolicy]:
    """π̂_b of each run that needs it: one for all that ask for the same."""
    fitted: dict[object, LoggingPolicy] = {None: LoggingPolicy(None, None, {})}
    keys: dict[str, object] = {}
    for name, made in drafts.items():
        options, device = made.options, made.device
        training = config.logging_training(options, dataset.protocol.format)
        keys[name] = made.logging and (options.network, training, options.seed, device, made.logging)
        if made.logging is None or keys[name] in fitted:
            continue
        with implementation(options)():
            fitted[keys[name]] = logging_policy.load_or_fit(
                dataset, options.network, training, options.seed, device, consoles[name], need=made.logging
            )
    return {name: fitted[key] for name, key in keys.items()}


def _value(dataset: Dataset, made: Draft, console: Console) -> Callable[[Policy], float] | None:
    """What judges a run's checkpoints, where they are chosen by value."""
    options = made.options
    if options.select != "value":
        return None
    rewards, network = reward_vector(dataset.behaviours, options.reward), options.critic.network(options.network)
    with implementation(options)():
        logged = value_at_5.load_or_fit(dataset, rewards, options.gamma, ValueOptions(network), made.device, console)
    return value_at_5.scorer(logged, made.scored)


def _prepare(
    dataset: Dataset, out: Path, made: Draft, learning: Agent, fitted: LoggingPolicy, console: Console, *, resume: bool
) -> _Prepared:
    options, data_hash = made.options, dataset.meta["data_hash"]
    policy = NetworkPolicy(_name(options), learning, dataset.vocabulary, made.device, data_hash)
    policy.home = dataset.meta.get("shop")
    prior = fitted.network if learning.prior is None else None
    whole = job(made, policy, prior, _value(dataset, made, console))
    trainer = Trainer(whole, options.training, out, {"data_hash": data_hash}, options.seed, console)
    if resume and (out / "last.safetensors").exists():
        trainer.resume()
        if trainer.place.finished:
            console.line(f"{out} is already trained; its best epoch is {trainer.place.best_epoch + 1}.")
    size = sum(parameter.numel() for parameter in learning.parameters() if parameter.requires_grad)
    console.line(
        f"{policy.name} on {dataset.path.name} ({dataset.fingerprint}): {dataset.n_items:,} items, "
        f"{dataset.split('train').events:,} transitions, {size:,} parameters, {made.device}"
    )
    return _Prepared(out, policy, trainer)


def _name(options: RunOptions) -> str:
    return f"{options.algorithm}/{options.network.backbone}"


def load(run: str | Path, device: str = "auto") -> NetworkPolicy:
    """The best policy of a run. Needs the run's folder alone, not its dataset."""
    run = Path(run)
    facts = run_folder.read(run)
    options = config.build(facts["options"])
    where = pick_device(device)
    learned = Agent(facts["items"], options.learner, options.network, options.critic, restored=True)
    try:
        stored = load_module(learned, run / "best.safetensors")
    except RuntimeError as error:
        raise InputError(
            f"{run}/best.safetensors does not fit the network in run.json ({error}); train it again."
        ) from error
    if stored["data_hash"] != facts["data_hash"]:
        raise InputError(f"{run}/best.safetensors comes from a run on another dataset; train it again.")
    vocabulary: Vocabulary = read_vocabulary(run, facts["item_ids"])
    policy = NetworkPolicy(_name(options), learned, vocabulary, where, facts["data_hash"])
    policy.home = facts.get("shop")
    return policy


def dataset_of(run: str | Path, dataset: str | Path | None = None) -> Dataset:
    """The dataset a run was trained on, refused if it is another."""
    facts = run_folder.read(Path(run))
    if dataset is None and not Path(facts["dataset"]).exists():
        raise InputError(
            f"The dataset of {run}, {facts['dataset']}, is not there any more; say where it is: --dataset."
        )
    opened = Dataset.open(dataset or facts["dataset"])
    if opened.meta["data_hash"] != facts["data_hash"]:
        raise InputError(
            f"{run} was trained on another dataset (fingerprint {facts['fingerprint']}) than {opened.path} "
            f"({opened.fingerprint}); evaluate it on its own."
        )
    return opened


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("it computes nothing")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"The device {name!r} cannot be used here ({first_line(error)}); try --device cpu.") from error
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: float32 accumulation, operands of 10 bits
    return device
