"""Initial values of parameters that cost nothing while a run is planned."""

from collections.abc import Callable

import torch
from torch import Tensor


def on_meta() -> bool:
    """Return whether modules are being built on the device `meta`, where they have shapes but no memory."""
    return torch.get_default_device().type == "meta"


def compute_unless_meta(shape: tuple[int, ...], values: Callable[[], Tensor]) -> Tensor:
    """Return `values()`, or an empty tensor of this shape on the device `meta`.

    Random numbers and arithmetic on `meta` would import torch._dynamo, which takes seconds.

    Args:
        shape: The shape of the values.
        values: Computes them.

    Returns:
        A tensor of this shape on the default device.

    Example:
        >>> compute_unless_meta((4,), lambda: torch.arange(4).exp()).shape
        torch.Size([4])
    """
    return torch.empty(shape) if on_meta() else values()
