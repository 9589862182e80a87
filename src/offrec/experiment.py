"""A run from options to a trained policy: the one file that knows every part.

    python -m offrec.experiment RUN.toml        needs torch, numpy and safetensors only

RUN.toml holds the options of a run and, at its top, `dataset` and `out`; the run.toml that every run leaves in its
folder is such a file.
"""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from offrec import config, run_folder
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


def run(
    dataset: Dataset, out: Path, options: RunOptions, *, resume: bool, force: bool, console: Console
) -> NetworkPolicy:
    device = pick_device(options.device)
    rewards = reward_of(dataset.behaviours, options.reward, needed=options.learner.needs_reward)
    mdp = transitions(dataset.split("train"), rewards, options.gamma)
    network = _network(dataset.n_items, options, device)
    if resume and (out / "run.json").exists():
        run_folder.check_resume(dataset, out, options)
    else:
        run_folder.create(dataset, out, options, force=force)
    name, data_hash = f"{options.algorithm}/{options.network.backbone}", dataset.meta["data_hash"]
    policy = NetworkPolicy(name, network, dataset.vocabulary, device, data_hash)
    policy.home = dataset.meta.get("shop")
    trainer = Trainer(
        _job(dataset, mdp, options, policy),
        options.training,
        out,
        {"data_hash": data_hash},
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


def _network(n_items: int, options: RunOptions, device: torch.device) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        try:
            return Network(n_items, options.network).to(device)
        except (RuntimeError, MemoryError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"A network of width {options.network.width} over {n_items:,} items cannot be made here ({reason}); "
                "lower network.width."
            ) from error


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

    batch_size = training.batch_size or automatic_batch_size(mdp.reward.size)

    def plan(epoch: int) -> list[Any]:
        return replay.shuffled(batch_size, (options.seed, epoch))

    return Job(policy.network, loss, plan, replay.batch, validate, "NDCG@10")


def automatic_batch_size(transitions: int) -> int:
    """A 200th of the log, between 64 and 1024: a small log needs many updates more than large batches."""
    power = round(math.log2(max(1, transitions / 200)))
    return min(1024, max(64, 1 << power))


def load(run: str | Path, device: str = "auto") -> NetworkPolicy:
    """The best policy of a run. Needs the run's folder alone, not its dataset."""
    run = Path(run)
    facts = run_folder.read(run)
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
    name = f"{options.algorithm}/{options.network.backbone}"
    policy = NetworkPolicy(name, network, vocabulary, where, facts["data_hash"])
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
        raise InputError(
            f"The device {name!r} cannot be used here ({str(error).splitlines()[0]}); try --device cpu."
        ) from error
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: float32 accumulation, operands of 10 bits
    return device


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
