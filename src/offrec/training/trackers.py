"""Send the figures of a run to TensorBoard, Weights & Biases or MLflow.

metrics.jsonl stays the source of truth: trackers get copies of its lines, and offrec never reads them back. A tracker
is imported when the first epoch ends, so that runs start without delay. A tracker that fails is left out after one
warning; it never stops a training.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from offrec.console import Console
from offrec.data.json_files import read_json, write_json
from offrec.data.schema import Table, Text
from offrec.errors import InputError, first_line

Figures = Mapping[str, float]  # such as "validation/NDCG@10" → 0.12

AUTO, NONE = "auto", "none"
IDS = "trackers.json"  # in the run folder: the ids of its runs in W&B and MLflow, so that a resumed run continues them
IDS_SCHEMA = Table(optional={"wandb": Text("[A-Za-z0-9_-]{1,64}"), "mlflow": Text("[A-Za-z0-9_-]{1,64}")})
PROJECT = "offrec"  # the default project of W&B and experiment of MLflow
MLFLOW_PARAMETERS = 100  # the most that MLflow accepts at once


@dataclass(frozen=True)
class TrackedRun:
    """What trackers know about a run.

    Args:
        name: The run's name.
        folder: The folder in which it is trained.
        settings: Its options under dotted keys.
        first_epoch: The epochs that are already completed; 0 for a new run.
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]
    first_epoch: int = 0

    def stored_id(self, name: str) -> str | None:
        """Return the id of this run in a tracker; None for a run that is not resumed."""
        if not self.first_epoch or not (self.folder / IDS).exists():
            return None
        ids: dict[str, str] = read_json(self.folder / IDS, IDS_SCHEMA, advice=f"remove {self.folder / IDS}")
        return ids.get(name)

    def store_id(self, name: str, value: str) -> None:
        """Store the id of this run in a tracker."""
        path = self.folder / IDS
        ids = read_json(path, IDS_SCHEMA, advice=f"remove {path}") if path.exists() else {}
        write_json(path, {**ids, name: value})


class Tracker(Protocol):
    """Receives the figures of each epoch."""

    def log(self, epoch: int, figures: Figures) -> None: ...

    def close(self, finished: bool) -> None: ...


class TensorBoard:
    """Writes event files to RUN/tensorboard."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = run.first_epoch + 1 if run.first_epoch else None  # hides epochs that a resumed run repeats
        self.writer: Any = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)

    def log(self, epoch: int, figures: Figures) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def close(self, finished: bool) -> None:
        self.writer.close()


class WeightsAndBiases:
    """Logs to a run of Weights & Biases; WANDB_PROJECT, WANDB_MODE and its other variables apply."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            dir=str(run.folder),
            config=dict(run.settings),
            id=run.stored_id("wandb"),
            resume="allow",
        )
        run.store_id("wandb", str(self.run.id))

    def log(self, epoch: int, figures: Figures) -> None:
        self.run.log(dict(figures), step=epoch)

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class MLflow:
    """Logs to a run of MLflow; MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and its other variables apply."""

    def __init__(self, run: TrackedRun) -> None:
        import mlflow
        from mlflow.entities import Param

        self.client: Any = mlflow.MlflowClient()  # not the module's functions: several runs can train concurrently
        stored = run.stored_id("mlflow")
        if stored is not None:
            self.id = stored
            self.client.update_run(self.id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        experiment_id = self.client.create_experiment(name) if experiment is None else experiment.experiment_id
        self.id = str(self.client.create_run(experiment_id, run_name=run.name).info.run_id)
        parameters = [Param(key, str(value)) for key, value in run.settings.items()]
        for first in range(0, len(parameters), MLFLOW_PARAMETERS):
            self.client.log_batch(self.id, params=parameters[first : first + MLFLOW_PARAMETERS])
        run.store_id("mlflow", self.id)

    def log(self, epoch: int, figures: Figures) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        # MLflow does not allow @ in names.
        metrics = [Metric(name.replace("@", "_at_"), value, now, epoch) for name, value in figures.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


EXTRAS = {"tensorboard": "track"}  # the extra of offrec that installs a tracker, unless both have the same name


def choose_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """Return the trackers to use.

    Args:
        names: Names of trackers, "auto" (TensorBoard if it is installed) or "none"; empty means "auto".

    Raises:
        InputError: If a name is unknown, or "none" is not the only name.
    """
    for name in names:
        if name not in (*TRACKERS, AUTO, NONE):
            raise InputError(f"--track must be one of {', '.join([AUTO, *TRACKERS, NONE])}; got {name!r}.")
    if NONE in names and len(set(names)) > 1:
        raise InputError(f"--track none cannot be combined with other trackers; got {', '.join(names)}.")
    chosen = [name for name in names if name in TRACKERS]
    if (not names or AUTO in names) and is_installed("tensorboard"):
        chosen.append("tensorboard")
    return tuple(dict.fromkeys(chosen))


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


class Trackers:
    """The trackers of a run.

    Args:
        names: The trackers to use, as `choose_trackers` returns them.
        run: What they know about the run.
        console: Prints one warning per tracker that fails.
    """

    def __init__(self, names: Sequence[str], run: TrackedRun, console: Console) -> None:
        self.run, self.console = run, console
        self.waiting, self.active = list(names), dict[str, Tracker]()

    def log(self, record: Mapping[str, Any]) -> None:
        """Send a line of metrics.jsonl to all trackers."""
        for name in self.waiting:
            self._try(name, lambda name=name: self.active.update({name: TRACKERS[name](self.run)}))  # type: ignore[misc]
        self.waiting = []
        figures = flatten(record)
        for name, tracker in list(self.active.items()):
            self._try(name, lambda tracker=tracker: tracker.log(int(record["epoch"]), figures))  # type: ignore[misc]

    def close(self, finished: bool) -> None:
        """Close all trackers; `finished`: whether the training is complete."""
        for name, tracker in list(self.active.items()):
            self._try(name, lambda tracker=tracker: tracker.close(finished))  # type: ignore[misc]
        self.active = {}

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            with torch.random.fork_rng(devices=[]):  # a tracker that draws random numbers must not change the run
                action()
        except (Exception, SystemExit) as error:  # the code of another package, which may raise anything
            self.active.pop(name, None)
            reason, advice = first_line(error)[:200], "metrics.jsonl contains all figures"
            if isinstance(error, ModuleNotFoundError):
                reason, advice = (
                    f"{error.name} is not installed",
                    f"{advice}; install offrec[{EXTRAS.get(name, name)}] to use it",
                )
            self.console.line(f"Warning: the run is not tracked by {name} ({reason}); {advice}.")


def flatten(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl: {"loss": {"sl": 1.5}} → {"loss/sl": 1.5}, without the epoch."""
    figures: dict[str, float] = {}
    for name, value in record.items():
        numbers = {f"{name}/{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
        figures |= {
            key: float(one)
            for key, one in numbers.items()
            if isinstance(one, int | float) and not isinstance(one, bool) and key != "epoch"
        }
    return figures
