"""One update: gather, loss, backward, optimiser, and what comes after it. On a GPU captured whole, as CUDA graphs.

An update takes its number and its batch from the device and leaves its losses there. So nothing waits until someone
looks.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from offrec.catalogue.streams import SideStreams, updating
from offrec.errors import RunError, first_line
from offrec.training.optimiser import Optimiser
from offrec.types import Batch, Size

WARM_UP = 2  # updates of a size that run as they are before it is captured: libraries set up and tune themselves
MOST_GRAPHS = 48  # sizes beyond these are rare, and run as they are

LossTerms = dict[str, Tensor]


class Batches(Protocol):
    def begin(self, epoch: int) -> Sequence[Size]:
        """Plan an epoch, the same for the same number: the size of each of its batches."""
        ...

    def gather(self, step: Tensor, size: Size) -> Batch:
        """step: [1], on the device."""
        ...


@dataclass(frozen=True)
class TrainingTask:
    """What to train: a module, its losses on a batch, the batches, and how good it is now."""

    module: nn.Module  # every tensor to save, frozen ones too; what requires a gradient is trained
    loss: Callable[[Any], LossTerms]  # name → [B]; a name that begins with "~" is logged and not minimised
    batches: Batches
    validate: Callable[[], dict[str, float]]
    select: str | None  # which figure of `validate` decides, higher is better; None: the last epoch is the one
    after: Callable[[], None] | None = None  # at the end of each update: target networks, multipliers
    tables: Sequence[nn.Parameter] = ()  # tables of items
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # entered whenever the run computes
    diagnose: Callable[[], dict[str, float]] | None = None  # what to watch, logged after each epoch


@dataclass(frozen=True)
class Fault:
    """The first time a term was not finite."""

    term: str
    value: float
    step: int


class Update:
    def __init__(self, task: TrainingTask, optimiser: Optimiser, device: torch.device, *, capture: bool) -> None:
        self.task, self.optimiser, self.capture = task, optimiser, capture and device.type == "cuda"
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.names: list[str] = []
        self.notes = torch.zeros(3, 0, device=device)  # for each term: sum, step and value of the first fault
        self.ones: dict[torch.dtype, Tensor] = {}
        self.graphs: dict[Size, torch.cuda.CUDAGraph] = {}
        self.met: dict[Size, int] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.capture else None

    def begin(self, step: int, sums: dict[str, float]) -> None:
        """An epoch, from `step` on, the terms of the steps before it summing up to `sums`."""
        self.step.fill_(step)
        if sums:
            self._name(list(sums))
        self.notes.zero_()
        if sums:
            self.notes[0] = torch.tensor([sums.get(name, 0.0) for name in self.names], dtype=self.notes.dtype)

    def __call__(self, size: Size) -> None:
        """The next update, whose batch is of this size."""
        try:
            self._next(size)
        except torch.OutOfMemoryError as error:
            raise _no_memory(error) from error

    def _next(self, size: Size) -> None:
        if size in self.graphs:
            self.graphs[size].replay()
            return
        self.met[size] = self.met.get(size, 0) + 1
        if self.capture and self.met[size] > WARM_UP and len(self.graphs) < MOST_GRAPHS:
            self.graphs[size] = self._captured(size)
            self.graphs[size].replay()  # capturing computes nothing
        else:
            self._compute(size)

    def look(self) -> tuple[dict[str, float], Fault | None]:
        """The sums of the terms, and the first that was not finite. Waits for the device."""
        sums, steps, values = self.notes.tolist()
        faults = [
            Fault(name, value, int(step))
            for name, step, value in zip(self.names, steps, values, strict=True)
            if step and not name.startswith("~")
        ]
        return dict(zip(self.names, sums, strict=True)), min(faults, key=lambda fault: fault.step, default=None)

    def _compute(self, size: Size) -> None:
        with updating(self.step.device):
            self._updated(size)

    def _updated(self, size: Size) -> None:
        batch = self.task.batches.gather(self.step, size)
        terms = self.task.loss(batch)
        means = {name: (batch.weight * term).sum() for name, term in terms.items()}
        minimised = [mean for name, mean in means.items() if not name.startswith("~") and mean.requires_grad]
        if not minimised:  # a backward pass from nothing would go through, and the run learn nothing
            raise RuntimeError(f"no loss term has a gradient: {', '.join(means)}")
        sides = SideStreams(self.step.device)
        with sides(0):
            self._note(means)
            self.step += 1
        self.optimiser.zero_grad()
        torch.autograd.backward(minimised, [self._one(mean) for mean in minimised])  # their sum's, without summing
        self.optimiser.step()
        if self.task.after is not None:
            self.task.after()
        sides.join()

    def _one(self, like: Tensor) -> Tensor:
        """Made once, before anything is captured."""
        if like.dtype not in self.ones:
            self.ones[like.dtype] = torch.ones_like(like)
        return self.ones[like.dtype]

    @torch.no_grad()
    def _note(self, means: LossTerms) -> None:
        self._name(list(means))
        values = torch.stack(list(means.values())).to(self.notes.dtype)
        sums, step, value = self.notes
        fresh = ~values.isfinite() & (step == 0)
        sums += values
        value.copy_(torch.where(fresh, values, value))
        step.copy_(torch.where(fresh, self.step + 1, step))

    def _name(self, names: list[str]) -> None:
        if names != self.names:
            if self.names:
                raise RuntimeError(f"the loss terms changed from {self.names} to {names}")
            kind = torch.float32 if self.notes.device.type == "mps" else torch.float64  # MPS has no doubles
            self.names, self.notes = names, self.notes.new_zeros(3, len(names), dtype=kind)

    def _captured(self, size: Size) -> torch.cuda.CUDAGraph:
        # Not `torch.cuda.graph`, which collects garbage and empties the cache each time: with a graph for each size
        # that would take longer than the epoch. The run is on a stream of its own already.
        graph = torch.cuda.CUDAGraph()
        self.optimiser.zero_grad()  # those of the last uncaptured update
        collecting = gc.isenabled()
        gc.disable()  # nothing that owns device memory or graphs may be freed meanwhile
        try:
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                self._compute(size)
            finally:
                graph.capture_end()
        except RuntimeError as error:
            if isinstance(error.__context__, torch.OutOfMemoryError):
                raise _no_memory(error.__context__) from error
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = first_line(error.__context__ or error)
            raise RunError(f"The update cannot be captured ({reason}); set training.capture=off.") from error
        finally:
            if collecting:
                gc.enable()
        self.optimiser.zero_grad()  # its gradients lie in the graphs' own memory, which the next graph may use
        return graph


def _no_memory(error: torch.OutOfMemoryError) -> RunError:
    """Its own story names every process on the device, and ways that are not the user's."""
    tried = str(error).partition("Tried to allocate ")[2].partition(". ")[0]
    more = f" when an update asked for {tried} more" if tried else ""
    return RunError(
        f"The GPU ran out of memory{more}; run fewer things on it at once (--jobs, --together), or set "
        "training.batch_size lower."
    )
