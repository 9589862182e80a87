"""The training loop of one rank among several. All ranks take the same decisions, and the leader writes the metrics."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from offrec.console import Console
from offrec.errors import InputError
from offrec.models.network import sharded_rows
from offrec.training import checkpoint, sharded_checkpoint
from offrec.training.loop import Trainer, TrainingOptions
from offrec.training.module_state import load_state
from offrec.training.ranks import Ranks
from offrec.training.trackers import Trackers
from offrec.training.update import Fault, TrainingTask

STOP_EVERY = 8  # updates between two checks whether a rank was asked to stop; each check is a message
MOMENTS = ("exp_avg", "exp_avg_sq")  # Adam's state that has the shape of its parameter


class ShardedTrainer(Trainer):
    """Trains a task whose module stores a part of the catalogue, or whose batches are a part of the rows.

    Args:
        task: The task of this rank.
        options: Options of the training loop. Updates are not captured.
        folder: The output folder, on a file system that all ranks share; it must exist.
        facts: JSON values to store in checkpoints.
        seed: Seed of dropout and of sampled items. Ranks that read different sessions draw different numbers.
        console: The console that shows the progress.
        track: Creates the trackers of the leader.
        ranks: The processes.
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
        *,
        ranks: Ranks,
    ) -> None:
        trained = [one for one in task.module.parameters() if one.requires_grad]
        self.ranks, self.module_rows = ranks, sharded_rows(task.module)
        names = {id(one): name for name, one in task.module.named_parameters()}
        is_sharded = {id(one) for one in trained if names[id(one)] in self.module_rows}
        task = replace(task, before_step=lambda: ranks.reduce_gradients(trained, is_sharded))
        seed = (seed + 1_000_003 * ranks.data_index) % 2**63
        super().__init__(
            task, replace(options, capture="off"), folder, facts, seed, console, track if ranks.is_leader else None
        )
        self.rows = self._checkpoint_rows(names)

    def _checkpoint_rows(self, names: dict[int, str]) -> dict[str, slice]:
        """Return the rows of each tensor in a checkpoint that this rank stores."""
        rows = {f"module.{name}": part for name, part in self.module_rows.items()}
        for number, parameter in enumerate(self.optimiser.adam.parameters):
            part = self.module_rows.get(names.get(id(parameter), ""))
            if part is not None:
                rows |= {f"optimiser.{number}.{key}": part for key in MOMENTS}
        for number, table in enumerate(self.optimiser.rowwise.tables):
            part = self.module_rows.get(names[id(table)])
            if part is not None:
                rows |= {f"optimiser.rowwise.{number}.{key}": part for key in ("first", "second")}
        return rows

    def _load(self, path: Path) -> tuple[checkpoint.Tensors, dict[str, Any]]:
        return sharded_checkpoint.load_rows(path, self.rows)

    def _load_random_state(self, tensors: checkpoint.Tensors) -> None:
        """Restore the random state of this rank; a rank that did not exist before draws from its own seed."""
        suffix = f"@{self.ranks.data_index}" if self.ranks.data_index else ""
        own = {name: tensors.get(f"{name}{suffix}") for name in ("random.cpu", "random.cuda")}
        if own["random.cpu"] is not None:
            self.isolation.load({name: tensor for name, tensor in own.items() if tensor is not None})

    def _checkpoints(self) -> dict[str, tuple[checkpoint.Tensors, dict[str, Any]]]:
        kinds = super()._checkpoints()
        states = self.ranks.gather_data(self.isolation.tensors())
        for index, state in enumerate(states[1:], 1):
            kinds["last"][0].update({f"{name}@{index}": tensor for name, tensor in state.items()})
        return kinds

    def _save(self, *names: str) -> None:
        kinds = self._checkpoints()
        for name in names:
            tensors, facts = kinds[name]
            rows = {key: part for key, part in self.rows.items() if key in tensors}
            sharded_checkpoint.save(self.folder / f"{name}.safetensors", tensors, facts, rows, self.ranks)

    def _truncate_log(self) -> None:
        self.ranks.barrier()  # every rank has verified it
        if self.ranks.is_leader:
            super()._truncate_log()

    def _write_log(self, content: bytes, mode: Literal["ab", "wb"]) -> None:
        if self.ranks.is_leader:
            super()._write_log(content, mode)

    def _should_stop(self, stop: threading.Event) -> bool:
        """Return whether any rank was asked to stop. Ranks receive a signal at different steps."""
        return self.progress.step % STOP_EVERY == 0 and self.ranks.any(stop.is_set())

    def _own_sums(self) -> dict[str, float]:
        sums = self.progress.sums
        return sums if self.ranks.data_index == 0 else dict.fromkeys(sums, 0.0)

    def _read_update(self) -> tuple[dict[str, float], Fault | None]:
        parts = self.ranks.gather_data(super()._read_update())
        sums = {name: sum(part[0][name] for part in parts) for name in parts[0][0]}
        faults = [fault for _, fault in parts if fault is not None]
        return sums, min(faults, key=lambda fault: fault.step, default=None)


def load_module_rows(module: nn.Module, path: Path, known: dict[str, Any]) -> None:
    """Load this rank's part of a checkpoint into a module.

    Raises:
        InputError: If the checkpoint is damaged, or has other facts than the known ones.
    """
    rows = {f"module.{name}": part for name, part in sharded_rows(module).items()}
    tensors, facts = sharded_checkpoint.load_rows(path, rows)
    if any(facts.get(key) != value for key, value in known.items()):
        raise InputError(f"The checkpoint {path} belongs to another run or dataset; train the run again.")
    load_state(module, tensors, "module.")
