"""A run from options to a trained policy: the one file that knows every part.

    python -m offrec.experiment RUN.toml        needs torch, numpy and safetensors only

RUN.toml holds the options of a run and, at its top, `dataset` and `out`; the run.toml that every run leaves in its
folder is such a file.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from offrec import config
from offrec.algorithms import Symbols, Terms
from offrec.config import RunOptions
from offrec.console import Console
from offrec.data.dataset import Dataset, Vocabulary, read_vocabulary
from offrec.data.replay import Replay
from offrec.data.transitions import Transitions, reward_of, transitions
from offrec.errors import InputError, Interrupted, RunError
from offrec.evaluation import ranks
from offrec.networks import Network
from offrec.policy import NetworkPolicy
from offrec.training import Job, Trainer, load_module
from offrec.types import Batch

RUN_VERSION = 1


def train(
    dataset: str | Path | Dataset,
    out: str | Path,
    *,
    algorithm: str = "sl",
    backbone: str = "gru",
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
    named = {"algorithm.name": algorithm, "network.backbone": backbone, "seed": seed, "device": device}
    flat = {**named, **(settings or {})}
    chosen = str(flat["network.backbone"])
    layers = config.layered(str(flat.get("preset", preset)), chosen, dataset.protocol.format, flat)
    return run(dataset, Path(out), config.build(layers), resume=resume, force=force, console=console or Console())


def run(
    dataset: Dataset, out: Path, options: RunOptions, *, resume: bool, force: bool, console: Console
) -> NetworkPolicy:
    device = pick_device(options.device)
    mdp = transitions(dataset.split("train"), reward_of(dataset.behaviours, options.reward), options.gamma)
    _open_folder(dataset, out, options, resume=resume, force=force)
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        network = Network(dataset.n_items, options.network).to(device)
    policy = NetworkPolicy(f"{options.algorithm}/{options.network.backbone}", network, dataset.vocabulary, device)
    trainer = Trainer(
        _job(dataset, mdp, options, policy),
        options.training,
        out,
        {"data_hash": dataset.meta["data_hash"]},
        options.seed,
        console,
    )
    if resume and (out / "last.safetensors").exists():
        trainer.resume()
        if trainer.place.finished:
            console.line(f"{out} is already trained; its best epoch is {trainer.place.best_epoch + 1}.")
    size = sum(parameter.numel() for parameter in network.parameters())
    console.line(
        f"{policy.name} on {dataset.path.name} ({dataset.fingerprint}): {dataset.n_items:,} items, "
        f"{dataset.split('train').events:,} transitions, {size:,} parameters, {device}"
    )
    trainer.run()
    load_module(network, out / "best.safetensors")
    return policy


def _job(dataset: Dataset, mdp: Transitions, options: RunOptions, policy: NetworkPolicy) -> Job:
    history, training = options.network.history, options.training
    replay = Replay(dataset.split("train"), mdp, dataset.n_items, history, training.encode, policy.device)

    def loss(batch: Batch) -> Terms:
        symbols = Symbols(
            pi=policy.network(batch),
            actions=batch.action[:, None],
            rewards=batch.reward[:, None],
            discounts=batch.discount[:, None],
            to_go=batch.to_go,
        )
        return options.learner.loss(symbols)

    def validate() -> dict[str, float]:
        found = ranks(policy, dataset, "validation").figures((10,))
        if not found.events:
            raise InputError(
                f"{dataset.path} has no event to score in its validation split; "
                "give it more sessions, or score first events and unseen items too."
            )
        return {name: found[name] for name in ("HR@10", "NDCG@10")}

    def plan(epoch: int) -> list[Any]:
        return replay.shuffled(training.batch_size, (options.seed, epoch))

    return Job(policy.network, loss, plan, replay.batch, validate, "NDCG@10")


def _open_folder(dataset: Dataset, out: Path, options: RunOptions, *, resume: bool, force: bool) -> None:
    if resume and (out / "run.json").exists():
        return _check_resume(dataset, out, options)
    if out.exists() and not force:
        raise InputError(f"{out} exists already; choose another --out, or --resume to go on, or --force to start anew.")
    aside = out.with_name(f".{out.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    flat = options.flat()
    facts = {
        "run_version": RUN_VERSION,
        "offrec": _version(),
        "dataset": str(dataset.path.resolve()),
        "fingerprint": dataset.fingerprint,
        "data_hash": dataset.meta["data_hash"],
        "items": dataset.n_items,
        "item_ids": dataset.meta["item_ids"],
        "options": flat,
    }
    (aside / "run.json").write_text(json.dumps(facts, indent=2) + "\n")
    places = {"dataset": str(dataset.path.resolve()), "out": str(out.resolve())}
    (aside / "run.toml").write_text(config.to_toml({**places, **flat}))
    for name in ("item_ids.npy", "item_ids_offsets.npy"):
        if (dataset.path / name).exists():
            shutil.copyfile(dataset.path / name, aside / name)
    if force and out.exists():
        shutil.rmtree(out)
    aside.replace(out)
    return None


def _check_resume(dataset: Dataset, out: Path, options: RunOptions) -> None:
    facts = read_run(out)
    if facts["data_hash"] != dataset.meta["data_hash"]:
        raise InputError(
            f"{out} was trained on another dataset (fingerprint {facts['fingerprint']}, this one is "
            f"{dataset.fingerprint}); resume it with its own, {facts['dataset']}."
        )
    before, now = facts["options"], options.flat()
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key) and key != "device"]
    if changed:
        raise InputError(
            f"{out} was started with {changed[0]} = {before.get(changed[0])}, not {now.get(changed[0])}; "
            "resume it with the options it was started with, or train a new run."
        )


def read_run(run: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads((run / "run.json").read_text())
    except FileNotFoundError as error:
        raise InputError(f"{run} is not a run: it has no run.json; make one with `offrec train`.") from error
    except ValueError as error:
        raise InputError(f"{run}/run.json is damaged ({error}); train the run again.") from error
    if facts.get("run_version") != RUN_VERSION:
        raise InputError(
            f"{run} has run format {facts.get('run_version')}, this offrec reads {RUN_VERSION}; train it again."
        )
    return facts


def load(run: str | Path, device: str = "auto") -> NetworkPolicy:
    """The best policy of a run. Needs the run's folder alone, not its dataset."""
    run = Path(run)
    facts = read_run(run)
    options = config.build(facts["options"])
    where = pick_device(device)
    network = Network(facts["items"], options.network)
    try:
        stored = load_module(network, run / "best.safetensors")
    except RuntimeError as error:
        raise InputError(
            f"{run}/best.safetensors does not fit the network in run.json ({error}); train it again."
        ) from error
    if stored["data_hash"] != facts["data_hash"]:
        raise InputError(f"{run}/best.safetensors comes from a run on another dataset; train it again.")
    vocabulary: Vocabulary = read_vocabulary(run, facts["item_ids"])
    return NetworkPolicy(f"{options.algorithm}/{options.network.backbone}", network, vocabulary, where)


def dataset_of(run: str | Path, dataset: str | Path | None = None) -> Dataset:
    """The dataset a run was trained on, refused if it is another."""
    facts = read_run(Path(run))
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
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"The device {name!r} cannot be used here ({str(error).splitlines()[0]}); try --device cpu."
        ) from error
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: float32 accumulation, operands of 10 bits
    return device


def _version() -> str:
    try:
        return version("offrec")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m offrec.experiment RUN.toml", file=sys.stderr)
        return 2
    try:
        flat = config.read_toml(Path(arguments[0]))
        missing = [key for key in ("dataset", "out") if key not in flat]
        if missing:
            raise InputError(f'{arguments[0]} does not say {missing[0]}; add a line {missing[0]} = "…" at its top.')
        dataset, out = flat.pop("dataset"), flat.pop("out")
        train(dataset, out, settings=flat, resume=Path(out, "run.json").exists())
    except InputError as error:
        print(f"offrec: {error}", file=sys.stderr)
        return 2
    except (RunError, Interrupted) as error:
        print(f"offrec: {error}", file=sys.stderr)
        return 130 if isinstance(error, Interrupted) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
