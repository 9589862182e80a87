"""One update: batch, loss, backward pass, optimiser step, target networks. On a GPU it is captured as a CUDA graph.

An update reads its step number and its batch from the device and stores its losses there. The host only waits when it
reads the losses.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from offrec.catalogue.streams import SideStreams, stream_scope
from offrec.errors import RunError, first_line
from offrec.training.optimiser import Optimiser
from offrec.types import Size

WARM_UP = 2  # uncaptured updates of each size before its capture, in which libraries initialise and tune themselves
MOST_GRAPHS = 48  # updates of further sizes are rare and remain uncaptured

LossTerms = dict[str, Tensor]


class Batches(Protocol):
    """A source of batches."""

    def begin(self, epoch: int) -> Sequence[Size]:
        """Plan an epoch and return the size of each of its batches. The plan depends only on the epoch."""
        ...

    def gather(self, step: Tensor, size: Size) -> Any:
        """Return the batch of a step, in the form that the loss reads; `step` [1] is on the device."""
        ...


@dataclass(frozen=True)
class TrainingTask:
    """A training task: a module, its loss, its batches and its validation."""

    module: nn.Module  # contains every tensor of the checkpoint; parameters that require gradients are trained
    loss: Callable[[Any], LossTerms]  # name → [B]; terms named "~…" are only logged
    batches: Batches
    validate: Callable[[], dict[str, float]]
    select: str | None  # figure of `validate` that selects the best epoch, higher is better; None: last epoch
    after: Callable[[], None] | None = None  # called at the end of each update: target networks, multipliers
    tables: Sequence[nn.Parameter] = ()  # item tables
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # context of all computation
    diagnose: Callable[[], dict[str, float]] | None = None  # diagnostics, logged after each epoch
    check: Callable[[dict[str, float]], "ListCheck"] | None = None  # called with the diagnostics after `validate`
    before_step: Callable[[], None] | None = None  # called between the backward pass and the optimiser's step
    validate_start: bool = False  # validate the weights at the start too, as those of a trained model; needs `select`


@dataclass(frozen=True)
class ListCheck:
    """What the policy recommends after an epoch, and what is wrong with it."""

    figures: dict[str, float]
    warnings: dict[str, str]  # condition → sentence


@dataclass(frozen=True)
class Fault:
    """The first step in which a loss term was NaN or infinite."""

    term: str
    value: float
    step: int


class Update:
    """Runs the updates of a task; on a GPU as captured CUDA graphs, one per batch size.

    The graphs of a run never run concurrently, so they share one memory pool. Uncaptured updates use the same pool,
    because their freed memory would otherwise stay reserved. `close` releases the pool.
    """

    def __init__(self, task: TrainingTask, optimiser: Optimiser, device: torch.device, *, capture: bool) -> None:
        self.task, self.optimiser, self.capture = task, optimiser, capture and device.type == "cuda"
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.names: list[str] = []
        self.records = torch.zeros(3, 0, device=device)  # per term: sum, step and value of the first fault
        self.ones: dict[torch.dtype, Tensor] = {}
        self.graphs: dict[Size, torch.cuda.CUDAGraph] = {}
        self.counts: dict[Size, int] = {}  # uncaptured updates of each size
        self.pool = torch.cuda.MemPool() if self.capture else None

    def begin(self, step: int, sums: dict[str, float]) -> None:
        """Begin an epoch at `step`; `sums` are the sums of the loss terms over the steps before it."""
        self.step.fill_(step)
        if sums:
            self._set_names(list(sums))
        self.records.zero_()
        if sums:
            self.records[0] = torch.tensor([sums.get(name, 0.0) for name in self.names], dtype=self.records.dtype)

    def __call__(self, size: Size) -> None:
        """Run the next update, whose batch has this size."""
        try:
            if not self.capture:
                self._update(size)
            elif size in self.graphs:
                self.graphs[size].replay()
            else:
                self._warm_up_or_capture(size)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(error) from error

    def read(self) -> tuple[dict[str, float], Fault | None]:
        """Return the sums of the loss terms and the first fault, if any. Synchronises with the device."""
        sums, steps, values = self.records.tolist()
        faults = [
            Fault(name, value, int(step))
            for name, step, value in zip(self.names, steps, values, strict=True)
            if step and not name.startswith("~")
        ]
        return dict(zip(self.names, sums, strict=True)), min(faults, key=lambda fault: fault.step, default=None)

    def close(self) -> None:
        """Release the graphs and their memory. Call it once the device has finished the updates."""
        if self.pool is None:
            return
        self.optimiser.zero_grad()
        for graph in self.graphs.values():
            graph.reset()
        self.graphs.clear()
        self.pool = None
        self.capture = False
        torch.cuda.empty_cache()  # the allocator reserves freed memory per stream and pool

    def _warm_up_or_capture(self, size: Size) -> None:
        if self.counts.get(size, 0) < WARM_UP or len(self.graphs) >= MOST_GRAPHS:
            with self._graph_memory():
                self._update(size)
            self.counts[size] = self.counts.get(size, 0) + 1
        else:
            self.graphs[size] = self._capture_graph(size)
            self.graphs[size].replay()  # the capture itself computes nothing

    def _update(self, size: Size) -> None:
        with stream_scope(self.step.device):
            batch = self.task.batches.gather(self.step, size)
            terms = self.task.loss(batch)
            means = {name: (batch.weight * term).sum() for name, term in terms.items()}
            minimised = [mean for name, mean in means.items() if not name.startswith("~") and mean.requires_grad]
            if not minimised:  # a backward pass without terms would succeed without training anything
                raise RuntimeError(f"no loss term requires a gradient: {', '.join(means)}")
            sides = SideStreams(self.step.device)
            with sides(0):
                self._record(means)
                self.step += 1
            self.optimiser.zero_grad()
            torch.autograd.backward(minimised, self._unit_gradients(minimised))  # equals the gradient of their sum
            if self.task.before_step is not None:
                self.task.before_step()
            self.optimiser.step()
            if self.task.after is not None:
                self.task.after()
            sides.join()

    @contextmanager
    def _graph_memory(self) -> Iterator[None]:
        """Allocate from the memory pool of the graphs inside a `with` block.

        The first update does not use the pool: it creates the optimiser's state, which outlives the pool. Backward
        passes run in the calling thread, because a pool serves a single thread.
        """
        if self.pool is None:
            yield
            return
        if not self.counts:
            yield
            self.optimiser.zero_grad()
            torch.cuda.empty_cache()  # the following updates allocate from the pool instead
            return
        with torch.autograd.set_multithreading_enabled(False), torch.cuda.use_mem_pool(self.pool, self.step.device):
            yield
        self.optimiser.zero_grad()  # gradients return to the pool before a graph uses it

    def _unit_gradients(self, means: list[Tensor]) -> list[Tensor] | None:
        """Return a gradient of 1 for each mean on a GPU, where they are created once, before any capture.

        On a CPU torch creates them itself: given gradients make it import sympy, which takes .4 s in the first update.
        """
        if not means[0].is_cuda:
            return None
        for mean in means:
            if mean.dtype not in self.ones:
                self.ones[mean.dtype] = torch.ones_like(mean)
        return [self.ones[mean.dtype] for mean in means]

    @torch.no_grad()
    def _record(self, means: LossTerms) -> None:
        self._set_names(list(means))
        values = torch.stack(list(means.values())).to(self.records.dtype)
        sums, step, value = self.records
        is_fault = ~values.isfinite() & (step == 0)
        sums += values
        value.copy_(torch.where(is_fault, values, value))
        step.copy_(torch.where(is_fault, self.step + 1, step))

    def _set_names(self, names: list[str]) -> None:
        if names != self.names:
            if self.names:
                raise RuntimeError(f"the loss terms changed from {self.names} to {names}")
            dtype = torch.float32 if self.records.device.type == "mps" else torch.float64  # MPS has no float64
            self.names, self.records = names, self.records.new_zeros(3, len(names), dtype=dtype)

    def _capture_graph(self, size: Size) -> torch.cuda.CUDAGraph:
        # `torch.cuda.graph` collects garbage and empties the cache for every capture. With one graph per size, that
        # would take longer than the epoch. The run already has its own stream.
        pool = None if self.pool is None else self.pool.id
        graph = torch.cuda.CUDAGraph()
        self.optimiser.zero_grad()  # the gradients of the last uncaptured update
        collects_garbage = gc.isenabled()
        gc.disable()  # no tensor or graph on the device may be freed during the capture
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # type: ignore[arg-type]
            try:
                self._update(size)
            finally:
                graph.capture_end()
        except RuntimeError as error:
            if isinstance(error.__context__, torch.OutOfMemoryError):
                raise _out_of_memory(error.__context__) from error
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = first_line(error.__context__ or error)
            raise RunError(f"The update cannot be captured ({reason}); set training.capture=off.") from error
        finally:
            if collects_garbage:
                gc.enable()
        self.optimiser.zero_grad()  # its gradients are in the graphs' memory, which the next graph may use
        return graph


def _out_of_memory(error: torch.OutOfMemoryError) -> RunError:
    """Replace PyTorch's message, which lists every process on the device and settings that do not help here."""
    requested = str(error).partition("Tried to allocate ")[2].partition(". ")[0]
    detail = f" when an update requested {requested} more" if requested else ""
    return RunError(
        f"The GPU ran out of memory{detail}; run fewer jobs on it (--jobs, --concurrent-seeds), or lower "
        "training.batch_size."
    )
