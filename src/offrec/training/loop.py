"""The loop: step, checkpoint, exact resume. Names no learner, backbone or dataset.

Whatever the next step depends on (weights, optimiser, random state, place in the epoch) is in the checkpoint `last`,
so a run that was stopped and resumed is, on a CPU, the run that was not, bit for bit.
"""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from torch import nn

from offrec.console import Console
from offrec.errors import InputError, Interrupted, RunError, first_line
from offrec.plugins import option
from offrec.training import checkpoint
from offrec.training.isolation import Isolation
from offrec.training.optimiser import Optimiser, TableState
from offrec.training.update import TrainingTask, Update
from offrec.types import Size

LOOK_EVERY = 50  # steps between looks at the losses: a look waits for the device
SHOW_SECONDS = 0.1  # between two movements of the bar: moving it takes longer than starting a captured update


@dataclass(frozen=True)
class TrainingOptions:
    """How a run is trained."""

    epochs: int = option(50, minimum=1)
    """At most so many passes over the training sessions."""
    batch_size: int | None = option(None, minimum=1)
    """Transitions in an update; by default a 200th of the log, between 64 and 1024."""
    learning_rate: float = option(0.002, above=0.0)
    """Adam's step."""
    patience: int = option(3, minimum=1)
    """Stop after so many epochs in a row without a clearly better validation figure."""
    warmup: int = option(1500, minimum=0)
    """Updates before which no epoch counts as one without: a small log has few of them in an epoch."""
    margin: float = option(0.002, minimum=0.0)
    """Clearly better: by this share of the best so far. (The best checkpoint is the best, by however little.)"""
    schedule: Literal["plateau", "linear"] = "plateau"
    """The learning rate falls where validation stops getting better, or with every epoch towards 0 after the last."""
    decay: float = option(0.3, above=0.0, maximum=1.0)
    """Multiply the learning rate by this after each epoch that was not clearly better, under the schedule plateau."""
    encode: Literal["sessions", "windows"] = "sessions"
    """Encode a session once for all its events, or each event's last items by themselves."""
    precision: Literal["float32", "bf16"] = "float32"
    """Of states and item tables in products over the catalogue. Weights and sums stay float32."""
    table_state: TableState = "full"
    """What the optimiser keeps for item tables: all of Adam's state (8 bytes a weight), or row-wise (2 bytes a weight):
    the first moment in bfloat16, the second one number an item. That is not Adam; for catalogues of millions."""
    capture: Literal["auto", "on", "off"] = "auto"
    """Capture updates as CUDA graphs; auto: on a GPU."""
    memory_check: bool = True
    """Refuse to begin a run that is not expected to fit into memory."""


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


