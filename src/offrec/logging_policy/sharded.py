"""Fit π̂_b by several ranks, each with a part of the catalogue and of the sessions."""

import math
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from offrec import losses
from offrec.catalogue import log_prob
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.files import publish_folder
from offrec.data.rank_epochs import RankEpochs
from offrec.data.replay import Epochs, Replay, automatic_batch_size
from offrec.data.segments import Segments, segment_sessions
from offrec.errors import InputError, Interrupted
from offrec.logging_policy import LoggingPolicy, Need, cache, calibration, fitting
from offrec.logging_policy.cache import FitSpec, Part
from offrec.models.item_features import ItemFeatures
from offrec.models.network import Network, item_tables, sharded_rows
from offrec.training import sharded_checkpoint
from offrec.training.ranks import Ranks
from offrec.training.sharded import ShardedTrainer, load_module_rows
from offrec.training.update import TrainingTask
from offrec.types import Batch

FILE = "network.safetensors"


@dataclass(frozen=True)
class RankFit:
    """What the fits of one rank share."""

    spec: FitSpec  # with the whole dataset
    own: Dataset  # with the sessions of this rank
    features: ItemFeatures | None  # of the items of this rank
    ranks: Ranks
    device: torch.device
    console: Console

    def network(self) -> Network:
        """Build the network of this rank's items from the seed."""
        spec, shard = self.spec, self.ranks.shard(self.spec.dataset.n_items)
        with torch.random.fork_rng():
            torch.manual_seed(spec.seed)
            return Network(spec.dataset.n_items, spec.network, features=self.features, shard=shard).to(self.device)


def load_or_fit_sharded(fit: RankFit, need: Need) -> LoggingPolicy:
    """Load the parts of π̂_b of this rank from the cache, or fit them. All ranks must call it.

    Raises:
        InputError: If there are fewer training sessions than folds, or if a cached folder cannot be read.
    """
    spec, ranks = fit.spec, fit.ranks
    parts: list[Part] = [part for part in get_args(Part) if need in (part, "both")]
    sessions = len(spec.dataset.split("train"))
    if "log_b" in parts and not 2 <= spec.folds <= sessions:
        raise InputError(f"folds must be between 2 and the {sessions} training sessions; got {spec.folds}.")
    root = ranks.from_leader(
        cache.writable_root(spec.dataset.path / "logging", fit.console) if ranks.is_leader else None
    )
    with ExitStack() as stack:
        if ranks.is_leader:
            for folder in sorted(spec.folder(root, part) for part in parts):
                stack.enter_context(cache.fit_lock(folder, fit.console))
        missing = ranks.from_leader([part for part in parts if not cache.is_complete(spec.folder(root, part))])
        if missing:
            _fit(fit, missing, root)
    folders = {part: spec.folder(root, part) for part in parts}
    calibrations = {
        f"{part}.{name}": value
        for part, folder in folders.items()
        for name, value in cache.read_description(folder)["calibration"].items()
    }
    network, log_b = None, None
    if "network" in folders:
        network = fit.network()
        rows = sharded_rows(network)
        tensors, facts = sharded_checkpoint.load_rows(folders["network"] / FILE, rows)
        if facts.get("key") != folders["network"].name:
            raise InputError(f"{folders['network']} belongs to another fit; remove that folder.")
        network.load_state_dict(tensors)
        network = network.requires_grad_(False).eval()
    if "log_b" in folders:
        train = fit.own.split("train")
        first = int(train.offsets[0]) if ranks.data_ranks > 1 else 0
        log_b = cache.read_log_b(spec, folders["log_b"])[first : int(train.offsets[-1])].clone().to(fit.device)
    return LoggingPolicy(network, log_b, calibrations)


