"""Give each run its own random state and CUDA stream, so that runs do not affect each other or the caller."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# Streams of finished runs, by device. The caching allocator reserves freed memory per stream: with a new stream for
# every run, later runs could not reuse that memory.
_idle: dict[int, list[torch.cuda.Stream]] = {}


class Isolation:
    """A run's own random state and, on a GPU, its own stream.

    An interleaved run draws the same random numbers as a run trained alone. `close` releases the stream.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.cpu_state = torch.Generator().manual_seed(seed).get_state()
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.index = torch.cuda.current_device() if device.index is None else device.index
            self.generator = torch.Generator(device).manual_seed(seed)
            idle = _idle.setdefault(self.index, [])
            self.stream = idle.pop() if idle else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._return_stream = weakref.finalize(self, idle.append, self.stream)
            self.is_first_entry = True

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Use the run's random state and stream inside a `with` block."""
        callers_state = torch.get_rng_state()
        torch.set_rng_state(self.cpu_state)
        try:
            if self.stream is None:
                yield
            else:
                with self._on_stream(self.stream):
                    yield
        finally:
            self.cpu_state = torch.get_rng_state()
            torch.set_rng_state(callers_state)

    @contextmanager
    def _on_stream(self, stream: torch.cuda.Stream) -> Iterator[None]:
        if self.is_first_entry:  # the run's tensors were created on another stream
            torch.cuda.synchronize(self.index)
            self.is_first_entry = False
        default = torch.cuda.default_generators[self.index]
        callers_state = default.graphsafe_get_state()
        # Exchange the state object, not its numbers: a captured update reads from the object that was current during
        # its capture.
        default.graphsafe_set_state(self.generator)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            default.graphsafe_set_state(callers_state)

    def synchronize(self) -> None:
        """Wait for the run's stream, so that other streams may read the run's tensors."""
        if self.stream is not None:
            self.stream.synchronize()

    def close(self) -> None:
        """Wait for the run's stream and release it to later runs. The run must not compute afterwards."""
        if self.stream is not None:
            self.stream.synchronize()
            self._return_stream()

    def tensors(self) -> dict[str, Tensor]:
        """Return the random state for a checkpoint. Call it inside the `with` block."""
        states = {"random.cpu": torch.get_rng_state()}
        if self.stream is not None:
            states["random.cuda"] = self.generator.get_state()
        return states

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the random state from a checkpoint. Call it outside the `with` block."""
        self.cpu_state = tensors["random.cpu"]
        if self.stream is not None and "random.cuda" in tensors:
            self.generator.set_state(tensors["random.cuda"])
