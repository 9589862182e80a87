"""The loop: step, checkpoint, exact resume. Names no learner, backbone or dataset.

Whatever the next step depends on (weights, optimiser, random state, place in the epoch) is in the checkpoint `last`,
so a run that was stopped and resumed is, on a CPU, the run that was not, bit for bit.
"""

import json
import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from offrec import checkpoint
from offrec.console import Console
from offrec.errors import InputError, Interrupted, RunError

LOOK_EVERY = 50  # steps between looks at the losses: a look waits for the device

Terms = dict[str, Tensor]


@dataclass(frozen=True)
class TrainingOptions:
    """How a run is trained."""

    epochs: int = 50
    """At most so many passes over the training sessions."""
    batch_size: int | None = None
    """Transitions in an update; by default a 200th of the log, between 64 and 1024."""
    learning_rate: float = 0.002
    """Adam's step."""
    patience: int = 3
    """Stop after so many epochs in a row without a clearly better validation figure."""
    warmup: int = 1500
    """Updates before which no epoch counts as one without: a small log has few of them in an epoch."""
    margin: float = 0.002
    """Clearly better: by this share of the best so far. (The best checkpoint is the best, by however little.)"""
    decay: float = 0.3
    """Multiply the learning rate by this after each epoch that was not clearly better."""
    encode: Literal["sessions", "windows"] = "sessions"
    """Encode a session once for all its events, or each event's last items by themselves."""


@dataclass
class Place:
    """Where a run stands; everything that is not a tensor."""

    epoch: int = 0
    step: int = 0  # within the epoch
    updates: int = 0  # in all
    best: float = 0.0
    best_epoch: int = -1
    since_best: int = 0  # epochs since a clearly better figure
    finished: bool = False
    log_bytes: int = 0  # how much of metrics.jsonl belongs to what is saved
    sums: dict[str, float] = field(default_factory=dict)  # of the loss terms in this epoch


@dataclass(frozen=True)
class Job:
    """What to train: a module, its losses on a batch, the batches of an epoch, and how good it is now."""

    module: nn.Module
    loss: Callable[[Any], Terms]
    plan: Callable[[int], Sequence[Any]]  # epoch → its batches, not yet gathered; the same for the same epoch
    gather: Callable[[Any], Any]
    validate: Callable[[], dict[str, float]]
    select: str  # which figure of `validate` decides, higher is better


