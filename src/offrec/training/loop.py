"""The training loop: updates, validation, early stopping, checkpoints and exact resume.

The checkpoint `last` contains everything that the next step depends on: weights, optimiser, random state and position
in the epoch. On a CPU, a run that was stopped and resumed therefore equals an uninterrupted run bit for bit.
"""

import json
import os
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from torch import nn

from offrec.console import Console, format_duration
from offrec.data.regular_files import check_regular
from offrec.data.schema import Anything, Number, Table, schema_of
from offrec.errors import InputError, Interrupted, RunError, first_line
from offrec.plugins import option
from offrec.training import checkpoint
from offrec.training.isolation import Isolation
from offrec.training.optimiser import Optimiser, TableState
from offrec.training.trackers import Trackers
from offrec.training.update import ListCheck, TrainingTask, Update
from offrec.types import Size

READ_EVERY = 50  # updates between reads of the losses; a read synchronises with the device
SHORT_SECONDS = 10.0  # a shorter time left is not shown
SHOW_SECONDS = 0.1  # between refreshes of the progress bar; a refresh is slower than launching a captured update


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the training loop."""

    epochs: int = option(50, minimum=1, maximum=1_000_000)
    """Maximum number of passes over the training sessions."""
    batch_size: int | None = option(None, minimum=1, maximum=10_000_000)
    """Transitions per update. The default is 1/200 of the log, but at least 64 and at most 1024."""
    learning_rate: float = option(0.002, above=0.0)
    """Learning rate of Adam."""
    patience: int = option(3, minimum=1)
    """Stop after this many epochs in a row without a clear improvement on validation. With select=last a run always
    trains all epochs."""
    warmup: int = option(1500, minimum=0)
    """Number of updates before early stopping takes effect; on a small log an epoch has few updates."""
    margin: float = option(0.002, minimum=0.0)
    """An improvement is clear if it exceeds this fraction of the best figure. The best checkpoint ignores it."""
    schedule: Literal["plateau", "linear"] = "plateau"
    """Lower the learning rate after epochs without a clear improvement, or linearly to 0 over all epochs."""
    decay: float = option(0.3, above=0.0, maximum=1.0)
    """plateau: factor applied to the learning rate after an epoch without a clear improvement."""
    encode: Literal["sessions", "windows"] = "sessions"
    """Encode each session once for all its events, or encode the history of each event separately."""
    precision: Literal["float32", "bf16"] = "float32"
    """Precision of states and item tables in products over the catalogue. Weights and sums stay float32."""
    table_state: TableState = "full"
    """Optimiser state of item tables: full is Adam's (8 bytes per weight). rowwise takes 2 bytes per weight: a bfloat16
    first moment, and one second moment per item. It differs from Adam and is meant for millions of items."""
    capture: Literal["auto", "on", "off"] = "auto"
    """Capture updates as CUDA graphs; auto captures on a GPU."""
    memory_check: bool = True
    """Refuse to start a run whose expected peak memory exceeds the free memory."""


@dataclass
class Progress:
    """Progress of a run: all values in its checkpoint that are not tensors."""

    epoch: int = 0  # epochs completed
    step: int = 0  # within the current epoch
    updates: int = 0  # in all epochs
    best: float = 0.0  # the best validation figure
    best_epoch: int = -1  # counted from 0; −1 before the first validation, or if the weights at the start are best
    start_validated: bool = False  # whether the weights at the start were validated
    since_best: int = 0  # epochs without a clear improvement
    finished: bool = False
    stopped_early: bool = False  # whether early stopping ended the run before `TrainingOptions.epochs`
    log_bytes: int = 0  # length of metrics.jsonl at the time of the checkpoint
    log_crc32: int = 0  # checksum of metrics.jsonl at the time of the checkpoint
    sums: dict[str, float] = field(default_factory=dict)  # of the loss terms in this epoch
    warnings: dict[str, str] = field(default_factory=dict)  # of the best epoch, by condition
    suspected: list[str] = field(default_factory=list)  # conditions of the previous epoch
    warned: list[str] = field(default_factory=list)  # conditions that were printed


FACTS = Table({"progress": schema_of(Progress)}, {"rate": Number(0.0)}, Anything())  # of a checkpoint


class Trainer:
    """Trains a task and writes its metrics and checkpoints to a folder.

    Each epoch appends one JSON object to `metrics.jsonl`:

        epoch          counted from 1; 0 for the weights at the start, if the task validates them
        loss           mean of each loss term over the epoch
        validation     the figures of `TrainingTask.validate`
        learning_rate  the learning rate of the epoch
        diagnostics    the figures of `TrainingTask.diagnose`, if the task has any
        lists          the figures of `TrainingTask.check`, if the task has any
        warnings       its warnings by condition, if there are any
        best_epoch     in the last object only: the epoch of the checkpoint `best`, counted from 1; 0 for the start
        stopped_early  in the last object only: whether the run ended before `TrainingOptions.epochs`

    Args:
        task: The task to train.
        options: Options of the training loop.
        folder: The output folder; it must exist.
        facts: JSON values to store in checkpoints. A checkpoint with different values cannot be resumed.
        seed: Seed of dropout and of sampled items.
        console: The console that shows the progress.
        track: Creates the trackers that receive the lines of `metrics.jsonl`, from the number of completed epochs.

    Example:
        >>> progress = Trainer(task, TrainingOptions(epochs=3), folder, {}, seed=0, console=Console()).run()
        >>> progress.best_epoch, progress.stopped_early
    """

    def __init__(
        self,
        task: TrainingTask,
        options: TrainingOptions,
        folder: Path,
        facts: dict[str, Any],
        seed: int,
        console: Console,
        track: Callable[[int], Trackers] | None = None,
    ) -> None:
        self.task, self.options, self.folder, self.facts, self.console = task, options, folder, facts, console
        self.progress, self.track = Progress(), track
        self.trackers: Trackers | None = None
        device = next(task.module.parameters()).device
        self.optimiser = Optimiser(task.module, options.learning_rate, task.tables, options.table_state)
        self.update = Update(task, self.optimiser, device, capture=options.capture != "off")
        self.isolation = Isolation(seed, device)
        self.saver = checkpoint.Saver(background=device.type == "cuda")
        self.resumed = False
        self.started, self.first_epoch = time.monotonic(), 0  # of this process: when it began, and with which epoch

    def resume(self) -> None:
        """Continue from the checkpoint `last`.

        Raises:
            InputError: If the checkpoint is damaged or belongs to another run.
        """
        path = self.folder / "last.safetensors"
        tensors, facts = checkpoint.load(path)
        try:
            if any(facts[key] != value for key, value in self.facts.items()):
                raise ValueError("it belongs to another run or dataset")
            problem = FACTS.problem(facts, "")
            if problem is not None:
                raise ValueError(problem)
            self.progress = Progress(**facts["progress"])
            _load_state(self.task.module, tensors, "module.")
            self.optimiser.load(tensors, facts["rate"])
            self.isolation.load(tensors)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = first_line(error)
            raise InputError(f"The checkpoint {path} does not fit this run ({reason}); train it again.") from error
        _verify_log(self.folder, self.progress)
        with (self.folder / "metrics.jsonl").open("r+b") as log:  # remove the epochs after the checkpoint
            log.truncate(self.progress.log_bytes)
        self.resumed = True

    def run(self) -> Progress:
        """Train until the last epoch or until early stopping.

        Returns:
            The final progress.

        Raises:
            RunError: If a loss becomes NaN or infinite, or the GPU runs out of memory.
            Interrupted: On Ctrl-C or SIGTERM; the run is saved.
        """
        try:
            with stop_requests() as stop, self.active():
                for _ in self.steps(stop):
                    pass
        finally:
            self.close()
        return self.progress

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use the run's random state and stream inside a `with` block. All computation of the run must be inside."""
        with self.isolation(), self.task.around():
            yield

    def close(self) -> None:
        """Release the run's stream and the memory of its captured updates."""
        self.isolation.close()
        self.update.close()
        if self.trackers is not None:
            self.trackers.close(self.progress.finished)

    def steps(self, stop: threading.Event) -> Iterator[None]:
        """Train, and yield after each update and each validation. Advance the iterator inside `active`."""
        if not self.resumed:
            (self.folder / "metrics.jsonl").write_bytes(b"")
        self.started, self.first_epoch = time.monotonic(), self.progress.epoch
        if self.track is not None and not self.progress.finished:
            self.trackers = self.track(self.progress.epoch)
        try:
            if self.task.validate_start and not self.resumed:
                self._validate_start()
                yield
            while not self.progress.finished:
                yield from self.epoch(stop)
                self._end_epoch()
                yield
        finally:
            self.saver.wait()

    def _validate_start(self) -> None:
        """Validate the weights at the start, and save them as the best so far."""
        assert self.task.select is not None
        figures = self.task.validate()
        self.progress.best, self.progress.start_validated = figures[self.task.select], True
        line = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        self.console.line(f"start      {line}")
        self._log({"epoch": 0, "loss": {}, "validation": figures, "learning_rate": self.optimiser.rate})
        self._save("best", "last")

    def epoch(self, stop: threading.Event) -> Iterator[None]:
        """Run the updates of the current epoch, and yield after each. Advance the iterator inside `active`."""
        progress, sizes = self.progress, self._begin_epoch()
        shown, shown_at = 0, 0.0
        with self.console.steps(f"epoch {progress.epoch + 1}", len(sizes)) as advance:
            while progress.step < len(sizes):
                if stop.is_set():
                    self._stop()
                self.update(sizes[progress.step])
                progress.step += 1
                progress.updates += 1
                is_read = progress.step % READ_EVERY == 0 or progress.step == len(sizes)
                note = self._read_losses() if is_read else ""
                if note or time.monotonic() - shown_at > SHOW_SECONDS:
                    advance(progress.step - shown, note)
                    shown, shown_at = progress.step, time.monotonic()
                yield

    def _begin_epoch(self) -> Sequence[Size]:
        sizes = self.task.batches.begin(self.progress.epoch)
        self.task.module.train()
        self.update.begin(self.progress.step, self.progress.sums)
        return sizes

    def _stop(self) -> None:
        self._read_losses()
        self._save("last")
        position = f"epoch {self.progress.epoch + 1} after {self.progress.step} steps"
        raise Interrupted(f"Stopped in {position}; everything is saved. Run the command with --resume to go on.")

    def _read_losses(self) -> str:
        """Return the mean losses for the progress bar. Raise RunError if a loss is NaN or infinite."""
        self.progress.sums, fault = self.update.read()
        if fault is not None:
            raise RunError(
                f"The loss '{fault.term}' became {fault.value} in epoch {self.progress.epoch + 1}, step {fault.step}; "
                f"lower training.learning_rate (it is {self.optimiser.rate:g})."
            )
        steps = max(1, self.progress.step)
        return "  ".join(f"{name} {total / steps:.4f}" for name, total in self.progress.sums.items())

    def _end_epoch(self) -> None:
        """Validate, log, adapt the learning rate, decide whether to stop, and save."""
        progress, options = self.progress, self.options
        figures = self.task.validate()
        diagnostics = {} if self.task.diagnose is None else self.task.diagnose()
        check = ListCheck({}, {}) if self.task.check is None else self.task.check(diagnostics)
        rate = self.optimiser.rate
        losses = {name: total / max(1, progress.step) for name, total in progress.sums.items()}
        is_best = self._compare(figures)
        record = {"epoch": progress.epoch + 1, "loss": losses, "validation": figures, "learning_rate": rate}
        extra = {"diagnostics": diagnostics, "lists": check.figures, "warnings": check.warnings}
        record |= {name: values for name, values in extra.items() if values}
        progress.warnings = check.warnings if is_best else progress.warnings
        self._show_epoch({**losses, **figures}, diagnostics, is_best)
        progress.epoch, progress.step, progress.sums = progress.epoch + 1, 0, {}
        if options.schedule == "linear":
            self.optimiser.rate = options.learning_rate * max(0, 1 - progress.epoch / options.epochs)
        progress.finished = progress.epoch >= options.epochs or progress.since_best >= options.patience
        if progress.finished:
            progress.stopped_early = progress.epoch < options.epochs
            record |= {"best_epoch": progress.best_epoch + 1, "stopped_early": progress.stopped_early}
        self._warn(check.warnings)
        self._log(record)
        if self.trackers is not None:
            self.trackers.log(record)
        self._save(*(["best"] if is_best else []), "last")

    def _warn(self, warnings: dict[str, str]) -> None:
        """Print each condition once, when it holds for two epochs in a row or in the last one."""
        progress = self.progress
        for condition, sentence in warnings.items():
            if condition not in progress.warned and (condition in progress.suspected or progress.finished):
                progress.warned.append(condition)
                self.console.line(f"Warning: {sentence}")
        progress.suspected = list(warnings)

    def _compare(self, figures: dict[str, float]) -> bool:
        """Compare the epoch with the best so far; return whether it is the new best."""
        progress, options, select = self.progress, self.options, self.task.select
        figure = progress.epoch + 1.0 if select is None else figures[select]
        is_first = progress.best_epoch < 0 and not progress.start_validated
        is_clear = is_first or select is None or figure > progress.best + options.margin * abs(progress.best)
        is_best = is_first or figure > progress.best
        if is_best:
            progress.best, progress.best_epoch = figure, progress.epoch
        if is_clear:
            progress.since_best = 0
        elif progress.updates > options.warmup:
            progress.since_best += 1
            if options.schedule == "plateau":
                self.optimiser.rate *= options.decay
        return is_best

    def _show_epoch(self, figures: dict[str, float], diagnostics: dict[str, float], is_best: bool) -> None:
        mark = "" if not is_best else "  saved" if self.task.select is None else "  best"
        line = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        self.console.line(f"epoch {self.progress.epoch + 1:>3}  {line}{mark}{self._time_left()}")
        if diagnostics:
            line = "  ".join(f"{name} {value:.3g}" for name, value in diagnostics.items())
            self.console.line(f"           {line}")

    def _time_left(self) -> str:
        """Return the time that the epochs after the current one take, unless it is short or the run ends now."""
        progress, options = self.progress, self.options
        done = progress.epoch + 1 - self.first_epoch
        left = (time.monotonic() - self.started) / done * (options.epochs - progress.epoch - 1)
        if left < SHORT_SECONDS or progress.since_best >= options.patience:
            return ""
        return f"  {'about' if self.task.select is None else 'at most'} {format_duration(left)} left"

    def _log(self, record: dict[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        with (self.folder / "metrics.jsonl").open("ab") as log:
            log.write(line)
            log.flush()
            os.fsync(log.fileno())  # the checkpoint that follows refers to this line
        self.progress.log_bytes += len(line)
        self.progress.log_crc32 = zlib.crc32(line, self.progress.log_crc32)

    def _save(self, *names: str) -> None:
        module = {f"module.{key}": value for key, value in self.task.module.state_dict().items()}
        facts = {**self.facts, "progress": asdict(self.progress)}
        run = module | self.optimiser.tensors() | self.isolation.tensors()
        kinds = {"best": (module, facts), "last": (run, {**facts, "rate": self.optimiser.rate})}
        self.saver.save({self.folder / f"{name}.safetensors": kinds[name] for name in names})


def verify_last_checkpoint(folder: Path) -> None:
    """Raise InputError if last.safetensors or the epochs before it in metrics.jsonl are damaged."""
    _, facts = checkpoint.load(folder / "last.safetensors")
    problem = FACTS.problem(facts, "")
    if problem is not None:
        raise InputError(f"{folder}/last.safetensors is damaged: {problem}; train the run again.")
    _verify_log(folder, Progress(**facts["progress"]))


def _verify_log(folder: Path, progress: Progress) -> None:
    """Raise InputError if the epochs before a checkpoint are not in metrics.jsonl as they were written."""
    path = folder / "metrics.jsonl"
    try:
        check_regular(path)
        with path.open("rb") as log:
            content = log.read(progress.log_bytes)
        if len(content) < progress.log_bytes or zlib.crc32(content) != progress.log_crc32:
            raise ValueError("its checksum does not match")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} is damaged ({reason}); train the run again.") from error


def load_module(module: nn.Module, path: Path, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Load the weights of a checkpoint into `module`; return the facts stored with them.

    Raises:
        InputError: If the checkpoint is damaged, does not fit the module, or has other facts than the known ones.
    """
    expected = {f"module.{name}": (tuple(one.shape), one.dtype) for name, one in module.state_dict().items()}
    tensors, facts = checkpoint.load(path, expected)
    if any(facts.get(key) != value for key, value in (known or {}).items()):
        raise InputError(f"The checkpoint {path} belongs to another run or dataset; train the run again.")
    _load_state(module, tensors, "module.")
    return facts


def _load_state(module: nn.Module, tensors: checkpoint.Tensors, prefix: str) -> None:
    module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets. A second signal raises KeyboardInterrupt immediately."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
