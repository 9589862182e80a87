"""Fitting π̂_b: −log π(a|s), every event alike, with the loop that trains everything else."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offrec import losses
from offrec.catalogue import log_prob
from offrec.console import Advance, Console
from offrec.data.dataset import Dataset
from offrec.data.files import publish_folder
from offrec.data.replay import Epochs, Replay, automatic_batch_size
from offrec.data.segments import Segmentation
from offrec.data.transitions import transitions
from offrec.errors import Interrupted
from offrec.logging_policy import cache, calibration
from offrec.logging_policy.cache import FitSpec, Part
from offrec.models.network import Network, item_tables
from offrec.training import memory
from offrec.training.interleaved import train_interleaved
from offrec.training.loop import Trainer, load_module
from offrec.training.memory import MemoryPlan
from offrec.training.update import TrainingTask
from offrec.types import Batch, Longs, Sessions


@dataclass(frozen=True)
class _Model:
    """One network to fit: on these pieces of the log, in this folder."""

    name: str
    replay: Replay
    folder: Path


def fit_logging_policy(spec: FitSpec, parts: list[Part], root: Path, device: torch.device, console: Console) -> None:
    """What is missing, into its folders. To be called under their locks."""
    dataset, history = spec.dataset, spec.network.history
    train = dataset.split("train")
    console.line(_announcement(spec, parts, root))
    fold = _folds(len(np.unique(train.offsets)) - 1, spec.folds, spec.seed)
    learnt = _replay(dataset, train, history, spec.training.encode, device)
    validation = _replay(dataset, dataset.split("validation"), history, "exact", device)
    with ExitStack() as stack:
        folders = {part: stack.enter_context(publish_folder(spec.folder(root, part), replace=True)) for part in parts}
        models = [_Model("π̂_b", learnt, folders["network"])] if "network" in parts else []
        if "log_b" in parts:
            of = fold[_session(train, learnt.segments.begin)]
            for k in range(spec.folds):
                part = learnt.subset(np.flatnonzero(of != k))
                models.append(_Model(f"π̂_b without fold {k + 1}", part, folders["log_b"] / f"without-{k + 1}"))
        networks = _trained(spec, models, validation, device, console)
        if "network" in parts:
            full = networks.pop(0)
            figures = calibration.summarise(*_judged(full, validation, spec.seed))
            cache.write_network(spec, full, figures, folders["network"])
            console.line(f"π̂_b on validation: {_spoken(figures)}")
        if "log_b" in parts:
            exact = _replay(dataset, train, history, "exact", device)
            of = fold[_session(train, exact.segments.begin)]
            held_out = [exact.subset(np.flatnonzero(of == k)) for k in range(spec.folds)]
            figures = _keep_values(spec, networks, held_out, folders["log_b"])
            console.line(f"π̂_b on training sessions it was fitted without: {_spoken(figures)}")


def _announcement(spec: FitSpec, parts: list[Part], root: Path) -> str:
    on = {"network": "on all of them", "log_b": f"on all but each of {spec.folds} parts of them"}
    options, events = spec.network, spec.dataset.split("train").events
    how, where = ", ".join(on[part] for part in parts), ", ".join(str(spec.folder(root, part)) for part in parts)
    return (
        f"the logging policy is not there yet: fitting π̂_b ({options.backbone}, width {options.width}, seed "
        f"{spec.seed}) to {events:,} training events, {how}; to be kept in {where}, for every run (what only "
        "diagnostics need it for, diagnostics=some leaves out)"
    )


def _spoken(figures: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in figures.items() if name != "events")


def _keep_values(
    spec: FitSpec, networks: Sequence[Network], held_out: Sequence[Replay], folder: Path
) -> dict[str, float]:
    """held_out[k]: the sessions that networks[k] was fitted without."""
    judged = [_judged(network, part, spec.seed) for network, part in zip(networks, held_out, strict=True)]
    whole = calibration.concatenate([judgement for judgement, _ in judged])
    figures = calibration.summarise(whole, [spot for _, spots in judged for spot in spots])
    log_b = np.full(len(spec.dataset.sessions.items), np.nan, dtype=np.float32)
    log_b[whole.event] = whole.log_p
    cache.write_log_b(spec, log_b, figures, folder)
    return figures


def _judged(
    network: Network, replay: Replay, seed: int
) -> tuple[calibration.EventProbabilities, list[calibration.HeadSample]]:
    return calibration.event_probabilities(network, replay), calibration.sample_heads(network, replay, seed)


def _replay(
    dataset: Dataset, sessions: Sessions, history: int, segmentation: Segmentation, device: torch.device
) -> Replay:
    unrewarded = transitions(sessions, np.zeros(len(dataset.behaviours), dtype=np.float32), gamma=0.0)
    return Replay(sessions, unrewarded, dataset.n_items, history, segmentation, device)


def _folds(sessions: int, folds: int, seed: int) -> Longs:
    """[S] the fold of each session, sizes within one of each other."""
    return np.random.default_rng((seed, folds)).permutation(np.arange(sessions) % folds)


def _session(sessions: Sessions, event: Longs) -> Longs:
    """The number, among the sessions that have events, of the one that holds an event."""
    return np.searchsorted(np.unique(sessions.offsets), event, side="right") - 1


def _trained(
    spec: FitSpec, models: list[_Model], validation: Replay, device: torch.device, console: Console
) -> list[Network]:
    """At once on a GPU, if they fit; one after the other elsewhere, where it takes less memory and no longer."""
    one = _memory(spec, models[0], validation, device)
    free = memory.free(device)
    if spec.training.memory_check:
        memory.check(one, device, free)
    at_once = device.type == "cuda" and len(models) > 1 and len(models) * one.peak < free
    groups = [models] if at_once else [[model] for model in models]
    try:
        with _consoles(console) as named:
            for group in groups:
                made = {model.name: _trainer(spec, model, validation, device, named(model.name)) for model in group}
                _run(made)
    except Interrupted as error:
        raise Interrupted("Stopped while fitting the logging policy; the next time it begins anew.") from error
    return [_best(spec, model, device) for model in models]


def _best(spec: FitSpec, model: _Model, device: torch.device) -> Network:
    """The network as it was in its best epoch; of its training only the figures stay."""
    network = _untrained(spec, device)
    load_module(network, model.folder / "best.safetensors")
    for path in model.folder.glob("*.safetensors"):
        path.unlink()
    return network.eval()


def _untrained(spec: FitSpec, device: torch.device) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(spec.seed)
        return Network(spec.dataset.n_items, spec.network).to(device)


def _run(trainers: Mapping[str, Trainer]) -> None:
    """All or none."""

    def failed(name: str, error: Exception) -> None:
        errors.append(error)

    errors: list[Exception] = []
    train_interleaved(trainers, failed)
    if errors:
        raise errors[0]


def _trainer(spec: FitSpec, model: _Model, validation: Replay, device: torch.device, console: Console) -> Trainer:
    network, narrow = _untrained(spec, device), spec.training.precision == "bf16"

    def loss(batch: Batch) -> dict[str, Tensor]:
        pi = network(batch)
        if narrow:
            pi = replace(pi, state=pi.state.bfloat16(), table=pi.table.bfloat16())
        return {"cross_entropy": losses.negative_log_likelihood(log_prob(pi, batch.action[:, None])[:, 0])}

    def validate() -> dict[str, float]:
        mean = calibration.mean_log_likelihood(network.eval(), validation)
        # The loop's margin is a share of the figure, which must be above 0 for that: |A| / perplexity, the same order.
        return {"log-likelihood": mean, "times chance": math.exp(mean) * network.n_items}

    task = TrainingTask(
        network,
        loss,
        _epochs(spec, model, device),
        validate,
        "times chance",
        tables=item_tables(network, network.n_items),
    )
    model.folder.mkdir(exist_ok=True)
    facts = {"data_hash": spec.dataset.meta["data_hash"]}
    return Trainer(task, spec.training, model.folder, facts, spec.seed, console)


def _epochs(spec: FitSpec, model: _Model, device: torch.device) -> Epochs:
    captured = device.type == "cuda" and spec.training.capture != "off"
    batch_size = spec.training.batch_size or automatic_batch_size(int(model.replay.rows.sum()))
    return Epochs(model.replay, batch_size, spec.seed, round_sizes=captured)


def _memory(spec: FitSpec, model: _Model, validation: Replay, device: torch.device) -> MemoryPlan:
    """Of fitting one of them."""
    options, epochs = spec.network, _epochs(spec, model, device)
    with torch.device("meta"):
        sketch = Network(spec.dataset.n_items, options)
    return memory.plan(
        sketch,
        item_tables(sketch, sketch.n_items),
        table_state=spec.training.table_state,
        sizes=epochs.sizes(epochs.plan(0)),
        width=options.width,
        layers=options.layers,
        history=options.history,
        log=model.replay.bytes + validation.bytes,
        captured=epochs.round_sizes,
        half=spec.training.precision == "bf16",
    )


@contextmanager
def _consoles(console: Console) -> Iterator[Callable[[str], Console]]:
    """A console for each model, by name."""
    if type(console) is Console:
        with console.board() as board:
            yield board.console
    else:  # one line of somebody's display already
        yield lambda name: _Within(console, name)


class _Within(Console):
    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console.quiet)
        self.whole, self.name = console, name

    def line(self, text: str) -> None:
        self.whole.line(f"{self.name}  {text}")

    @contextmanager
    def steps(self, label: str, total: int) -> Iterator[Advance]:
        with self.whole.steps(f"{self.name}  {label}", total) as advance:
            yield advance