class Trainer:
    def __init__(
        self, job: Job, options: TrainingOptions, folder: Path, facts: dict[str, Any], seed: int, console: Console
    ) -> None:
        self.job, self.options, self.folder, self.facts, self.console = job, options, folder, facts, console
        self.place = Place()
        self.optimiser = torch.optim.Adam(job.module.parameters(), lr=options.learning_rate)
        self.seed = seed
        self.random: checkpoint.Tensors | None = None  # random state to go on from

    def resume(self) -> None:
        """Take up the run where `last` left it."""
        path = self.folder / "last.safetensors"
        tensors, facts = checkpoint.load(path)
        try:
            if any(facts[key] != value for key, value in self.facts.items()):
                raise ValueError("it belongs to another dataset")
            self.place = Place(**facts["place"])
            _load_state(self.job.module, tensors, "module.")
            _load_optimiser(self.optimiser, tensors, facts["rates"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"The checkpoint {path} does not fit this run ({reason}); train it again.") from error
        with (self.folder / "metrics.jsonl").open("ab") as log:
            log.truncate(self.place.log_bytes)
        self.random = tensors

    def run(self) -> Place:
        with torch.random.fork_rng(), _stop_requests() as stop:
            if self.random is None:
                torch.manual_seed(self.seed)
                (self.folder / "metrics.jsonl").write_bytes(b"")
            else:
                torch.set_rng_state(self.random["random.cpu"])
                if "random.cuda" in self.random and torch.cuda.is_available():
                    torch.cuda.set_rng_state(self.random["random.cuda"])
            while not self.place.finished:
                self._epoch(stop)
                self._close_epoch()
        return self.place

    def _epoch(self, stop: threading.Event) -> None:
        batches = self.job.plan(self.place.epoch)
        self.job.module.train()
        pending: list[tuple[int, Terms]] = []
        label = f"epoch {self.place.epoch + 1}"
        with self.console.steps(label, len(batches)) as advance:
            advance(self.place.step)
            while self.place.step < len(batches):
                if stop.is_set():
                    self._stop(pending)
                terms = self.job.loss(self.job.gather(batches[self.place.step]))
                self._update(terms)
                self.place.step += 1
                self.place.updates += 1
                pending.append((self.place.step, {name: term.detach().mean() for name, term in terms.items()}))
                if len(pending) == LOOK_EVERY or self.place.step == len(batches):
                    self._look(pending)
                    pending = []
                    advance(0, note=self._means())
                advance()

    def _stop(self, pending: list[tuple[int, Terms]]) -> None:
        self._look(pending)
        self._save("last")
        where = f"epoch {self.place.epoch + 1} after {self.place.step} steps"
        raise Interrupted(f"Stopped in {where}; all of it is saved, and the same command with --resume goes on.")

    def _update(self, terms: Terms) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        torch.stack([term.mean() for term in terms.values()]).sum().backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    def _look(self, pending: list[tuple[int, Terms]]) -> None:
        for step, terms in pending:
            for name, value in terms.items():
                number = float(value)
                if not math.isfinite(number):
                    raise RunError(
                        f"The loss '{name}' became {number} in epoch {self.place.epoch + 1}, step {step}; "
                        f"lower training.learning_rate (it is {self.optimiser.param_groups[0]['lr']:g})."
                    )
                self.place.sums[name] = self.place.sums.get(name, 0.0) + number

    def _means(self) -> str:
        return "  ".join(f"{name} {total / self.place.step:.4f}" for name, total in self.place.sums.items())

    def _close_epoch(self) -> None:
        place, options = self.place, self.options
        figures = self.job.validate()
        rate = self.optimiser.param_groups[0]["lr"]
        losses = {name: total / max(1, place.step) for name, total in place.sums.items()}
        figure = figures[self.job.select]
        better = place.best_epoch < 0 or figure > place.best
        clearly = place.best_epoch < 0 or figure > place.best * (1 + options.margin)
        if better:
            place.best, place.best_epoch = figure, place.epoch
        if clearly:
            place.since_best = 0
        elif place.updates > options.warmup:
            place.since_best += 1
            for group in self.optimiser.param_groups:
                group["lr"] *= options.decay
        self._log({"epoch": place.epoch + 1, "loss": losses, "validation": figures, "learning_rate": rate})
        spoken = "  ".join(f"{name} {value:.4f}" for name, value in {**losses, **figures}.items())
        self.console.line(f"epoch {place.epoch + 1:>3}  {spoken}{'  best' if better else ''}")
        place.epoch, place.step, place.sums = place.epoch + 1, 0, {}
        place.finished = place.epoch >= options.epochs or place.since_best >= options.patience
        if better:
            self._save("best")
        self._save("last")

    def _log(self, record: dict[str, Any]) -> None:
        with (self.folder / "metrics.jsonl").open("a") as log:
            log.write(json.dumps(record) + "\n")
            self.place.log_bytes = log.tell()

    def _save(self, name: str) -> None:
        tensors = {f"module.{key}": value for key, value in self.job.module.state_dict().items()}
        facts = {**self.facts, "place": asdict(self.place)}
        if name == "last":
            tensors |= _optimiser_tensors(self.optimiser)
            tensors["random.cpu"] = torch.get_rng_state()
            if torch.cuda.is_available():
                tensors["random.cuda"] = torch.cuda.get_rng_state()
            facts["rates"] = [group["lr"] for group in self.optimiser.param_groups]
        checkpoint.save(self.folder / f"{name}.safetensors", tensors, facts)


def load_module(module: nn.Module, path: Path) -> dict[str, Any]:
    """Put a checkpoint's weights into `module`; its facts come back."""
    tensors, facts = checkpoint.load(path)
    _load_state(module, tensors, "module.")
    return facts


def _load_state(module: nn.Module, tensors: checkpoint.Tensors, prefix: str) -> None:
    module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


def _optimiser_tensors(optimiser: torch.optim.Optimizer) -> checkpoint.Tensors:
    state = optimiser.state_dict()["state"]
    return {f"optimiser.{index}.{key}": value for index, slots in state.items() for key, value in slots.items()}


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: checkpoint.Tensors, rates: list[float]) -> None:
    whole = optimiser.state_dict()
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".")
            whole["state"].setdefault(int(index), {})[key] = tensor
    for group, rate in zip(whole["param_groups"], rates, strict=True):
        group["lr"] = rate
    optimiser.load_state_dict(whole)


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM ask the loop to stop after the step it is in; a second Ctrl-C stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
