"""The training loop: updates, validation, early stopping, checkpoints and exact resume.

The checkpoint `last` contains everything that the next step depends on: weights, optimiser, random state and position
in the epoch. On a CPU, a run that was stopped and resumed therefore equals an uninterrupted run bit for bit.
"""

import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from offrec.console import Console, format_duration
from offrec.errors import InputError, Interrupted, RunError, first_line
from offrec.plugins import option
from offrec.training import checkpoint
from offrec.training.isolation import Isolation
from offrec.training.module_state import load_state
from offrec.training.optimiser import Optimiser, TableState
from offrec.training.progress import FACTS, Progress, verify_log
from offrec.training.stop_requests import stop_requests
from offrec.training.trackers import Trackers
from offrec.training.update import Fault, ListCheck, TrainingTask, Update
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
    """Number of updates before early stopping takes effect and warnings of a collapse are printed, except
    that of the last epoch; on a small log an epoch has few updates."""
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
        tensors, facts = self._load(path)
        try:
            if any(facts[key] != value for key, value in self.facts.items()):
                raise ValueError("it belongs to another run or dataset")
            problem = FACTS.problem(facts, "")
            if problem is not None:
                raise ValueError(problem)
            self.progress = Progress(**facts["progress"])
            load_state(self.task.module, tensors, "module.")
            self.optimiser.load(tensors, facts["rate"])
            self._load_random_state(tensors)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = first_line(error)
            raise InputError(f"The checkpoint {path} does not fit this run ({reason}); train it again.") from error
        verify_log(self.folder, self.progress)
        self._truncate_log()
        self.resumed = True

    def _truncate_log(self) -> None:
        """Remove the epochs after the checkpoint."""
        with (self.folder / "metrics.jsonl").open("r+b") as log:
            log.truncate(self.progress.log_bytes)

    def _load(self, path: Path) -> tuple[checkpoint.Tensors, dict[str, Any]]:
        return checkpoint.load(path)

    def _load_random_state(self, tensors: checkpoint.Tensors) -> None:
        self.isolation.load(tensors)

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
            self._write_log(b"", "wb")
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
                if self._should_stop(stop):
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
        self.update.begin(self.progress.step, self._own_sums())
        return sizes

    def _own_sums(self) -> dict[str, float]:
        """Return the sums of the loss terms in this epoch that this process adds to."""
        return self.progress.sums

    def _read_update(self) -> tuple[dict[str, float], Fault | None]:
        return self.update.read()

    def _should_stop(self, stop: threading.Event) -> bool:
        return stop.is_set()

    def _stop(self) -> None:
        self._read_losses()
        self._save("last")
        position = f"epoch {self.progress.epoch + 1} after {self.progress.step} steps"
        raise Interrupted(f"Stopped in {position}; everything is saved. Run the command with --resume to go on.")

    def _read_losses(self) -> str:
        """Return the mean losses for the progress bar. Raise RunError if a loss is NaN or infinite."""
        self.progress.sums, fault = self._read_update()
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
        """Print each condition once, when it holds for two epochs in a row or in the last one.

        Before the end of `TrainingOptions.warmup`, a condition can be a phase through which healthy runs pass.
        """
        progress = self.progress
        is_warm = progress.updates > self.options.warmup
        for condition, sentence in warnings.items():
            if condition not in progress.warned and (
                progress.finished or (is_warm and condition in progress.suspected)
            ):
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
        self._write_log(line, "ab")
        self.progress.log_bytes += len(line)
        self.progress.log_crc32 = zlib.crc32(line, self.progress.log_crc32)

    def _write_log(self, content: bytes, mode: Literal["ab", "wb"]) -> None:
        with (self.folder / "metrics.jsonl").open(mode) as log:
            log.write(content)
            log.flush()
            os.fsync(log.fileno())  # the checkpoint that follows refers to this line

    def _save(self, *names: str) -> None:
        kinds = self._checkpoints()
        self.saver.save({self.folder / f"{name}.safetensors": kinds[name] for name in names})

    def _checkpoints(self) -> dict[str, tuple[checkpoint.Tensors, dict[str, Any]]]:
        """Return the tensors and the facts of each checkpoint, by its name."""
        module = {f"module.{key}": value for key, value in self.task.module.state_dict().items()}
        facts = {**self.facts, "progress": asdict(self.progress)}
        run = module | self.optimiser.tensors() | self.isolation.tensors()
        return {"best": (module, facts), "last": (run, {**facts, "rate": self.optimiser.rate})}