class Trainer:
    def __init__(
        self,
        task: TrainingTask,
        options: TrainingOptions,
        folder: Path,
        facts: dict[str, Any],
        seed: int,
        console: Console,
    ) -> None:
        self.task, self.options, self.folder, self.facts, self.console = task, options, folder, facts, console
        self.place = Place()
        device = next(task.module.parameters()).device
        self.optimiser = Optimiser(task.module, options.learning_rate, task.tables, options.table_state)
        self.update = Update(task, self.optimiser, device, capture=options.capture != "off")
        self.isolation = Isolation(seed, device)
        self.saver = checkpoint.Saver(background=device.type == "cuda")
        self.resumed = False

    def resume(self) -> None:
        """Take up the run where `last` left it."""
        path = self.folder / "last.safetensors"
        tensors, facts = checkpoint.load(path)
        try:
            if any(facts[key] != value for key, value in self.facts.items()):
                raise ValueError("it belongs to another dataset")
            self.place = Place(**facts["place"])
            _load_state(self.task.module, tensors, "module.")
            self.optimiser.load(tensors, facts["rate"])
            self.isolation.load(tensors)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = first_line(error)
            raise InputError(f"The checkpoint {path} does not fit this run ({reason}); train it again.") from error
        with (self.folder / "metrics.jsonl").open("ab") as log:
            log.truncate(self.place.log_bytes)
        self.resumed = True

    def run(self) -> Place:
        with stop_requests() as stop, self.turn():
            for _ in self.steps(stop):
                pass
        self.isolation.finish()
        return self.place

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Whatever the run computes, it computes inside: it is the same run then, whoever else computes in between."""
        with self.isolation(), self.task.around():
            yield

    def steps(self, stop: threading.Event) -> Iterator[None]:
        """The run, an update or a validation at a time. To be advanced inside a `turn`."""
        if not self.resumed:
            (self.folder / "metrics.jsonl").write_bytes(b"")
        try:
            while not self.place.finished:
                yield from self._epoch(stop)
                self._close_epoch()
                yield
        finally:
            self.saver.wait()

    def _epoch(self, stop: threading.Event) -> Iterator[None]:
        place, sizes = self.place, self.task.batches.begin(self.place.epoch)
        self.task.module.train()
        self.update.begin(place.step, place.sums)
        shown, when = 0, 0.0
        with self.console.steps(f"epoch {place.epoch + 1}", len(sizes)) as advance:
            while place.step < len(sizes):
                if stop.is_set():
                    self._stop()
                self._update(sizes[place.step])
                place.step += 1
                place.updates += 1
                note = ""
                if place.step % LOOK_EVERY == 0 or place.step == len(sizes):
                    note = self._look()
                if note or time.monotonic() - when > SHOW_SECONDS:
                    advance(place.step - shown, note)
                    shown, when = place.step, time.monotonic()
                yield

    def _stop(self) -> None:
        self._look()
        self._save("last")
        where = f"epoch {self.place.epoch + 1} after {self.place.step} steps"
        raise Interrupted(f"Stopped in {where}; all of it is saved, and the same command with --resume goes on.")

    def _update(self, size: Size) -> None:
        self.update(size)

    def _look(self) -> str:
        """How it goes: refused where a loss is not finite any more, and in a few words for the bar."""
        self.place.sums, fault = self.update.look()
        if fault is not None:
            raise RunError(
                f"The loss '{fault.term}' became {fault.value} in epoch {self.place.epoch + 1}, step {fault.step}; "
                f"lower training.learning_rate (it is {self.optimiser.rate:g})."
            )
        return "  ".join(f"{name} {total / max(1, self.place.step):.4f}" for name, total in self.place.sums.items())

    def _close_epoch(self) -> None:
        place, options = self.place, self.options
        figures = self.task.validate()
        watched = {} if self.task.diagnose is None else {"diagnostics": self.task.diagnose()}
        rate = self.optimiser.rate
        losses = {name: total / max(1, place.step) for name, total in place.sums.items()}
        figure = place.epoch + 1.0 if self.task.select is None else figures[self.task.select]
        better = place.best_epoch < 0 or figure > place.best
        clearly = (
            place.best_epoch < 0 or self.task.select is None or figure > place.best + options.margin * abs(place.best)
        )
        if better:
            place.best, place.best_epoch = figure, place.epoch
        if clearly:
            place.since_best = 0
        elif place.updates > options.warmup:
            place.since_best += 1
            self.optimiser.rate = rate * options.decay if options.schedule == "plateau" else rate
        record = {"epoch": place.epoch + 1, "loss": losses, "validation": figures, "learning_rate": rate}
        self._log({**record, **watched})
        spoken = "  ".join(f"{name} {value:.4f}" for name, value in {**losses, **figures}.items())
        mark = "  kept" if self.task.select is None else "  best"  # the last is the last, not the best
        self.console.line(f"epoch {place.epoch + 1:>3}  {spoken}{mark if better else ''}")
        for found in watched.values():
            self.console.line("           " + "  ".join(f"{name} {value:.3g}" for name, value in found.items()))
        place.epoch, place.step, place.sums = place.epoch + 1, 0, {}
        if options.schedule == "linear":
            self.optimiser.rate = options.learning_rate * max(0, 1 - place.epoch / options.epochs)
        place.finished = place.epoch >= options.epochs or place.since_best >= options.patience
        self._save(*(["best"] if better else []), "last")

    def _log(self, record: dict[str, Any]) -> None:
        with (self.folder / "metrics.jsonl").open("a") as log:
            log.write(json.dumps(record) + "\n")
            self.place.log_bytes = log.tell()

    def _save(self, *names: str) -> None:
        module = {f"module.{key}": value for key, value in self.task.module.state_dict().items()}
        facts = {**self.facts, "place": asdict(self.place)}
        whole = module | self.optimiser.tensors() | self.isolation.tensors()
        kinds = {"best": (module, facts), "last": (whole, {**facts, "rate": self.optimiser.rate})}
        self.saver.save({self.folder / f"{name}.safetensors": kinds[name] for name in names})


def load_module(module: nn.Module, path: Path) -> dict[str, Any]:
    """Put a checkpoint's weights into `module`; its facts come back."""
    tensors, facts = checkpoint.load(path)
    _load_state(module, tensors, "module.")
    return facts


def _load_state(module: nn.Module, tensors: checkpoint.Tensors, prefix: str) -> None:
    module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
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
