"""Load the weights of a checkpoint into a module."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from offrec.errors import InputError
from offrec.training import checkpoint


def load_module(module: nn.Module, path: Path, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Load the weights of a checkpoint into `module`; return the facts stored with them.

    Raises:
        InputError: If the checkpoint is damaged, does not fit the module, or has other facts than the known ones.
    """
    expected = {f"module.{name}": (tuple(one.shape), one.dtype) for name, one in module.state_dict().items()}
    tensors, facts = checkpoint.load(path, expected)
    if any(facts.get(key) != value for key, value in (known or {}).items()):
        raise InputError(f"The checkpoint {path} belongs to another run or dataset; train the run again.")
    load_state(module, tensors, "module.")
    return facts


def load_state(module: nn.Module, tensors: checkpoint.Tensors, prefix: str) -> None:
    """Load the tensors of a checkpoint whose names begin with a prefix."""
    module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