def _fit(fit: RankFit, parts: list[Part], root: Path) -> None:
    """Fit the missing parts and publish their folders."""
    spec, ranks = fit.spec, fit.ranks
    fit.console.line(fitting.announcement(spec, parts, root))
    train, history = spec.dataset.split("train"), spec.network.history
    fold = fitting.assign_folds(len(np.unique(train.offsets)) - 1, spec.folds, spec.seed)
    replay = fitting.make_replay(fit.own, fit.own.split("train"), history, spec.training.encode, fit.device)
    validation = fitting.make_replay(fit.own, fit.own.split("validation"), history, "exact", fit.device)
    segments = segment_sessions(train, history, spec.training.encode)
    of_segment, of_own = (fold[fitting.session_of(train, one.begin)] for one in (segments, replay.segments))
    with ExitStack() as stack:
        made = None
        if ranks.is_leader:
            publish = partial(publish_folder, replace=True)
            made = {part: stack.enter_context(publish(spec.folder(root, part))) for part in parts}
        folders = ranks.from_leader(made)
        if "network" in parts:
            network = _train(fit, "π̂_b", replay, segments, validation, folders["network"])
            measured = _gather(fit, *_measure(network, validation, spec.seed))
            key = {"key": spec.folder(root, "network").name}
            sharded_checkpoint.save(folders["network"] / FILE, network.state_dict(), key, sharded_rows(network), ranks)
            if ranks.is_leader:
                cache.write_description(spec, "network", measured[1], {}, folders["network"])
        if "log_b" in parts:
            exact = fitting.make_replay(fit.own, fit.own.split("train"), history, "exact", fit.device)
            of_exact = fold[fitting.session_of(train, exact.segments.begin)]
            results = []
            for number in range(spec.folds):
                others = replay.subset(np.flatnonzero(of_own != number))
                name, folder = f"π̂_b without fold {number + 1}", folders["log_b"] / f"without-{number + 1}"
                network = _train(fit, name, others, segments[np.flatnonzero(of_segment != number)], validation, folder)
                held_out = exact.subset(np.flatnonzero(of_exact == number))
                results.append(_measure(network, held_out, spec.seed))
            probabilities = calibration.concatenate([one for one, _ in results])
            events, summary = _gather(fit, probabilities, [sample for _, samples in results for sample in samples])
            if ranks.is_leader:
                log_b = np.full(len(spec.dataset.sessions.items), np.nan, dtype=np.float32)
                log_b[events.event] = events.log_p
                cache.write_log_b(spec, log_b, summary, folders["log_b"])
        ranks.barrier()  # all files are written; the leader publishes them
    ranks.barrier()


def _measure(
    network: Network, replay: Replay, seed: int
) -> tuple[calibration.EventProbabilities, list[calibration.HeadSample]]:
    if len(replay.segments):
        return fitting.measure(network, replay, seed)
    floats = np.empty(0, np.float32)
    return calibration.EventProbabilities(np.empty(0, np.int64), floats, floats, np.empty(0, np.bool_)), []


def _gather(
    fit: RankFit, probabilities: calibration.EventProbabilities, samples: list[calibration.HeadSample]
) -> tuple[calibration.EventProbabilities, dict[str, float]]:
    """Return the probabilities of the events of all ranks and their calibration. The temperature is the leader's."""
    temperature = calibration.best_temperature(samples) if samples else 1.0
    everything = calibration.concatenate(fit.ranks.gather_data(probabilities))
    return everything, fit.ranks.from_leader(calibration.summarise_at(everything, temperature))


def _train(fit: RankFit, name: str, replay: Replay, segments: Segments, validation: Replay, folder: Path) -> Network:
    """Train one network, and return the one of the best epoch."""
    spec, ranks, network = fit.spec, fit.ranks, fit.network()
    total = sum(ranks.gather_data(int(replay.rows.sum())))
    batch_size = spec.training.batch_size or automatic_batch_size(total)
    epochs = Epochs(replay, batch_size, spec.seed)
    if ranks.data_ranks > 1:
        epochs = RankEpochs(replay, segments, batch_size, spec.seed)

    def loss(batch: Batch) -> dict[str, Tensor]:
        pi = network(batch)
        if spec.training.precision == "bf16":
            pi = pi.as_bfloat16()
        return {"cross_entropy": losses.negative_log_likelihood(log_prob(pi, batch.action[:, None])[:, 0])}

    def validate() -> dict[str, float]:
        events = len(validation.items)
        mean = calibration.mean_log_likelihood(network.eval(), validation) if events else 0.0
        sums = ranks.gather_data((mean * events, events))
        mean = sum(one for one, _ in sums) / sum(number for _, number in sums)
        return {"log-likelihood": mean, "times chance": math.exp(mean) * network.n_items}

    task = TrainingTask(network, loss, epochs, validate, "times chance", tables=item_tables(network, network.n_items))
    if ranks.is_leader:
        folder.mkdir(exist_ok=True)
    ranks.barrier()
    facts = {"data_hash": spec.dataset.meta["data_hash"]}
    fit.console.line(name)
    trainer = ShardedTrainer(task, spec.training, folder, facts, spec.seed, fit.console, ranks=ranks)
    try:
        trainer.run()
    except Interrupted as error:
        raise Interrupted("Stopped while fitting the logging policy; the next run will start the fit again.") from error
    load_module_rows(network, folder / "best.safetensors", facts)
    ranks.barrier()
    if ranks.is_leader:
        for path in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
            path.unlink()
    return network.eval()
