"""Fit π̂_b: minimise −log π(a|s) over all events with the training loop of the learners."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offrec import losses
from offrec.backbones.gru import GRU
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
from offrec.training.loop import Trainer
from offrec.training.memory import MemoryPlan
from offrec.training.module_state import load_module
from offrec.training.update import TrainingTask
from offrec.types import Batch, Longs, Sessions


@dataclass(frozen=True)
class _Fit:
    """One network to fit: its training events and its folder."""

    name: str
    replay: Replay
    folder: Path


def fit_logging_policy(spec: FitSpec, parts: list[Part], root: Path, device: torch.device, console: Console) -> None:
    """Fit the missing parts and publish their folders. The caller holds the locks of these folders."""
    dataset, history = spec.dataset, spec.network.history
    train = dataset.split("train")
    console.line(announcement(spec, parts, root))
    fold = assign_folds(len(np.unique(train.offsets)) - 1, spec.folds, spec.seed)
    training = make_replay(dataset, train, history, spec.training.encode, device)
    validation = make_replay(dataset, dataset.split("validation"), history, "exact", device)
    with ExitStack() as stack:
        folders = {part: stack.enter_context(publish_folder(spec.folder(root, part), replace=True)) for part in parts}
        fits = [_Fit("π̂_b", training, folders["network"])] if "network" in parts else []
        if "log_b" in parts:
            segment_fold = fold[session_of(train, training.segments.begin)]
            for number in range(spec.folds):
                others = training.subset(np.flatnonzero(segment_fold != number))
                folder = folders["log_b"] / f"without-{number + 1}"
                fits.append(_Fit(f"π̂_b without fold {number + 1}", others, folder))
        networks = _train_all(spec, fits, validation, device, console)
        if "network" in parts:
            network = networks.pop(0)
            summary = calibration.summarise(*measure(network, validation, spec.seed))
            cache.write_network(spec, network, summary, folders["network"])
            console.line(f"π̂_b on validation sessions: {_summary_text(summary)}")
        if "log_b" in parts:
            exact = make_replay(dataset, train, history, "exact", device)
            segment_fold = fold[session_of(train, exact.segments.begin)]
            held_out = [exact.subset(np.flatnonzero(segment_fold == number)) for number in range(spec.folds)]
            summary = _write_log_b(spec, networks, held_out, folders["log_b"])
            console.line(f"π̂_b on held-out training sessions: {_summary_text(summary)}")


def announcement(spec: FitSpec, parts: list[Part], root: Path) -> str:
    fits = {"network": "once to all of them", "log_b": f"{spec.folds} times without one of {spec.folds} folds"}
    options, events = spec.network, spec.dataset.split("train").events
    folders = ", ".join(str(spec.folder(root, part)) for part in parts)
    return (
        f"Fitting the logging policy π̂_b ({options.backbone}, width {options.width}, seed {spec.seed}) to {events:,} "
        f"training events: {', '.join(fits[part] for part in parts)}"
        f"{'' if spec.start is None else ', from the weights of an earlier run'}. It will be cached in {folders} for "
        "all runs. "
        "With diagnostics=some, runs that need π̂_b only for diagnostics skip it."
    )


def measure_network(network: Network, dataset: Dataset, seed: int, device: torch.device) -> dict[str, float]:
    """Return the calibration of a network on the validation sessions."""
    replay = make_replay(dataset, dataset.split("validation"), network.options.history, "exact", device)
    return calibration.summarise(*measure(network, replay, seed))


def _summary_text(summary: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in summary.items() if name != "events")


def _write_log_b(
    spec: FitSpec, networks: Sequence[Network], held_out: Sequence[Replay], folder: Path
) -> dict[str, float]:
    """Evaluate networks[k] on held_out[k], the fold it was fitted without, and write the log-probabilities."""
    measured = [measure(network, part, spec.seed) for network, part in zip(networks, held_out, strict=True)]
    probabilities = calibration.concatenate([part for part, _ in measured])
    summary = calibration.summarise(probabilities, [sample for _, samples in measured for sample in samples])
    log_b = np.full(len(spec.dataset.sessions.items), np.nan, dtype=np.float32)
    log_b[probabilities.event] = probabilities.log_p
    cache.write_log_b(spec, log_b, summary, folder)
    return summary


def measure(
    network: Network, replay: Replay, seed: int
) -> tuple[calibration.EventProbabilities, list[calibration.HeadSample]]:
    """Return the probabilities at every event, and heads at a sample of events."""
    return calibration.event_probabilities(network, replay), calibration.sample_heads(network, replay, seed)


def make_replay(
    dataset: Dataset, sessions: Sessions, history: int, segmentation: Segmentation, device: torch.device
) -> Replay:
    """Return the events of sessions on a device, without rewards."""
    no_reward = transitions(sessions, None, gamma=0.0)
    return Replay(sessions, no_reward, dataset.n_items, history, segmentation, device)


def assign_folds(sessions: int, folds: int, seed: int) -> Longs:
    """[S] the fold of each session; the sizes differ by at most one."""
    return np.random.default_rng((seed, folds)).permutation(np.arange(sessions) % folds)


def session_of(sessions: Sessions, event: Longs) -> Longs:
    """Return the session of each event, counting only sessions with events."""
    return np.searchsorted(np.unique(sessions.offsets), event, side="right") - 1


def _train_all(
    spec: FitSpec, fits: list[_Fit], validation: Replay, device: torch.device, console: Console
) -> list[Network]:
    """Train concurrently on a GPU with enough memory, otherwise sequentially, which is as fast on a CPU."""
    plan = _memory_plan(spec, fits[0], validation, device)
    free = memory.free(device)
    if spec.training.memory_check:
        memory.check(plan, device, free)
    is_concurrent = device.type == "cuda" and len(fits) > 1 and len(fits) * plan.peak < free
    groups = [fits] if is_concurrent else [[fit] for fit in fits]
    try:
        with _consoles(console) as console_for:
            for group in groups:
                _run({fit.name: _trainer(spec, fit, validation, device, console_for(fit.name)) for fit in group})
    except Interrupted as error:
        raise Interrupted("Stopped while fitting the logging policy; the next run will start the fit again.") from error
    return [_best_network(spec, fit, device) for fit in fits]


def _best_network(spec: FitSpec, fit: _Fit, device: torch.device) -> Network:
    """Load the best epoch and remove the checkpoints; metrics.jsonl stays."""
    network = _initial_network(spec, device)
    load_module(network, fit.folder / "best.safetensors")
    for path in fit.folder.glob("*.safetensors"):
        path.unlink()
    return network.eval()


def _initial_network(spec: FitSpec, device: torch.device) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(spec.seed)
        network = Network(spec.dataset.n_items, spec.network, features=spec.features)
    if spec.start is not None:
        network.load_state_dict(spec.start.weights)
    return network.to(device)


def _run(trainers: Mapping[str, Trainer]) -> None:
    """Run all trainers; the first failure is raised."""
    errors: list[Exception] = []
    train_interleaved(trainers, lambda name, error: errors.append(error))
    if errors:
        raise errors[0]


def _trainer(spec: FitSpec, fit: _Fit, validation: Replay, device: torch.device, console: Console) -> Trainer:
    network, is_bfloat16 = _initial_network(spec, device), spec.training.precision == "bf16"
    if isinstance(network.backbone, GRU):
        network.backbone.is_fast_on_cpu = True

    def loss(batch: Batch) -> dict[str, Tensor]:
        pi = network.logged_head(batch) if device.type == "cpu" else network(batch)
        if is_bfloat16:
            pi = replace(pi, state=pi.state.bfloat16(), table=pi.table.bfloat16())
        return {"cross_entropy": losses.negative_log_likelihood(log_prob(pi, batch.action[:, None])[:, 0])}

    def validate() -> dict[str, float]:
        mean = calibration.mean_log_likelihood(network.eval(), validation)
        # Early stopping uses a relative margin, so the metric must be positive: |A| / perplexity orders epochs as the
        # likelihood does.
        return {"log-likelihood": mean, "times chance": math.exp(mean) * network.n_items}

    task = TrainingTask(
        network,
        loss,
        _epochs(spec, fit, device),
        validate,
        "times chance",
        tables=item_tables(network, network.n_items),
        validate_start=spec.start is not None,
    )
    fit.folder.mkdir(exist_ok=True)
    facts = {"data_hash": spec.dataset.meta["data_hash"]}
    return Trainer(task, spec.training, fit.folder, facts, spec.seed, console)


def _epochs(spec: FitSpec, fit: _Fit, device: torch.device) -> Epochs:
    is_captured = device.type == "cuda" and spec.training.capture != "off"
    batch_size = spec.training.batch_size or automatic_batch_size(int(fit.replay.rows.sum()))
    return Epochs(fit.replay, batch_size, spec.seed, round_sizes=is_captured)


def _memory_plan(spec: FitSpec, fit: _Fit, validation: Replay, device: torch.device) -> MemoryPlan:
    """Return the memory plan of one fit."""
    options, epochs = spec.network, _epochs(spec, fit, device)
    with torch.device("meta"):
        network = Network(spec.dataset.n_items, options, features=spec.features)
    return memory.plan(
        network,
        item_tables(network, network.n_items),
        table_state=spec.training.table_state,
        sizes=epochs.sizes(epochs.plan(0)),
        width=options.width,
        layers=options.layers,
        history=options.history,
        log=fit.replay.bytes + validation.bytes,
        captured=epochs.round_sizes,
        half=spec.training.precision == "bf16",
    )


@contextmanager
def _consoles(console: Console) -> Iterator[Callable[[str], Console]]:
    """Yield a function that returns the console of a fit by its name."""
    if type(console) is Console:
        with console.board() as board:
            yield board.console
    else:  # already one line of a larger display
        yield lambda name: _PrefixConsole(console, name)


class _PrefixConsole(Console):
    """Writes to another console, with a name before every line."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console.quiet)
        self.console, self.name = console, name

    def line(self, text: str) -> None:
        self.console.line(f"{self.name}  {text}")

    @contextmanager
    def steps(self, label: str, total: int) -> Iterator[Advance]:
        with self.console.steps(f"{self.name}  {label}", total) as advance:
            yield advance
