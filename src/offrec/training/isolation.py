"""What a run has to itself among others in the same process: its random state and, on a GPU, its stream.

So a run trained beside others draws what it would draw alone, and the caller's random state is left as it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Isolation:
    def __init__(self, seed: int, device: torch.device) -> None:
        self.cpu = torch.Generator().manual_seed(seed).get_state()
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.index = torch.cuda.current_device() if device.index is None else device.index
            self.cuda = torch.Generator(device).manual_seed(seed)
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.fresh = True

    @contextmanager
    def __call__(self) -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self.cpu)
        try:
            if self.stream is None:
                yield
            else:
                with self._on_stream(self.stream):
                    yield
        finally:
            self.cpu = torch.get_rng_state()
            torch.set_rng_state(outside)

    @contextmanager
    def _on_stream(self, stream: torch.cuda.Stream) -> Iterator[None]:
        if self.fresh:  # what was made for the run was made on another stream
            torch.cuda.synchronize(self.index)
            self.fresh = False
        default = torch.cuda.default_generators[self.index]
        outside = default.graphsafe_get_state()
        # The state itself changes hands, not a copy of its numbers: captured updates draw from the state that was
        # there when they were captured.
        default.graphsafe_set_state(self.cuda)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            default.graphsafe_set_state(outside)

    def finish(self) -> None:
        """Wait for what is under way, so that others may read the run's tensors."""
        if self.stream is not None:
            self.stream.synchronize()

    def tensors(self) -> dict[str, Tensor]:
        """The random state, for a checkpoint. To be called inside."""
        found = {"random.cpu": torch.get_rng_state()}
        if self.stream is not None:
            found["random.cuda"] = self.cuda.get_state()
        return found

    def load(self, tensors: dict[str, Tensor]) -> None:
        """To be called outside."""
        self.cpu = tensors["random.cpu"]
        if self.stream is not None and "random.cuda" in tensors:
            self.cuda.set_state(tensors["random.cuda"])
